"""JSON files are read so that no key can hide and no value passes for another kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_runtime.errors import CheckpointError
from omni_runtime.weights.json_file import Fields, read_json

BAD_FILES = {
    "empty": (b"", "is empty"),
    "blank": (b" \n", "is empty"),
    "list": (b"[1]", "a JSON object is needed at the top, this is a list"),
    "text": (b'"x"', "this is a str"),
    "null": (b"null", "this is a NoneType"),
    "cut": (b'{"a": ', "is not sound JSON: Expecting value: line 1 column 7"),
    "comma": (b'{"a": 1,}', "is not sound JSON"),
    "two keys": (b'{"a": 1, "b": 2, "a": 1}', "key 'a' stands twice"),
    "two keys inside": (b'{"x": [{"a": 1, "a": 2}]}', "key 'a' stands twice"),
    "nan": (b'{"a": NaN}', "NaN is no number"),
    "infinity": (b'{"a": -Infinity}', "-Infinity is no number"),
    "not text": (b'{"a": "\xff"}', "cannot be read"),
    "deep": (b"[" * 100_000, "is not sound JSON"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_damage_is_one_sentence_with_the_file(tmp_path: Path, name: str) -> None:
    content, clause = BAD_FILES[name]
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_json(path, "fetch it")
    message = str(caught.value)
    assert message.startswith(str(path))
    assert clause in message
    assert message.endswith("; fetch it")


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist; fetch the file again"):
        read_json(tmp_path / "x.json")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json(tmp_path)


VALUES: dict[str, Any] = {"n": 3, "x": 0.5, "yes": True, "word": "w", "list": [1], "in": {"deep": "3"}, "none": None}
WRONG: list[tuple[str, tuple[Any, ...], str]] = [
    ("count", ("yes",), "yes: a whole number is needed, not True"),
    ("count", ("x",), "x: a whole number is needed, not 0.5"),
    ("count", ("word",), "word: a whole number is needed, not 'w'"),
    ("count", ("none",), "none: is missing, a whole number is needed"),
    ("count", ("m",), "m: is missing, a whole number is needed"),
    ("count", ("words",), "did you mean 'word'?"),
    ("count", ("n", 1, 4), "n: 3 is out of range, 4 to"),
    ("number", ("yes",), "yes: a number is needed, not True"),
    ("number", ("x", None, 0.5), "x: 0.5 is out of range, more than 0.5 is needed"),
    ("flag", ("n",), "n: true or false is needed, not 3"),
    ("text", ("n",), "n: a text is needed"),
    ("items", ("in",), "in: a list is needed"),
    ("inner", ("list",), "list: an object is needed"),
    ("ids", ("word",), "word: a token id or a list of them is needed"),
    ("ids", ("x",), "x: a token id"),
    ("only", ({"n", "x", "yes", "word", "list", "in"},), "none: unknown key"),
    (
        "only",
        ({"n", "x", "yes", "word", "list", "inn", "none"},),
        "in: unknown key, whatever it says would not be done; did you mean 'inn'?",
    ),
]


@pytest.mark.parametrize(("method", "args", "clause"), WRONG)
def test_values_of_another_kind(method: str, args: tuple[Any, ...], clause: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        getattr(Fields(Path("f.json"), VALUES), method)(*args)
    assert str(caught.value).startswith("f.json: ")
    assert clause in str(caught.value)


def test_right_values() -> None:
    f = Fields(Path("f.json"), VALUES)
    assert (f.count("n"), f.number("n"), f.number("x"), f.flag("yes"), f.text("word"), f.items("list")) == (
        3,
        3.0,
        0.5,
        True,
        "w",
        [1],
    )
    assert (f.count("none", None), f.count("m", 7), f.number("m", None), f.ids("m"), f.ids("n"), f.ids("list")) == (
        None,
        7,
        None,
        (),
        (3,),
        (1,),
    )
    assert "n" in f and "none" not in f and f.inner("none") is None
    inner = f.inner("in")
    assert inner is not None
    with pytest.raises(CheckpointError, match=r"f\.json: in\.deep: a whole number is needed"):
        inner.count("deep")
    f.only(VALUES)
