"""The tokenizer of a folder: bytes per token that join to what the library decodes, prompts as transformers writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from tokenizers import Tokenizer  # noqa: E402

from omni_runtime.errors import CheckpointError, RequestError  # noqa: E402
from omni_runtime.weights.folder_tokenizer import folder_tokenizer  # noqa: E402
from omni_runtime.weights.tokenizer import ChatTokenizer  # noqa: E402
from omni_runtime.weights.toy_folder import VOCAB, write_json, write_toy  # noqa: E402

Edit = Callable[[dict[str, Any]], object]
QWEN_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = QWEN_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|")


def edit(folder: Path, change: Edit, name: str = "tokenizer.json") -> Path:
    path = folder / name
    found = json.loads(path.read_text())
    change(found)
    write_json(path, found)
    return folder


def split_as(pattern: str) -> Edit:
    """Text is cut by a pattern first, as the published tokenizers of Qwen and Llama 3 do."""
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return lambda t: t.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [cut, letters]})


def smollm(t: dict[str, Any]) -> None:
    digits = {"type": "Digits", "individual_digits": True}
    t["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, t["pre_tokenizer"]]}


def qwen(t: dict[str, Any]) -> None:
    split_as(QWEN_SPLIT)(t)
    t["normalizer"] = {"type": "NFC"}


def llama3(t: dict[str, Any]) -> None:
    split_as(LLAMA3_SPLIT)(t)
    t["model"]["ignore_merges"] = True
    start = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    special = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [264], "tokens": ["<|endoftext|>"]}}
    template = {
        "type": "TemplateProcessing",
        "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": special,
    }
    template["pair"] = template["single"]
    t["post_processor"] = {"type": "Sequence", "processors": [{**t["decoder"]}, template]}


def odd_added(t: dict[str, Any]) -> None:
    """Added tokens with letters that the alphabet of bytes has another meaning for, or does not have at all."""
    t["added_tokens"][3]["content"] = "é Ġ☃"
    t["added_tokens"][4]["content"] = "éĠ"


def orphan(t: dict[str, Any]) -> None:
    """No merge makes "the" any more, so typing it does not give that token."""
    t["model"]["merges"] = [merge for merge in t["model"]["merges"] if "e" not in merge and "the" not in merge]


KINDS: dict[str, Edit] = {"plain": lambda t: None, "smollm": smollm, "qwen": qwen, "llama3": llama3, "odd added": odd_added}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ChatTokenizer, Tokenizer]:
    folder = edit(write_toy(tmp_path_factory.mktemp("kinds")), KINDS[request.param])
    return folder_tokenizer(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, VOCAB - 1), max_size=24))
def test_joined_pieces_are_what_the_library_decodes(pair: tuple[ChatTokenizer, Tokenizer], ids: list[int]) -> None:
    ours, theirs = pair
    assert len(ours.pieces) == VOCAB
    assert b"".join(ours.pieces[i] for i in ids).decode(errors="replace") == theirs.decode(ids, skip_special_tokens=True)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=30) | st.text("the in a<|im_end|> 19é☃", max_size=30))
def test_typed_text_holds_no_special_token(pair: tuple[ChatTokenizer, Tokenizer], text: str) -> None:
    ours, theirs = pair
    special = {i for i, token in theirs.get_added_tokens_decoder().items() if token.special}
    assert not special & set(ours.encode(text))
    forged = ours.encode_chat([{"role": "user", "content": text}])
    honest = ours.encode_chat([{"role": "user", "content": "x"}])
    assert [i for i in forged if i in special] == [i for i in honest if i in special]
    if "<|" not in text:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = edit(write_toy(tmp_path), KINDS[kind])
    template = "{{ bos_token }}{% if tools is not none %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>"
    template += "{{ m.role }}\n{% generation %}{{ m['content'] | trim }}{% endgeneration %}{{ eos_token }}\n{% endfor %}"
    template += "{% if add_generation_prompt %}<|im_start|>assistant{{ {'a': '<é>'} | tojson }}\n{% endif %}"
    (folder / "chat_template.jinja").unlink()
    many = [{"name": "rag", "template": "x"}, {"name": "default", "template": template}]
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"][4]["content"]
    more = {"bos_token": {"content": "<|endoftext|>", "__type": "AddedToken"}, "chat_template": many}
    rare = [] if kind == "llama3" else ["the"]  # there, a token that is a word is taken whatever the merges say
    edit(folder, orphan)
    edit(folder, lambda c: c.update(more, additional_special_tokens=[*rare, added]), "tokenizer_config.json")
    ours, theirs = folder_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    ids = list(range(250, 269))
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert (ours.pieces[257] == b"") == bool(rare)
    assert ours.pieces[268] != b""  # an added token that was text stays text
    for content in ("hi", " th in 12345 größer\n\n", f"{added}a{added}", "e\u0301", "a  b\r\n\r\nc'S"):
        turns = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": content}]
        assert ours.encode_chat(turns) == theirs.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)


NAMED: list[tuple[dict[str, Any], int]] = [
    ({"eos_token": "<tool_call>"}, 267),
    ({"extra_special_tokens": {"image_token": "<tool_call>"}}, 267),
    ({"added_tokens_decoder": {"267": {"content": "<tool_call>", "special": True}}}, 267),
    ({"eos_token": "the"}, 257),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("changes", "token"), NAMED)
def test_tokens_that_tokenizer_config_makes_special(changes: dict[str, Any], token: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = edit(edit(write_toy(tmp_path), lambda c: c.update(changes), "tokenizer_config.json"), orphan)
    ours, theirs = folder_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.pieces[token] == b""
    assert ours.decode(range(250, 269)) == theirs.decode(list(range(250, 269)), skip_special_tokens=True)


def test_where_the_template_is(tmp_path: Path) -> None:
    folder = write_toy(tmp_path)
    honest = folder_tokenizer(folder).encode_chat("hi")
    edit(folder, lambda c: c.update(chat_template="other"), "tokenizer_config.json")
    assert folder_tokenizer(folder).encode_chat("hi") == honest  # the file of its own goes first
    (folder / "chat_template.jinja").unlink()
    assert folder_tokenizer(folder).decode(folder_tokenizer(folder).encode_chat("hi")) == "other"
    edit(folder, lambda c: c.pop("chat_template"), "tokenizer_config.json")
    with pytest.raises(CheckpointError, match=r"neither chat_template\.jinja nor chat_template.*a base model needs a template"):
        folder_tokenizer(folder)


def test_a_template_that_wants_the_date_or_fails(tmp_path: Path) -> None:
    folder = write_toy(tmp_path)
    path = folder / "chat_template.jinja"
    path.write_text("{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}26 Jul 2024{% endif %}")
    assert folder_tokenizer(folder).decode(folder_tokenizer(folder).encode_chat("hi")) == "26 Jul 2024"
    for source in ("{{ strftime_now('%d') }}", "{{ 1 / 0 }}", "{{ raise_exception('no') }}", "{{ messages[0].content + 1 }}"):
        path.write_text(source)
        with pytest.raises(RequestError, match=r"the chat template of .* refuses them"):
            folder_tokenizer(folder).encode_chat("hi")


def config(**changes: Any) -> Callable[[Path], object]:
    return lambda p: edit(p, lambda c: c.update(changes), "tokenizer_config.json")


def model(**changes: Any) -> Callable[[Path], object]:
    return lambda p: edit(p, lambda t: t["model"].update(changes))


def top(**changes: Any) -> Callable[[Path], object]:
    return lambda p: edit(p, lambda t: t.update(changes))


METASPACE = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "none": (lambda p: (p / "tokenizer.json").unlink(), "tokenizer.json does not exist; a folder with tokenizer.json is needed"),
    "empty": (lambda p: (p / "tokenizer.json").write_text(""), "tokenizer.json is empty"),
    "list": (lambda p: (p / "tokenizer.json").write_text("[]"), "tokenizer.json: a JSON object is needed"),
    "two keys": (lambda p: (p / "tokenizer.json").write_text('{"a": 1, "a": 2}'), "key 'a' stands twice"),
    "no model": (top(model=None), "model: is missing"),
    "no decoder": (top(decoder=None), "decoder: is missing"),
    "unigram": (model(type="Unigram"), "model.type: 'Unigram' is not supported"),
    "byte fallback": (model(byte_fallback=True), "model.byte_fallback: True is not supported"),
    "word ends": (model(end_of_word_suffix="</w>"), "model.end_of_word_suffix: '</w>' is not supported"),
    "metaspace": (top(decoder={"type": "Metaspace", "replacement": "▁"}), "decoder: Metaspace is not supported"),
    "sentencepiece": (top(decoder={"type": "Sequence", "decoders": METASPACE}), "decoder: Replace + ByteFallback + Fuse is not"),
    "merges": (model(merges=[["t", "zz"]]), "tokenizer.json is no tokenizer"),
    "vocabulary": (model(vocab={"a": "b"}, merges=[]), "tokenizer.json is no tokenizer"),
    "too large": (lambda p: write_toy(p, vocab_size=268), "model.vocab: it has ids up to 268, config.json says vocab_size 268"),
    "end": (config(eos_token="<|end|>"), "eos_token: '<|end|>' is no token of tokenizer.json"),
    "end as number": (config(eos_token=3), "eos_token: a token is needed, not 3"),
    "two ends": (lambda p: write_json(p / "special_tokens_map.json", {"eos_token": "<|endoftext|>"}), "contradicts '<|im_end|>'"),
    "special": (config(additional_special_tokens=["<x>"]), "additional_special_tokens[0]: '<x>' is no token"),
    "special text": (config(additional_special_tokens="<x>"), "additional_special_tokens: a list or an object is needed"),
    "added": (config(added_tokens_decoder={"300": {"content": "<new>"}}), "added_tokens_decoder.300: '<new>' has id None"),
    "added elsewhere": (config(added_tokens_decoder={"3": {"content": "<|im_end|>"}}), "'<|im_end|>' has id 266"),
    "template": (lambda p: (p / "chat_template.jinja").write_text("{% for %}"), "chat_template.jinja: it is no template"),
    "no default template": (
        lambda p: [(p / "chat_template.jinja").unlink(), config(chat_template=[{"name": "rag", "template": "x"}])(p)],
        "chat_template: none of rag is named 'default'",
    ),
    "template as number": (lambda p: [(p / "chat_template.jinja").unlink(), config(chat_template=3)(p)], "chat_template: a text"),
    "bytes as template": (lambda p: (p / "chat_template.jinja").write_bytes(b"\xff"), "chat_template.jinja cannot be read"),
    "added as text": (
        config(added_tokens_decoder={"266": {"content": "<|im_end|>"}}),
        "'<|im_end|>' is special in tokenizer.json",
    ),
    "no special tokens": (top(added_tokens=[]), "eos_token: '<|im_end|>' is no token of tokenizer.json"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_expressed_is_refused_by_name(tmp_path: Path, name: str) -> None:
    change, clause = REFUSED[name]
    folder = write_toy(tmp_path)
    change(folder)
    with pytest.raises(CheckpointError) as caught:
        folder_tokenizer(folder)
    assert clause in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_special_token_that_text_reaches_is_unsafe(tmp_path: Path) -> None:
    """Its spelling is built by merges, so typing it is enough."""

    def reachable(t: dict[str, Any]) -> None:
        t["added_tokens"].append({**t["added_tokens"][0], "id": 257, "content": "the"})

    with pytest.raises(CheckpointError, match="typed text 'the' becomes a special token whatever is done"):
        folder_tokenizer(edit(write_toy(tmp_path), reachable))
