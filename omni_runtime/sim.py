"""The core on simulated executors and a virtual clock: the same decisions as in production, in no time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from omni_runtime.card import ModelCard, batch_limits
from omni_runtime.core import Core, Observer
from omni_runtime.program import Program
from omni_runtime.request import Request, resolve
from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.policy import policy_named
from omni_runtime.work import (
    Cancel,
    Chunk,
    Command,
    Drop,
    End,
    ExecutorDown,
    ExecutorUp,
    Input,
    Message,
    OutputEnd,
    Release,
    Report,
    RunBatch,
    Submit,
    Summary,
    Waiting,
)

FIELDS = set(Request.model_fields) - {"seed"}


class SimExecutor(Protocol):
    """What a simulation asks of an executor."""

    @property
    def name(self) -> str: ...

    @property
    def up(self) -> ExecutorUp: ...

    def seconds(self, batch: RunBatch) -> float:
        """How long it is busy with a batch, asked once, when the batch begins."""
        ...

    def run(self, message: Message) -> Report | None:
        """Carries out one message; batches are answered, when their time is over."""
        ...


class Ear(Protocol):
    """Hears all that a simulated request gives."""

    def take(self, now: float, command: Chunk | OutputEnd | Waiting | End) -> None: ...


class SimHandle:
    """What a simulated request gave, by output ("text", and "text#1" for the second sample).

    It checks what every caller relies on: chunks in order, once, and none after the end.
    """

    def __init__(self, run: int, submitted: float) -> None:
        self.run = run
        self.chunks: dict[str, list[Any]] = {}
        self.times: dict[str, list[float]] = {}
        self.ends: dict[str, Summary] = {}
        self.end: End | None = None
        self.waiting: float | None = None
        self.submitted = submitted

    def take(self, now: float, command: Chunk | OutputEnd | Waiting | End) -> None:
        assert self.end is None, f"run {self.run}: {command} after the end"
        if isinstance(command, Waiting):
            self.waiting = command.seconds
            return
        if isinstance(command, End):
            self.end = command
            return
        name = f"{command.output}#{command.sample}" if command.sample else command.output
        assert name not in self.ends, f"run {self.run}: {command} after the end of the output"
        if isinstance(command, OutputEnd):
            self.ends[name] = command.summary
            return
        got = self.chunks.setdefault(name, [])
        assert command.start == len(got), f"run {self.run}: {name} goes on at {command.start}, not at {len(got)}"
        got.extend(command.items.tolist() if isinstance(command.items, np.ndarray) else command.items)
        self.times.setdefault(name, []).append(now)

    def text(self, output: str = "text") -> str:
        return "".join(self.chunks.get(output, ()))


class Simulation:
    """A core, its executors and a clock that jumps from one completion to the next.

    Args:
        executors: that are up from the start.
        max_runs, observers, costs, tenants: see `Core`.
        policy: by name.
    """

    def __init__(
        self,
        *executors: SimExecutor,
        cards: tuple[ModelCard, ...],
        max_runs: int = 20_000,
        observers: Iterable[Observer] = (),
        costs: Costs | None = None,
        policy: str = "deadline",
        tenants: Mapping[str, float] | None = None,
    ) -> None:
        self.core = Core(batch_limits(*cards), max_runs, observers, costs, policy_named(policy), tenants)
        self.now = 0.0
        self.executors: dict[str, SimExecutor] = {}
        self.mail: dict[str, deque[Message]] = {}
        self.finish: dict[str, float] = {}  # when the batch at the head of an executor's mail is done
        self.handles: dict[int, Any] = {}  # SimHandle, or what `hear` makes
        self.runs = 0  # that were submitted
        self.units = 0
        self.trace: list[str] | None = None
        for executor in executors:
            self.up(executor)

    def feed(self, *inputs: Input) -> None:
        for command in self.core.feed(self.now, *inputs):
            if self.trace is not None:
                self.trace.append(repr(command))
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, RunBatch | Release | Drop):
            if command.executor in self.executors:
                self.mail[command.executor].append(command)
                self._clean(command.executor)
            return
        self.handles[command.run].take(self.now, command)

    def _clean(self, name: str) -> None:
        """Carries out what lies before the first batch, and starts that batch."""
        mail = self.mail[name]
        while mail and not isinstance(mail[0], RunBatch):
            self.executors[name].run(mail.popleft())
        if mail and name not in self.finish:
            head = mail[0]
            assert isinstance(head, RunBatch)
            self.finish[name] = self.now + self.executors[name].seconds(head)

    def up(self, executor: SimExecutor) -> None:
        self.executors[executor.name] = executor
        self.mail[executor.name] = deque()
        self.feed(executor.up)

    def down(self, name: str, reason: str = "lost") -> list[RunBatch]:
        """Takes an executor away; returns the batches that it will never answer."""
        late = [m for m in self.mail.pop(name) if isinstance(m, RunBatch)]
        del self.executors[name]
        self.finish.pop(name, None)
        self.feed(ExecutorDown(name, reason))
        return late

    def submit(self, program: Program, *, seed: int = 0, **given: Any) -> Any:
        """As `Runtime.submit`; parameters of `Request` and of the loops are keywords."""
        fields: Mapping[str, Any] = {name: given.pop(name) for name in list(given) if name in FIELDS}
        self.runs += 1
        _, submit = resolve(self.runs, program, 0, given, seed=seed, **fields)
        handle = self.handles[submit.run] = self.hear(submit)
        self.feed(submit)
        return handle

    def hear(self, submit: Submit) -> Ear:
        """What takes the news of a request."""
        return SimHandle(submit.run, self.now)

    def cancel(self, run: int) -> None:
        self.feed(Cancel(run))

    @property
    def busy(self) -> list[str]:
        """Executors with a batch in flight, the first to finish first."""
        return sorted(self.finish, key=lambda name: (self.finish[name], name))

    def complete(self, name: str) -> None:
        """The batch at the head of an executor's mail is done now, or when the clock says so."""
        self.now = max(self.now, self.finish.pop(name))
        batch = self.mail[name].popleft()
        assert isinstance(batch, RunBatch)
        report = self.executors[name].run(batch)
        assert report is not None
        self._clean(name)
        self.units += len(batch.rows)
        self.feed(report)

    def run(self, until: float = float("inf")) -> None:
        """Runs until nothing is in flight, or the clock passes `until` seconds."""
        while (busy := self.busy) and self.finish[busy[0]] <= until:
            self.complete(busy[0])
