"""The tokenizer and chat template of a Hugging Face folder.

Read are tokenizer.json (or vocab.json and merges.txt), the special tokens of tokenizer_config.json and special_tokens_map.json,
and the template from chat_template.jinja, chat_template.json or tokenizer_config.json. Byte-level BPE only, since there a token
stands for the same bytes wherever it is.
With SentencePiece-style decoders (Metaspace, byte fallback) it does not: a leading space goes at the start of a text, and a run
of byte tokens that is no UTF-8 becomes one U+FFFD each, valid letters in it included. They are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from omni_runtime.errors import CheckpointError
from omni_runtime.weights.byte_level import spell
from omni_runtime.weights.chat_template import ChatTemplate
from omni_runtime.weights.folder_config import read_config
from omni_runtime.weights.json_file import Fields, read_json
from omni_runtime.weights.tokenizer import ChatTokenizer
from omni_runtime.weights.vocab_files import MERGES, VOCAB, tokenizer_content

PROCESSOR_TEMPLATE = "chat_template.json"
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "config.json")
_STAMPED = (*_FILES, VOCAB, MERGES, PROCESSOR_TEMPLATE)
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_MAY_LACK = {"unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}  # nothing here ever writes them


def folder_tokenizer(folder: Path, vocab: int | None = None) -> ChatTokenizer:
    """The tokenizer of a folder, the same object for everybody who asks while its files stay as they are.

    `vocab` is the vocabulary of the model; without it, config.json must be that of a decoder.

    Raises:
        CheckpointError: a file is missing, damaged or contradicts another, it is no byte-level BPE, there is no chat template, or
            the tokenizer has ids that the model of config.json does not have.
    """
    stamps = []
    for name in _STAMPED:
        path = folder / name
        stamps.append((path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None)
    return _open(folder, vocab, tuple(stamps))


@lru_cache(maxsize=4)
def _open(folder: Path, asked: int | None, stamps: tuple[Any, ...]) -> ChatTokenizer:
    vocab = read_config(folder).decoder.vocab if asked is None else asked
    path = folder / "tokenizer.json"
    if path.exists() or not (folder / VOCAB).exists():
        remedy = "a folder with tokenizer.json is needed; transformers' save_pretrained writes one"
        f = Fields(path, read_json(path, remedy))
        text = path.read_text(encoding="utf-8")
    else:
        path = folder / VOCAB
        f = Fields(path, tokenizer_content(folder))
        text = json.dumps(f.values)
    _check_kind(f)
    whole, plain = _load(path, text), _load(path, text)
    table: dict[str, int] = whole.get_vocab(with_added_tokens=True)
    config = _optional(folder / "tokenizer_config.json")
    added = {token.content: token.special for token in whole.get_added_tokens_decoder().values()}
    special = _special_tokens(config, _optional(folder / "special_tokens_map.json"), table)
    # A token of a list stays text where tokenizer.json says so; one that has a name is special whatever it says.
    chosen = [text for name, text in special.items() if text in table and not (name.endswith("]") and text in added)]
    chosen += _flagged(config, table, added)
    extra = [AddedToken(text, special=True, normalized=False) for text in dict.fromkeys(chosen) if not added.get(text)]
    for tokenizer in (whole, plain):
        tokenizer.add_special_tokens(extra)
    # Spellings of special tokens are ordinary text for this one.
    plain.encode_special_tokens = True
    control = {token.content: i for i, token in whole.get_added_tokens_decoder().items() if token.special}
    for text in control:
        if control.keys() & {plain.id_to_token(i) for i in plain.encode(text, add_special_tokens=False).ids}:
            raise f.wrong(
                "added_tokens", f"typed text {text!r} becomes a special token whatever is done; this tokenizer is unsafe"
            )
    highest = max(table.values(), default=-1)
    if highest >= vocab:
        raise f.wrong("model.vocab", f"it has ids up to {highest}, config.json says vocab_size {vocab}; one is another model's")
    pieces = [b""] * vocab  # a vocabulary padded to a round size has ids that no text belongs to
    for token, i in table.items():
        pieces[i] = b"" if token in control else spell(token)
    source, where = _template(folder, config)
    texts = {name: text for name, text in special.items() if name.endswith("_token")}
    try:
        template = ChatTemplate(source, folder.name, texts)
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}; fetch the file again") from error
    stop = (table[special["eos_token"]],) if "eos_token" in special else ()
    return ChatTokenizer(whole, plain, control, pieces, stop, template)


def _load(path: Path, text: str) -> Tokenizer:
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} is no tokenizer: {error}; fetch the file again") from None


def _optional(path: Path) -> Fields:
    return Fields(path, read_json(path) if path.exists() else {})


def _check_kind(f: Fields) -> None:
    """Byte-level BPE, in which a token's bytes do not depend on its neighbours."""
    model, decoder = f.inner("model"), f.inner("decoder")
    if model is None or decoder is None:
        raise f.wrong("model" if model is None else "decoder", "is missing; fetch the file again")
    kind = model.text("type", "BPE")  # files of early versions do not say it
    if kind != "BPE":
        raise model.wrong("type", f"{kind!r} is not supported, only byte-level BPE is")
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.values.get(key):
            raise model.wrong(key, f"{model.values[key]!r} is not supported, only byte-level BPE without it is")
    parts = [decoder]
    if decoder.text("type") == "Sequence":
        parts = [Fields(f.path, part, "decoder.") for part in decoder.items("decoders") if isinstance(part, dict)]
    kinds = [part.text("type") for part in parts]
    if [kind for kind in kinds if kind != "Fuse"] != ["ByteLevel"]:
        raise f.wrong("decoder", f"{' + '.join(kinds)} is not supported, only ByteLevel is: there, a token's bytes are its own")


