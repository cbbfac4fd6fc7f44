"""A simulation that remembers its batches, and short ways to ask for things."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stage import CARDS, PROGRAMS

from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.sim import SimHandle, Simulation
from omni_runtime.work import Command, RunBatch, StepResult, Waiting


class Watch(Simulation):
    """One executor that hosts everything, unless others are given."""

    def __init__(
        self,
        *executors: SimulatedExecutor,
        max_runs: int = 20_000,
        policy: str = "deadline",
        tenants: Mapping[str, float] | None = None,
        **options: Any,
    ) -> None:
        self.batches: list[RunBatch] = []
        self.times: list[float] = []
        self.waits: dict[int, list[float | None]] = {}  # what promised requests were told
        super().__init__(
            *(executors or [SimulatedExecutor("x", *CARDS, **options)]),
            cards=CARDS,
            max_runs=max_runs,
            policy=policy,
            tenants=tenants,
        )

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, RunBatch):
            self.batches.append(command)
            self.times.append(self.now)
        if isinstance(command, Waiting):
            self.waits.setdefault(command.run, []).append(command.seconds)
        super()._carry_out(command)

    def step(self, n: int = 1) -> None:
        """n batches more, the one that is done first each time."""
        for _ in range(n):
            if self.busy:
                self.complete(self.busy[0])

    def finish_all(self) -> None:
        """Runs on until everybody has ended and every book is at its baseline."""
        self.run()
        self.core.check()
        self.core.check_idle()
        assert all(handle.end is not None for handle in self.handles.values())
        for executor in self.executors.values():
            assert executor.slots.counts == (0, 0), f"{executor.name} keeps {executor.slots.counts}"

    def where(self, run: int, loop: str = "think") -> list[int]:
        """Numbers of the batches that a loop was in."""
        return [at for at, batch in enumerate(self.batches) if any((r.run, r.loop) == (run, loop) for r in batch.rows)]


def say(sim: Simulation, prompt: int = 1, tokens: int | None = 20, **more: Any) -> SimHandle:
    """A text of so many tokens on a prompt of so many, tokenized already. Give `stops=0` to the executor."""
    think = {"max_tokens": tokens, **more.pop("think", {})}
    return sim.submit(PROGRAMS["prompted"], prompt=list(range(1, prompt + 1)), outputs=("text",), think=think, **more)


def scripted(pieces: list[bytes], then: int | None = 0) -> Callable[[Any, Any], StepResult]:
    """A model that says these pieces one by one, and then a token: 0 is the stop token of the toys."""

    def forward(row: Any, slots: Any) -> StepResult:
        index = row.payload.index
        if index < 0:
            return StepResult()
        if index < len(pieces):
            return StepResult(1000 + index, pieces[index])
        return StepResult(then if then is not None else 1000, b"")

    return forward
