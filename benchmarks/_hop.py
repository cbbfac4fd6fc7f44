"""What a batch's way to an executor and back costs: in a thread, with everything encoded, and in another process."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from omni_runtime.card import ExpertSpec, OpLimits
from omni_runtime.draw import Draw
from omni_runtime.executors.loopback import LoopbackExecutor
from omni_runtime.executors.process import ProcessExecutor
from omni_runtime.executors.thread import ThreadExecutor
from omni_runtime.work import Answer, ArStep, Release, Report, Row, RunBatch, StepResult, TensorRef

# name → units of a batch, floats that come with each, floats that each gives, of which the host gets copies
CASES = {
    "decode_1": (1, 0, 0),
    "decode_8": (8, 0, 0),
    "decode_64": (64, 0, 0),
    "back_7kB_64": (64, 0, 1_792),
    "back_64kB_8": (8, 0, 16_384),
    "back_1MB_1": (1, 0, 262_144),
    "back_1MB_8": (8, 0, 262_144),
    "there_64kB_8": (8, 16_384, 0),
    "there_1MB_1": (1, 262_144, 0),
    "there_1MB_8": (8, 262_144, 0),
}


class Nothing:
    """An expert that does nothing."""

    def __init__(self) -> None:
        self.ops = {"forward": self.forward}
        self.made: dict[int, Any] = {}

    def forward(self, rows: Sequence[Row], slots: Any) -> list[StepResult]:
        found = []
        for row in rows:
            tensors = {}
            if row.size > 1:
                tensor = self.made.setdefault(row.size, np.ones(row.size, np.float32))
                tensors["hidden"] = (slots.keep(row, "hidden", 0, tensor),)
            found.append(StepResult(1005, b" word", {}, tensors))
        return found


def build(options: Mapping[str, Any], device: str) -> Nothing:
    """The builder that the card of the benchmark names."""
    return Nothing()


class Desk:
    """An executor and the answers that came back."""

    def __init__(self, kind: str) -> None:
        sys.path.insert(0, str(Path(__file__).resolve().parent))  # where the worker finds `build`
        specs = {"bench/nothing": ExpertSpec(build="_hop:build", ops={"forward": OpLimits(units=64)})}
        make: Any = ProcessExecutor if kind == "process" else ThreadExecutor
        self.executor = make("cpu#1", specs, {})
        if kind == "loopback":
            self.executor = LoopbackExecutor(self.executor)
        self.answers: SimpleQueue[Report] = SimpleQueue()
        self.executor.start(self.answers.put)
        sys.path.pop(0)

    def trip(self, rows: list[Row], brought: tuple[tuple[TensorRef, Any], ...]) -> float:
        """Seconds from a batch to its answer."""
        start = time.perf_counter()
        self.executor.send(RunBatch("cpu#1", 1, "bench/nothing", "forward", rows, brought))
        answer = self.answers.get()
        spent = time.perf_counter() - start
        assert isinstance(answer, Answer), answer
        refs = tuple(ref for result in answer.results for port in result.tensors.values() for ref in port)
        if refs:
            self.executor.send(Release("cpu#1", refs))
        return spent


@contextmanager
def desks(kinds: Sequence[str]) -> Iterator[dict[str, Desk]]:
    """All of them at once, so that a slow spell of the machine meets them all."""
    made = {kind: Desk(kind) for kind in kinds}
    try:
        yield made
    finally:
        for desk in made.values():
            desk.executor.close()


def batch(units: int, there: int, back: int) -> tuple[list[Row], tuple[tuple[TensorRef, Any], ...]]:
    """Rows of single decode steps, far into an answer."""
    rows = [Row(run, "think", back or 1, 9, (), ArStep(150, (1005,), 40, Draw(run, 1))) for run in range(units)]
    if not there:
        return rows, ()
    value = np.ones(there, np.float32)
    return rows, tuple((TensorRef("gpu#1", run, "think", "hidden", 0, (there,)), value) for run in range(units))


def hops(trips: int = 300, tell: Callable[[str], None] = print) -> dict[str, float]:
    """µs of a batch, by case and kind of executor; and what a process costs more than a thread, a batch and a unit."""
    numbers: dict[str, float] = {}
    tell(f"{'hop, µs a batch':<16} {'units':>6} {'thread':>9} {'loopback':>9} {'process':>9} {'process - thread a unit':>24}")
    with desks(("thread", "loopback", "process")) as made:
        for name, (units, there, back) in CASES.items():
            rows, brought = batch(units, there, back)
            spent: dict[str, list[float]] = {kind: [] for kind in made}
            for trip in range(3 + max(20, min(trips, trips * 100_000 // (units * (there + back + 1))))):
                for kind, desk in made.items():
                    seconds = desk.trip(rows, brought)
                    if trip >= 3:  # the first ones import, and touch memory for the first time
                        spent[kind].append(seconds)
            median = {kind: statistics.median(times) * 1e6 for kind, times in spent.items()}
            more = median["process"] - median["thread"]
            tell(f"{name:<16} {units:>6}" + "".join(f" {median[kind]:>9.0f}" for kind in made) + f" {more / units:>24.1f}")
            numbers |= {f"hop_{kind}_us_{name}": round(value, 1) for kind, value in median.items()}
            numbers[f"hop_ratio_{name}"] = round(median["process"] / median["thread"], 2)
    return numbers
