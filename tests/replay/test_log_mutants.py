"""Recorders that keep too little, or hide too much: each is found by replay. The right one beside them is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_runtime.executors.simulated import SimulatedExecutor, mix
from omni_runtime.program import Program
from omni_runtime.replay import Recording, RecordLog, play
from omni_runtime.replay import log as log_module
from omni_runtime.replay import redact as redact_module
from omni_runtime.sim import Simulation
from omni_runtime.work import StepResult

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
import toys


def frames(row: Any, slots: Any) -> StepResult:
    """A segment as an array, as the real talker gives it; its end is in column 1."""
    text = row.payload.inputs["text"][0]
    found = np.full((len(text) % 4 + 2, 2), 0.5, np.float32)
    found[:, 1] = 0.0
    found[-1, 1] = 1.0
    return StepResult(items={"frames": found})


def ids(row: Any, slots: Any) -> StepResult:
    """Ids as an array: two kinds of beginnings, so that some are shared."""
    number = int(row.payload.inputs["messages"][0].split()[-1])
    return StepResult(items={"tokens": np.array([mix(number % 2, i) % 90 for i in range(12)] + [number])})


def record(path: Path, redact: bool) -> None:
    sim = Simulation(cards=(toys.CARD,))
    log = RecordLog(Recording(path, redact=redact), sim.core, [toys.CARD])
    fakes = {("toy/host", "tokenize"): ids, ("toy/voice", "utter"): frames}
    sim.up(SimulatedExecutor("x#1", toys.CARD, blocks=80, reuse=True, fakes=fakes))
    for i in range(30):
        program = (toys.text, toys.clauses)[i % 2]()
        stop = ("la lo", "ti") if i % 3 else ()
        sim.submit(program, messages=f"hello {i}", seed=i, think={"max_tokens": 24, "stop": stop})
        sim.run(until=sim.now + 0.006)
    sim.run()
    log.close()


@pytest.mark.parametrize("redact", [False, True])
def test_the_right_recorder(tmp_path: Path, redact: bool) -> None:
    record(tmp_path / "log", redact)
    play(tmp_path / "log").check()


def wrong_tokens(self: Any, state: bytes, tokens: Any, stay: Any) -> tuple[list[int], bytes]:
    return [token if token in stay else 1 << 30 for token in tokens], state


def wrong_stay(self: Any, state: bytes, tokens: Any, stay: Any) -> tuple[list[int], bytes]:
    return [(1 << 30) + int(token) for token in tokens], state


def random_tokens(self: Any, state: bytes, tokens: Any, stay: Any) -> tuple[list[int], bytes]:
    count = self.__dict__.setdefault("count", iter(range(1 << 30, 1 << 31)))
    return [token if token in stay else next(count) for token in tokens], state


MUTANTS: dict[str, tuple[bool, Any, str, Any]] = {
    "arrays without what is looked at": (False, log_module, "told", lambda result, ports: result),
    "all tokens alike": (True, redact_module.Redactor, "_tokens", wrong_tokens),
    "no two tokens alike": (True, redact_module.Redactor, "_tokens", random_tokens),
    "stop tokens hidden": (True, redact_module.Redactor, "_tokens", wrong_stay),
    "stop strings hidden": (True, redact_module, "Mask", lambda stops: REAL_MASK(())),
    "pieces hidden": (True, REAL := redact_module.Mask, "feed", lambda self, piece: b"x" * len(piece)),
    "pieces dropped": (True, REAL, "feed", lambda self, piece: b""),
}
REAL_MASK: Callable[..., Any] = redact_module.Mask


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    redact, where, what, mutant = MUTANTS[name]
    monkeypatch.setattr(where, what, mutant)
    record(tmp_path / "log", redact)
    assert play(tmp_path / "log").difference is not None


@pytest.mark.parametrize("forgets", [False, True])
def test_a_conversation_that_goes_on(tmp_path: Path, forgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that holds an earlier prompt and its answer shares both with it; a redactor that draws answers alone is found."""
    if forgets:
        monkeypatch.setattr(redact_module.Redactor, "_prompt", lambda *_: b"other")
    program = Program("talk", toys.CARD)
    program.output("tokens", program.loop("think", prompt=program.input("prompt")).tokens)
    sim = Simulation(cards=(toys.CARD,))
    log = RecordLog(Recording(tmp_path / "log", redact=True), sim.core, [toys.CARD])
    sim.up(SimulatedExecutor("x#1", toys.CARD, reuse=True, stops=0))
    prompt = [5, 6, 7, 8, 9]
    for seed in range(3):
        handle = sim.submit(program, prompt=prompt, seed=seed, max_tokens=9)
        sim.run()
        prompt += [*handle.chunks["tokens"], 3]
    log.close()
    assert handle.end.usage["think"]["cached_tokens"] == 20 > len("PPPPPAAAAAAAAA3")
    assert (play(tmp_path / "log").difference is not None) is forgets