def _text_of(f: Fields, key: str, value: Any) -> str:
    text = value.get("content") if isinstance(value, Mapping) else value
    if not isinstance(text, str) or not text:
        raise f.wrong(key, f"a token is needed, not {value!r:.80}")
    return text


def _special_tokens(config: Fields, more: Fields, table: Mapping[str, int]) -> dict[str, str]:
    """Text of each special token by its name; those of a list are named by their place in it."""
    found: dict[str, str] = {}
    for f in (config, more):
        named = {key: f.values[key] for key in _NAMED if key in f}
        for key in _LISTS:
            value = f.values.get(key) or []
            if isinstance(value, Mapping):
                named |= {str(name): token for name, token in value.items()}
            elif isinstance(value, list):
                named |= {f"{key}[{i}]": token for i, token in enumerate(value)}
            else:
                raise f.wrong(key, f"a list or an object is needed, not {value!r:.80}")
        for key, value in named.items():
            text = _text_of(f, key, value)
            if key in found and found[key] != text and key in _NAMED:
                raise f.wrong(key, f"{text!r} contradicts {found[key]!r} in {config.path.name}; keep one of them")
            if text not in table and key not in _MAY_LACK:
                raise f.wrong(key, f"{text!r} is no token of tokenizer.json; fetch both files again")
            found[key] = text
    return found


def _flagged(config: Fields, table: Mapping[str, int], added: Mapping[str, bool]) -> list[str]:
    """Tokens that tokenizer_config.json's `added_tokens_decoder` calls special; what it says must agree with tokenizer.json."""
    listed, special = config.inner("added_tokens_decoder"), []
    for key in listed.values if listed else ():
        assert listed is not None
        entry = listed.inner(key)
        if entry is None:
            raise listed.wrong(key, "an object is needed, not null")
        text = entry.text("content")
        if str(table.get(text)) != key:
            raise listed.wrong(key, f"{text!r} has id {table.get(text)} in tokenizer.json; fetch both files again")
        if entry.flag("special", False):
            special.append(text)
        elif added.get(text):
            raise listed.wrong(key, f"{text!r} is special in tokenizer.json and not here; fetch both files again")
    return special


def _template(folder: Path, config: Fields) -> tuple[str, Path]:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), path
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}; fetch the file again") from None
    path = folder / PROCESSOR_TEMPLATE  # of the processor of a model with media; beside it the tokenizer's knows text only
    if path.exists():
        return Fields(path, read_json(path)).text("chat_template"), path
    found = config.values.get("chat_template")
    if isinstance(found, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, Mapping)}
        found = named.get("default")
        if found is None:
            raise config.wrong("chat_template", f"none of {', '.join(map(str, named)) or 'them'} is named 'default'")
    if found is None:
        what = "neither chat_template.jinja nor chat_template in tokenizer_config.json is there"
        raise CheckpointError(f"{folder}: {what}; a base model needs a template before it can chat: put one into the folder")
    if not isinstance(found, str):
        raise config.wrong("chat_template", f"a text is needed, not {found!r:.80}")
    return found, config.path
