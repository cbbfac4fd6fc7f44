"""Requests to a tiny omni model in batches and chunks of drawn sizes, preempted all the time, on worker processes that die: what
each hears is what its reference says to it alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from forced import Killing, Preempting
from omni_runtime.programs.omni import omni

from omni_runtime.card import ModelCard, OpLimits
from omni_runtime.executors.lineup import lineup
from omni_runtime.executors.process import ProcessExecutor
from omni_runtime.runtime import Runtime


class Torn(NamedTuple):
    """A family's cards with drawn sizes."""

    oracle: Any  # a module with ASKED, CARD, `wish` and `same`
    most: Mapping[str, int]  # of one batch of an op: tokens, frames, calls
    workers: Mapping[str, list[str]]  # three of them, its parts apart

    def card(self, seed: int) -> ModelCard:
        """Drawn limits: places in a batch, its size, and a chunk of one prompt or stream. Prompts have 30 to 150 tokens, so each
        is cut wherever it happens, in the middle of a picture too."""
        dice, card = random.Random(seed), self.oracle.CARD

        def limits(op: str, before: OpLimits) -> OpLimits:
            size = dice.randint(1, self.most[op])
            return OpLimits(units=dice.randint(1, size), size=size, chunk=dice.randint(1, size), cost=before.cost)

        experts = {
            name: spec.model_copy(update={"ops": {op: limits(op, before) for op, before in spec.ops.items()}})
            for name, spec in card.experts.items()
        }
        found: ModelCard = card.model_copy(update={"experts": experts})
        return found

    def preempted(self, seed: int) -> None:
        """Three requests, preempted after a twentieth of their units: after each, a prompt in chunks of one is 10,000 units."""
        card = self.card(seed)
        made = lineup([card], "loopback", workers=self.workers if seed % 2 else None, threads=1)
        names = random.Random(seed).sample(sorted(self.oracle.ASKED), 3)
        with Runtime([card], executors=[Preempting(executor, 0.05, seed) for executor in made]) as runtime:
            handles = [runtime.submit(omni(card), **self.oracle.wish(name)) for name in names]
            results = [handle.result(120) for handle in handles]
            assert any(result.rebuilt for result in results), "nothing was lost"
            for name, result in zip(names, results, strict=True):
                self.oracle.same(result, name)
            assert runtime.idle

    def killed(self, seed: int) -> None:
        """All requests at once, each worker killed with units in flight."""
        card = self.card(seed)
        made = lineup([card], "process", workers=self.workers, threads=1)
        killing = [Killing(one, at, 9) if isinstance(one, ProcessExecutor) and at < 3 else one for at, one in enumerate(made)]
        with Runtime([card], executors=killing) as runtime:
            handles = {name: runtime.submit(omni(card), **self.oracle.wish(name)) for name in self.oracle.ASKED}
            for name, handle in handles.items():
                self.oracle.same(handle.result(120), name)
            assert runtime.idle
        deaths = sum(len(one.killed) for one in killing if isinstance(one, Killing))
        assert deaths >= 2, "nobody died"
