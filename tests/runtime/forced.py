"""Executors that take a run's state away on purpose: preempted, or killed with a unit in flight."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from typing import Any

from omni_runtime.executors.base import Executor
from omni_runtime.work import (
    Answer,
    ArStep,
    AudioStep,
    CallStep,
    DenoiseStep,
    ExecutorUp,
    FlowStep,
    Message,
    Payload,
    Preempt,
    Report,
    RunBatch,
    TalkStep,
)


def reach(payload: Payload) -> int:
    """How far a loop is after a step."""
    if isinstance(payload, ArStep):
        return payload.start + len(payload.tokens)
    if isinstance(payload, AudioStep | TalkStep):
        return payload.start + payload.size
    if isinstance(payload, FlowStep):
        return payload.chunk * payload.calls + payload.call + 1
    if isinstance(payload, DenoiseStep):
        return payload.step + 1
    assert isinstance(payload, CallStep)
    return payload.index + 1


class Wrapped:
    """An executor as it is."""

    def __init__(self, inner: Any) -> None:
        self.inner: Executor = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def start(self, report: Callable[[Report], None]) -> ExecutorUp:
        self.report = report
        return self.inner.start(self.hear)

    def hear(self, report: Report) -> None:
        self.report(report)

    def send(self, message: Message) -> None:
        self.inner.send(message)


class Preempting(Wrapped):
    """Preempts a run after every unit that took one of its loops further than it ever was, or after a share of them."""

    def __init__(self, inner: Any, share: float = 1.0, seed: int = 0) -> None:
        super().__init__(inner)
        self.share, self.dice = share, random.Random(seed)
        self.rows: dict[int, list[tuple[int, str, int]]] = {}
        self.furthest: dict[tuple[int, str], int] = {}
        self.preempted = 0

    def send(self, message: Message) -> None:
        if isinstance(message, RunBatch):
            self.rows[message.batch] = [(row.run, row.loop, reach(row.payload)) for row in message.rows]
        super().send(message)

    def hear(self, report: Report) -> None:
        super().hear(report)
        if isinstance(report, Answer):
            for run, loop, end in self.rows.pop(report.batch):
                if end > self.furthest.get((run, loop), 0):
                    self.furthest[run, loop] = end
                    if self.dice.random() >= self.share:
                        continue
                    self.preempted += 1
                    self.report(Preempt(run))  # type: ignore[arg-type]  # the inbox takes inputs of any kind


class Killing(Wrapped):
    """Kills the worker process once for every run, with a unit of it in flight: its `nth`, drawn."""

    def __init__(self, inner: Any, seed: int, most: int) -> None:
        super().__init__(inner)
        self.dice, self.most = random.Random(seed), most
        self.left: dict[int, int] = {}  # run -> its units until then
        self.killed: list[tuple[int, str]] = []

    def send(self, message: Message) -> None:
        super().send(message)
        if not isinstance(message, RunBatch) or message.executor != self.inner.name:
            return
        for row in message.rows:
            left = self.left.setdefault(row.run, self.dice.randint(1, self.most))
            self.left[row.run] = left - 1
            if left == 1 and self.inner.pid is not None:
                self.killed.append((row.run, row.loop))
                os.kill(self.inner.pid, signal.SIGKILL)
                break
