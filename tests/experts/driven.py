"""Loops as they are, whose units an op runs: in steps of any size, in company, again after a raise, again from the beginning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from omni_runtime.channel import Channel, Reader
from omni_runtime.errors import RequestError
from omni_runtime.experts.base import Op, verified
from omni_runtime.experts.slots import Slots
from omni_runtime.loop import Context
from omni_runtime.loops import LOOPS
from omni_runtime.work import Done, Row, StepResult, WorkUnit


class Line:
    """A loop on channels that a test fills, and what it pushed."""

    def __init__(self, run: int, spec: Any, params: Any, channels: Mapping[str, Channel], seed: int = 0, node: int = 1) -> None:
        self.run, self.loop, self.channels = run, LOOPS[spec.kind], channels
        readers = {name: Reader(channel) for name, channel in channels.items()}
        told = {"run": run, "loop": spec.kind, "node": node, "spec": spec, "expert": "toy/voice", "block": 4, "readers": readers}
        self.state = self.loop.init(Context(**told, params=params, wants=frozenset(spec.ports), seed=seed))
        self.name, self.size, self.over, self.again = spec.kind, 0, False, 0
        self.pushed: dict[str, list[Any]] = {port: [] for port in spec.ports}

    def row(self, size: int) -> Row | None:
        """Its next unit, of at most that size."""
        unit = self.loop.next(self.state)
        if not isinstance(unit, WorkUnit):
            self.over = isinstance(unit, Done)
            return None
        self.size = min(size, unit.hi)
        return Row(self.run, self.name, self.size, 0, (), self.loop.bind(self.state, self.size))

    def took(self, result: StepResult) -> None:
        for push in self.loop.advance(self.state, self.size, result):
            known = self.pushed[push.port]
            assert push.start <= len(known)
            for now, before in zip(push.items, known[push.start :], strict=False):
                assert np.allclose(now, before, rtol=0, atol=2e-5), f"{push.port}: something else when made again"
                self.again += 1
            known += list(push.items)[len(known) - push.start :]


class Flaky:
    """A model of which every so many calls of `name` are done, and then raise."""

    def __init__(self, model: Any, name: str, every: int) -> None:
        self._model, self._name, self._every, self.calls = model, name, every, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        if name != self._name:
            return found

        def call(*args: Any) -> Any:
            done = found(*args)
            self.calls += 1
            if self.calls % self._every == 0:
                raise ArithmeticError("planted")
            return done

        return call


def drive(
    op: Op,
    lines: Sequence[Line],
    slots: Slots,
    seed: int,
    most: int = 12,
    feed: Callable[[Random], None] | None = None,
    bad: Row | None = None,
    losses: int = 0,
) -> None:
    """Runs all lines to their end, in an order that `seed` draws.

    Args:
        most: size of a step.
        feed: called before each batch: what else comes into channels.
        bad: a row that must be refused, put into some batches.
        losses: how often a line loses what is kept of it.
    """
    rng, idle = Random(seed), 0
    while not all(line.over for line in lines):
        if feed is not None:
            feed(rng)
        chosen = [line for line in lines if not line.over and rng.random() < 0.7]
        rng.shuffle(chosen)
        pairs = [(line, row) for line in chosen if (row := line.row(rng.randint(1, most))) is not None]
        idle = 0 if pairs else idle + 1
        assert idle < 1000, "nobody has a step to do"
        if not pairs:
            continue
        rows = [row for _, row in pairs]
        if bad is not None and rng.random() < 0.2:
            at = rng.randint(0, len(rows))
            with pytest.raises(RequestError):
                op([*rows[:at], bad, *rows[at:]], slots)
        try:
            results = verified(op(rows, slots), rows)
        except ArithmeticError:
            results = verified(op(rows, slots), rows)
        for (line, _), result in zip(pairs, results, strict=True):
            line.took(result)
        if losses and rng.random() < 0.15:
            line = rng.choice(lines)
            slots.drop(line.run, line.name)
            line.loop.rebuild(line.state)
            losses -= 1
