"""A tokenizer that is published as vocab.json and merges.txt, as the content of the tokenizer.json that it would be.

Qwen3-Omni comes like that. What stands nowhere in its files follows from the class that tokenizer_config.json names:
Qwen2's text is brought to NFC, cut by one pattern, and spelt in bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_runtime.errors import CheckpointError
from omni_runtime.weights.json_file import Fields, read_json

VOCAB, MERGES = "vocab.json", "merges.txt"
CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
# Contractions; words with what stands before them; digits one by one; signs; line ends; blanks.
CUT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
NEEDED = "a folder with tokenizer.json, or with vocab.json and merges.txt, is needed"


def tokenizer_content(folder: Path) -> dict[str, Any]:
    """What tokenizer.json would say.

    Raises:
        CheckpointError: a file is missing or damaged, or the tokenizer is of a class that is not known here.
    """
    config_path = folder / "tokenizer_config.json"
    config = Fields(config_path, read_json(config_path, NEEDED))
    if (kind := config.text("tokenizer_class", "")) not in CLASSES:
        raise config.wrong("tokenizer_class", f"{kind!r}; without tokenizer.json only {' and '.join(CLASSES)} are read")
    vocab = read_json(folder / VOCAB, NEEDED)
    for token, i in vocab.items():
        if type(i) is not int or i < 0:
            raise CheckpointError(f"{folder / VOCAB}: {token!r} has id {i!r}; fetch the file again")
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    cut = {"type": "Split", "pattern": {"Regex": CUT}, "behavior": "Isolated", "invert": False}
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
    }
    model |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": _merges(folder, vocab)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(config),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, letters]},
        "post_processor": None,
        "decoder": {**letters, "use_regex": True},
        "model": model,
    }


def _merges(folder: Path, vocab: dict[str, Any]) -> list[list[str]]:
    path = folder / MERGES
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; {NEEDED}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or any(part not in vocab for part in (*pair, "".join(pair))):
            raise CheckpointError(f"{path}: line {number} joins no two tokens of {VOCAB}: {line[:60]!r}; fetch both files again")
        found.append(pair)
    return found


def _added(config: Fields) -> list[dict[str, Any]]:
    listed = config.inner("added_tokens_decoder")
    if listed is None:
        raise config.wrong("added_tokens_decoder", "is missing; without tokenizer.json it says which tokens are special")
    found = []
    for key in listed.values:
        entry = listed.inner(key)
        if entry is None or not key.isdecimal():
            raise listed.wrong(key, "an id and an object are needed")
        flags = {name: entry.flag(name, False) for name in (*FLAGS, "special")}
        found.append({"id": int(key), "content": entry.text("content"), **flags})
    return sorted(found, key=lambda token: int(token["id"]))
