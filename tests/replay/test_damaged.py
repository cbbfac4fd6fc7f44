"""Every wrong file has an answer, and a log that was changed is told apart at the feed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_runtime.core import Core
from omni_runtime.errors import ReplayError, RequestError
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.replay import Recording, RecordLog, play
from omni_runtime.replay.command import replay
from omni_runtime.sim import Simulation
from omni_runtime.work import ExecutorUp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
import toys


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return record(tmp_path / "log.jsonl")


def record(path: Path, full: bool = False) -> Path:
    sim = Simulation(cards=(toys.CARD,), policy="first_come", tenants={"a": 1.0, "b": 2.0}, max_runs=7)
    writer = RecordLog(Recording(path, full=full), sim.core, [toys.CARD])
    sim.up(SimulatedExecutor("x#1", toys.CARD))
    for i in range(4):
        sim.submit(toys.clauses(), messages="hi", seed=i, tenant="ab"[i % 2])
    sim.run()
    writer.close()
    return path


def edit(path: Path, at: int, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes line `at` (0 is the head)."""
    lines = path.read_text().splitlines()
    line = json.loads(lines[at])
    change(line)
    lines[at] = json.dumps(line)
    path.write_text("\n".join(lines) + "\n")


def test_what_is_no_log(tmp_path: Path) -> None:
    other = tmp_path / "other"
    for path, text in (
        (tmp_path / "none", None),
        (other, ""),
        (other, "hello"),
        (other, '{"a": 1}\n'),
        (other, "\xff\n"),
        (tmp_path, None),
    ):
        if text is not None:
            path.write_text(text, encoding="latin-1")
        with pytest.raises(ReplayError, match=r"--record FILE"):
            play(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 2, "version": "9.1"}, "format 2, written by omni_runtime 9.1; this version reads format 1"),
        ({"policy": "best"}, "unknown policy 'best'"),
        ({"costs": {}}, "head is damaged"),
        ({"limits": [["a", "b", 3]]}, "limits are needed"),
        ({"tenants": [1]}, "head is damaged"),
        ({"max_runs": "many"}, "head is damaged"),
    ],
)
def test_heads(log: Path, change: dict[str, Any], told: str) -> None:
    edit(log, 0, lambda head: head.update(change))
    with pytest.raises(ReplayError, match=told):
        play(log)


def test_another_card(log: Path) -> None:
    assert play(log, cards=[toys.CARD]).difference is None
    changed = toys.CARD.model_copy(update={"description": "another"})
    with pytest.raises(ReplayError, match=r"card 'toy': hash \w{16} there, \w{16} here"):
        play(log, cards=[changed])
    with pytest.raises(ReplayError, match="card 'other'"):
        play(log, cards=[toys.CARD.model_copy(update={"name": "other"})])


@pytest.mark.parametrize("cut", [1, 2, 20, 40])
def test_a_last_line_that_was_cut(log: Path, cut: int, capsys: pytest.CaptureFixture[str]) -> None:
    feeds = play(log).feeds
    log.write_bytes(log.read_bytes()[:-cut])
    played = play(log)
    played.check()
    if cut <= 2:
        assert (played.feeds, played.torn) == (feeds, False)  # nothing of what was decided is missing
    else:
        assert (played.feeds, played.torn) == (feeds - 1, True)
        assert replay(log) == 0
        assert "the last line was cut" in capsys.readouterr().out


def test_only_the_first_half_of_the_last_feed(log: Path) -> None:
    lines = log.read_text()
    log.write_text(lines[: lines.rindex(',"out"')])
    played = play(log)
    assert played.broke == "came back" and not played.torn


@pytest.mark.parametrize("line", ["{", "[]", '{"now": 1.0}', '{"now": 1, "in": [{"~New": []}]}', '{"now": "x", "in": []}'])
def test_a_line_in_the_middle(log: Path, line: str) -> None:
    lines = log.read_text().splitlines()
    lines[7] = line
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(ReplayError, match="line 8"):
        play(log)


def token_of(line: dict[str, Any]) -> int:
    """The token in the first result of the first answer."""
    answer = line["in"][0].get("~Answer") if line.get("in") else None
    first = answer[2]["~l"][0]["~StepResult"] if answer else []
    return first[0] if first else -1


def other_token(line: dict[str, Any]) -> None:
    result = line["in"][0]["~Answer"][2]["~l"][0]["~StepResult"]
    result[:2] = [0, {"~u": ""}]


def lost(line: dict[str, Any]) -> None:
    line["in"] = []


@pytest.mark.parametrize("change", [other_token, lost])
def test_the_first_difference_is_named(tmp_path: Path, change: Callable[[dict[str, Any]], None], capsys: Any) -> None:
    log = record(tmp_path / "log.jsonl", full=True)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    at = next(at for at, line in enumerate(lines) if at > 20 and token_of(line) >= 1000)
    edit(log, at, change)
    feed = 1 + sum("in" in line for line in lines[:at])
    found = play(log).difference
    assert found is not None and (found.feed, found.line) == (feed, at + 1) and found.first is not None
    assert found.first[0] != found.first[1]
    with pytest.raises(AssertionError, match=f"differently from feed {feed} on"):
        play(log).check()
    capsys.readouterr()
    assert replay(log, full=True) == 1
    told = capsys.readouterr().out
    assert f"decides differently from feed {feed} on (line {at + 1}" in told and "recorded: {" in told
    assert replay(log, until=feed - 1) == 0
    assert f"same decisions in {feed - 1} feeds" in capsys.readouterr().out


def test_what_was_fitted_is_at_the_head(tmp_path: Path) -> None:
    """What was fitted is at the head, exactly, and how many gaps were measured, which a file of prices does not say."""
    sim = Simulation(cards=(toys.CARD,))
    sim.core.scheduler.costs.gaps, sim.core.scheduler.costs.gap = 5, 0.125
    RecordLog(Recording(tmp_path / "log"), sim.core, [toys.CARD]).close()
    core = play(tmp_path / "log").core
    assert (core.scheduler.costs.gaps, core.scheduler.costs.save()) == (5, sim.core.scheduler.costs.save())


def test_stories(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(log, story=2, until=9) == 0
    told = capsys.readouterr().out
    assert "submit clauses" in told and "now: run 2 open" in told and "alive at the end: 1, 2, 3, 4; --story 1" in told
    with pytest.raises(ReplayError, match=r"request 99 is not among those .* 4 came, 1 to 4"):
        replay(log, story=99)
    with pytest.raises(RequestError, match="until"):
        replay(log, until=0)


def test_a_log_begins_with_its_core(tmp_path: Path) -> None:
    core = Core({})
    core.feed(0.0, ExecutorUp("x", ("a/b",)))
    with pytest.raises(RequestError, match="begin in the middle"):
        RecordLog(Recording(tmp_path / "log"), core, [])
