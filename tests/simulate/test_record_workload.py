"""A workload that was seen at a live runtime can be played again."""

from __future__ import annotations

from typing import Any

import plays
import pytest

from omni_runtime.executors.simulated import Cost, SimulatedExecutor
from omni_runtime.runtime import Runtime
from omni_runtime.scheduler.cost import Costs
from omni_runtime.sim import Simulation
from omni_runtime.simulate.record import WorkloadRecorder
from omni_runtime.simulate.replay import Replay
from omni_runtime.simulate.workload import read, write
from omni_runtime.work import StepResult

QUESTION = "How far is it to the sea, and who lives there?"


def executor(**options: Any) -> SimulatedExecutor:
    return SimulatedExecutor("x", plays.CARD, blocks=4096, stops=0, fakes={("play/host", "tokenize"): tokens}, **options)


def tokens(row: Any, slots: Any) -> StepResult:
    return StepResult(items={"tokens": list(range(1, 12))})


def test_a_live_runtime_is_written_down(tmp_path: Any) -> None:
    recorder = WorkloadRecorder({"talk": "plays:talk"})
    with Runtime([plays.CARD], executors=[executor()], observers=[recorder]) as runtime:
        for n, size in ((1, 5), (2, 9)):
            given: dict[str, Any] = {"messages": QUESTION, "think": {"max_tokens": size}}
            runtime.submit(plays.talk(), outputs=["text"], priority="high", n=n, **given).result()
        runtime.submit(plays.picture(), steps=6, width=64).result()
    asked = recorder.workload()
    assert [a.program for a in asked] == ["plays:talk", "plays:talk", "picture"]
    assert [(a.tokens, a.n, a.prompt_tokens, a.characters) for a in asked[:2]] == [
        (5, 1, 11, len(QUESTION)),
        (9, 2, 11, len(QUESTION)),
    ]
    assert asked[0].at == 0.0 and asked[0].at < asked[1].at < asked[2].at
    assert {a.priority for a in asked} == {"high", "normal"}
    assert asked[0].outputs == ("text",)
    assert asked[2].params["paint"]["steps"] == 6 and asked[2].params["paint"]["width"] == 64
    write(tmp_path / "w", asked)
    assert read(tmp_path / "w") == asked


def test_outcomes_are_those_of_the_core(tmp_path: Any) -> None:
    """The same sums as `Outcome` makes in a simulation, from the outside: a recorder beside a simulation on exact prices."""
    recorder = WorkloadRecorder()
    costs = {("play/llm", "forward"): Cost(0.010), ("play/host", "tokenize"): Cost(0.0)}
    sim = Simulation(executor(costs=costs), cards=(plays.CARD,), observers=[recorder])
    handle = sim.submit(plays.talk(), messages=QUESTION, think={"max_tokens": 6}, outputs=["text"])
    sim.run()
    (seen,) = recorder.outcomes()
    assert seen.first_token == handle.times["text"][0] == pytest.approx(0.010)
    assert seen.ended == pytest.approx(0.060)
    assert seen.units == 7 and seen.reason == "done"
    assert recorder.busy["play/llm"] == pytest.approx(0.060)


def test_what_was_seen_can_be_played() -> None:
    recorder = WorkloadRecorder()
    sim = Simulation(executor(), cards=(plays.CARD,), observers=[recorder])
    sim.submit(plays.talk(), messages=QUESTION, think={"max_tokens": 6}, outputs=["text"])
    sim.run()
    play = Replay([plays.CARD], Costs(), seed=None, kv_bytes=1 << 14)
    (arrival,) = recorder.workload()
    outcome = play.ask(plays.talk(), arrival)
    play.run()
    assert outcome.reason == "done"
    assert outcome.units == 7
