"""Requests alone, and in crowds that are cut, ordered and preempted by dice; and whether they say the same to the bit."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from forced import Preempting

from omni_runtime.card import ModelCard, OpLimits
from omni_runtime.executors.lineup import lineup
from omni_runtime.program import Program
from omni_runtime.runtime import Runtime

Bits = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """A program, and requests to it by name."""

    program: Any  # Program of a card
    card: ModelCard
    asked: Mapping[str, Mapping[str, Any]]

    def cut(self, seed: int) -> ModelCard:
        """The card with limits by dice: places in a batch, its size, and a chunk of one prompt or stream."""
        dice = random.Random(seed)

        def limits(before: OpLimits) -> OpLimits:
            size = dice.randint(5, 24)
            return OpLimits(units=dice.randint(2, 8), size=size, chunk=dice.randint(3, size), cost=before.cost)

        experts = {
            name: spec.model_copy(update={"ops": {op: limits(before) for op, before in spec.ops.items()}})
            for name, spec in self.card.experts.items()
        }
        return self.card.model_copy(update={"experts": experts})

    def alone(self, threads: int = 1, mode: bool = True) -> dict[str, Bits]:
        """One after the other, undisturbed."""
        made: Program = self.program(self.card)
        with Runtime(made.cards.values(), threads=threads, batch_invariant=mode) as runtime:
            return {name: bits(runtime.submit(made, **asked).result(120)) for name, asked in self.asked.items()}

    def together(
        self,
        seed: int,
        threads: int = 1,
        mode: bool = True,
        share: float = 0.05,
        copies: int = 1,
        kind: str = "loopback",
    ) -> dict[str, list[Bits]]:
        """All at once in drawn order, cut and preempted; `copies` of each."""
        made: Program = self.program(self.cut(seed) if seed else self.card)
        given = lineup(list(made.cards.values()), kind, threads=threads, batch_invariant=mode)  # type: ignore[arg-type]
        order = [name for name in self.asked for _ in range(copies)]
        random.Random(seed).shuffle(order)
        with Runtime(made.cards.values(), executors=[Preempting(one, share, seed) for one in given]) as runtime:
            handles = [(name, runtime.submit(made, **self.asked[name])) for name in order]
            results = [(name, handle.result(240)) for name, handle in handles]
            assert not share or any(result.rebuilt for _, result in results), "nothing was lost"
            assert runtime.idle
        found: dict[str, list[Bits]] = {name: [] for name in self.asked}
        for name, result in results:
            found[name].append(bits(result))
        return found


def bits(result: Any) -> Bits:
    """The outputs of a result, arrays as their bytes; previews and progress may come in other pieces, so they are one."""
    return {name: _plain(value) for name, value in result.outputs.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return repr(value)


def differ(alone: Mapping[str, Bits], together: Mapping[str, list[Bits]]) -> list[str]:
    """Request and output of all that is not what it is alone."""
    return [
        f"{name}: {output}"
        for name, found in together.items()
        for one in found
        for output, value in one.items()
        if value != alone[name][output]
    ]
