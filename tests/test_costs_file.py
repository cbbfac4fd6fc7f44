"""Costs in a file: what is written is read, and what is no such file says where it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_runtime import costs_file
from omni_runtime.errors import CheckpointError
from omni_runtime.scheduler.cost import Costs


def learned() -> Costs:
    costs = Costs()
    for units in (1, 4, 9):
        costs.model("card/expert", "op").learn(units, 2.0 * units, 0.0, 0.01 + 0.002 * units)
    costs.pace("speak", "utter").learn(units=7.0)
    costs.pace("speak", "utter").weigh(31.0)
    costs.between(0.003)
    return costs


def test_what_is_written_is_read(tmp_path: Path) -> None:
    costs = learned()
    costs_file.write(tmp_path / "c.json", costs)
    again = costs_file.read(tmp_path / "c.json")
    assert again.save() == costs.save()
    assert again.model("card/expert", "op").predict(4, 8.0) == costs.model("card/expert", "op").predict(4, 8.0)
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]


def test_what_was_known_stays(tmp_path: Path) -> None:
    costs_file.write(tmp_path / "c.json", learned())
    known = Costs()
    known.model("other/expert", "op").learn(1, 1, 0, 5.0)
    read = costs_file.read(tmp_path / "c.json", known)
    assert read is known
    assert set(read.models) == {("other/expert", "op"), ("card/expert", "op")}


def put(path: tuple[str, ...], value: Any) -> str:
    saved: Any = json.loads(json.dumps(learned().save()))
    at = saved
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(saved)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["no JSON"]),
        ("[]", ["an object is needed"]),
        ('{"version": 2}', ["version"]),
        (put(("gap",), -1), ["gap", "-1"]),
        (put(("models", "card/expert.op", "theta"), [1, 2]), ["card/expert.op", "theta"]),
        (put(("models", "card/expert.op", "speed"), "fast"), ["card/expert.op", "speed", "fast"]),
        (put(("paces", "speak.utter", "units"), "x"), ["speak.utter", "units"]),
        (put(("paces", "speak.utter", "odd"), 1), ["speak.utter", "odd", "unknown"]),
    ],
)
def test_what_is_no_such_file(tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(CheckpointError) as told:
        costs_file.read(tmp_path / "c.json")
    for word in ("c.json", "omni calibrate", *words):
        assert word in str(told.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        costs_file.read(tmp_path / "nowhere.json")
