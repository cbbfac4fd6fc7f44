"""Workload files: what is written is read again, and a mistake is told by line, field and value."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_runtime.errors import RequestError
from omni_runtime.simulate.workload import Arrival, read, write

FULL = Arrival(
    at=1.5,
    program="speak",
    outputs=("text", "audio"),
    characters=80,
    prompt_tokens=40,
    shared_tokens=16,
    tokens=32,
    params={"speed": 1.5},
    priority="high",
    n=2,
    tenant="a",
    guarantee="no-underrun",
    deadline_s=9.0,
    first_output_s=0.5,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl"
    asked = [Arrival(at=0.0, program="paint"), FULL]
    write(file, asked)
    assert read(file) == asked
    assert file.read_text().splitlines()[0] == '{"at": 0.0, "program": "paint"}'


def test_whole_seconds_and_empty_lines(tmp_path: Path) -> None:
    (tmp_path / "w").write_text('{"at": 0, "program": "chat"}\n\n{"at": 3, "program": "chat"}\n')
    assert [a.at for a in read(tmp_path / "w")] == [0.0, 3.0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ["line 2", "no JSON"]),
        ("[1]", ["line 2", "an object is needed"]),
        ('{"program": "chat"}', ["line 2", "at: is required"]),
        ('{"at": -1, "program": "chat"}', ["line 2", "at", "-1"]),
        ('{"at": 5, "program": "chat", "tokes": 3}', ["line 2", "tokes", "did you mean 'tokens'"]),
        ('{"at": 5, "program": "chat", "tokens": "3"}', ["line 2", "tokens", "'3'"]),
        ('{"at": 5, "program": "chat", "priority": "urgent"}', ["line 2", "priority", "urgent"]),
        ('{"at": 5, "program": "chat", "deadline_s": 0}', ["line 2", "deadline_s", "0"]),
        ('{"at": 5, "program": "chat", "guarantee": "none"}', ["line 2", "guarantee", "none"]),
        ('{"at": 0.5, "program": "chat"}', ["line 2", "at=0.5 is before", "sort"]),
    ],
)
def test_a_mistake_is_told(tmp_path: Path, line: str, words: list[str]) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text('{"at": 1, "program": "chat"}\n' + line + "\n")
    with pytest.raises(RequestError) as told:
        read(file)
    for word in words:
        assert word in str(told.value)


def test_an_empty_file_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("\n")
    with pytest.raises(RequestError, match="no request"):
        read(tmp_path / "w")
