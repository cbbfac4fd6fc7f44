"""Tokenizers published as vocab.json and merges.txt, as that of Qwen3-Omni: tokens are those that transformers reads."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from omni_runtime.errors import CheckpointError  # noqa: E402
from omni_runtime.weights.folder_tokenizer import folder_tokenizer  # noqa: E402
from omni_runtime.weights.toy_folder import ADDED, toy_tokenizer, write_json  # noqa: E402
from omni_runtime.weights.toy_omni import merges  # noqa: E402
from omni_runtime.weights.toy_qwen3_omni import SPECIAL, TEMPLATE, write_toy_omni  # noqa: E402

PAIRS = [*merges(), "h e", "l l", "he ll", "Ġ hell", "Ġhell o", "1 2", "' t", "Ġ Ġ", "Ċ Ċ", "t h"]


def published(folder: Path, **changes: Any) -> Path:
    content = toy_tokenizer(PAIRS, SPECIAL)
    folder.mkdir(exist_ok=True)
    write_json(folder / "vocab.json", content["model"]["vocab"])
    lines = ["#version: 0.2", *(" ".join(pair) for pair in content["model"]["merges"]), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    added = {str(token.pop("id")): token for token in content["added_tokens"]}
    config = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added, "eos_token": "<|im_end|>"}
    config |= {"pad_token": "<|endoftext|>", "additional_special_tokens": list(SPECIAL), "audio_token": "<|audio_pad|>"}
    config |= {"chat_template": "{{ raise_exception('the tokenizer alone knows no media') }}"} | changes
    write_json(folder / "tokenizer_config.json", {key: value for key, value in config.items() if value is not None})
    write_json(folder / "chat_template.json", {"chat_template": TEMPLATE})
    return folder


def test_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    folder = published(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = folder_tokenizer(folder, 400)
    texts = [
        "",
        "hello  hello\n\n  12 3's don't",
        "e\u0301 is é",
        "日本語 ok",
        "<|im_end|> <tool_call>",
        "user\tassistant system",
    ]
    dice = random.Random(1)
    texts += ["".join(dice.choice("he llo12'\n\t é🙂t,.") for _ in range(40)) for _ in range(200)]
    for text in texts:
        assert ours.encode(text, control=True) == theirs(text, add_special_tokens=False)["input_ids"], text
        assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text), skip_special_tokens=True)
    plain = ours.encode("<|im_end|>")
    assert len(plain) > 1 and set(ours.control) == set(SPECIAL) and ADDED[0] not in ours.control
    assert ours.encode_chat("hi")[:1] == theirs("<|im_start|>")["input_ids"]
    assert ours.stop == tuple(theirs("<|im_end|>")["input_ids"])


def test_an_omni_folder_of_the_published_layout(tmp_path: Path) -> None:
    from omni_runtime.experts.omni_prepare import build

    folder = write_toy_omni(tmp_path / "omni")
    expected = build({"checkpoint": str(folder)}, "cpu").tokenizer.encode_chat("hello")
    content = json.loads((folder / "tokenizer.json").read_text())
    for name in ("tokenizer.json", "chat_template.jinja"):
        (folder / name).unlink()
    published(folder)
    for name, value in (("vocab.json", content["model"]["vocab"]),):
        write_json(folder / name, value)
    lines = "\n".join(" ".join(pair) for pair in content["model"]["merges"])
    (folder / "merges.txt").write_text(lines, encoding="utf-8")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(token.pop("id")): token for token in content["added_tokens"]}
    write_json(folder / "tokenizer_config.json", config)
    assert build({"checkpoint": str(folder)}, "cpu").tokenizer.encode_chat("hello") == expected


def test_what_is_damaged(tmp_path: Path) -> None:
    cases: list[tuple[str, Any, str]] = [
        ("merges.txt", "#version: 0.2\nh e\nq zz\n", "line 3 joins no two tokens of vocab.json: 'q zz'"),
        ("merges.txt", "h e l\n", "line 1 joins no two tokens"),
        ("merges.txt", None, "merges.txt cannot be read"),
        ("vocab.json", '{"a": -1}', "'a' has id -1"),
        ("vocab.json", "[]", "vocab.json"),
        ("tokenizer_config.json", "{}", "tokenizer_class: ''; without tokenizer.json only Qwen2Tokenizer"),
        ("tokenizer_config.json", '{"tokenizer_class": "Qwen2Tokenizer"}', "added_tokens_decoder: is missing"),
        ("chat_template.json", "{}", "chat_template"),
    ]
    for i, (name, text, message) in enumerate(cases):
        folder = published(tmp_path / str(i))
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(text)
        with pytest.raises(CheckpointError, match=message):
            folder_tokenizer(folder, 400)
