"""Recorded runs of the toy programs on a virtual clock, and an observer that counts by itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omni_runtime.core import Core
from omni_runtime.executors.simulated import Cost, SimulatedExecutor
from omni_runtime.observe.recorder import Recorder
from omni_runtime.sim import Simulation
from omni_runtime.work import Command, RunBatch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from toys import CARD, PROGRAMS

NAMES = list(PROGRAMS)
COSTS = {("toy/mot", "forward"): Cost(0.002, 0.0, 0.0005), ("toy/mot", "denoise"): Cost(0.005)}


class Counter:
    """Every (run, loop, batch) that was sent, straight from the commands, and its rank as the scheduler has it."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, str, int]] = []
        self.dues: list[float] = []
        self.core: Core | None = None

    def see(self, now: float, inputs: Sequence[Any], said: Sequence[Any], commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, RunBatch):
                self.sent += [(row.run, row.loop, command.batch) for row in command.rows]
                assert self.core is not None
                books = self.core.scheduler.runs
                self.dues += [books[row.run].offers[row.loop].due for row in command.rows]


def host(**options: Any) -> SimulatedExecutor:
    return SimulatedExecutor("host#1", CARD, experts=("toy/host",), **options)


def device(**options: Any) -> SimulatedExecutor:
    experts = ("toy/mot", "toy/talker", "toy/voice")
    return SimulatedExecutor("gpu#1", CARD, **{"experts": experts, "blocks": 18, "costs": COSTS, **options})


def busy(recorder: Recorder, *others: Any, runs: int = 12, label: str = "user {}", slots: int = 1) -> Simulation:
    """Requests of every program, a millisecond apart, one of them cancelled, in memory that is too small for all."""
    sim = Simulation(host(), device(slots=slots), cards=(CARD,), observers=[recorder, *others])
    for other in others:
        other.core = sim.core
    for i in range(runs):
        sim.submit(PROGRAMS[NAMES[i % len(NAMES)]], seed=i, messages="hi", label=label.format(i))
        sim.run(until=sim.now + 0.001)
    sim.cancel(4)
    sim.run()
    assert not [h for h in sim.handles.values() if h.end is None]
    return sim
