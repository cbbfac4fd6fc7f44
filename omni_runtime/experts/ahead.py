"""Steps that are queued before they are asked for: while the host hears of one token, the device is at the next.

After a step was queued, so is the next one of the same rows, fed with tokens that nobody has read yet. When that step is asked
for, its result is there or on its way; a step that is not asked for as it was foreseen is void. A void step changes nothing: what
it writes lies beyond what its sequence holds, in a block that was the sequence's own when it was queued, and before all that is
queued later, so whoever is given that place writes it before reading it.

What was foreseen is kept with the state of its loop, and is gone with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from omni_runtime.draw import Draw
from omni_runtime.experts.steps import From, Step, Steps


class Foreseen(NamedTuple):
    """A step that was queued, and what it stands and falls with."""

    start: int
    turned: float
    slot: int  # where it wrote
    how: Draw
    number: int
    fed: From  # the token that it was fed
    gives: From


@dataclass
class Counts:
    """Steps that were queued ahead."""

    hits: int = 0
    void: int = 0


class Ahead:
    """Queues steps, and the ones after them.

    Args:
        steps: queues them.
        positions: that the model has.
    """

    def __init__(self, steps: Steps, positions: int) -> None:
        self._steps, self._positions = steps, positions
        self.counts = Counts()

    def take(self, step: Step, foreseen: Foreseen | None) -> From | None:
        """The result of a step, if it is the one that was foreseen."""
        if foreseen is None:
            return None
        fed, cache = foreseen.fed, step.cache
        same = (foreseen.start, foreseen.turned, foreseen.number) == (step.start, step.turned, step.number)
        same = same and foreseen.how == step.how
        same = same and foreseen.slot == cache.slot(step.start)
        # A token that was not read was not answered: whoever says it was drawn guesses.
        same = same and fed.tokens.host is not None and fed.tokens.host[0][fed.row] == step.token
        assert not same or cache.length == step.start, f"foreseen at {step.start}, but the cache holds {cache.length} positions"
        self.counts.hits += same
        self.counts.void += not same
        return foreseen.gives if same else None

    def run(self, steps: Sequence[Step]) -> list[From]:
        """Queues steps, those of one batch."""
        tokens = self._steps.queue(steps)
        return [From(tokens, row) for row in range(len(steps))]

    def foresee(self, steps: Sequence[Step], given: Sequence[From]) -> list[Foreseen | None]:
        """Queues the steps after those that were just queued or taken, where they fit into blocks that their sequences have."""
        fits = [at for at, step in enumerate(steps) if step.start + 2 <= self._positions and step.start + 1 < step.cache.room]
        if not fits:
            return [None] * len(steps)
        after = [_next(steps[at]) for at in fits]
        tokens = self._steps.queue(after, [given[at] for at in fits])
        found: list[Foreseen | None] = [None] * len(steps)
        for row, (at, step) in enumerate(zip(fits, after, strict=True)):
            gives = From(tokens, row)
            found[at] = Foreseen(step.start, step.turned, step.cache.slot(step.start), step.how, step.number, given[at], gives)
        return found


def _next(step: Step) -> Step:
    """The step after; its token is not known."""
    return step._replace(start=step.start + 1, turned=step.turned + 1, token=-1, number=step.number + 1)
