"""How a stream of codes is cut into chunks that an ODE makes mel frames of, and the points of that ODE.

A chunk is integrated from noise by itself, in a window: `back` blocks before it and `ahead` blocks after it are computed too and
thrown away. One velocity depends on so many blocks on each side; a whole trajectory on more, so what a stream gives is not what
one call gives, but nearly (the page has the numbers). A window depends on its codes and on the noise of its frames only, and
neither on when codes came nor on how the chunk before went: a chunk that is lost is made again from its codes.

Chunks grow, each at most to 1.5 times the one before, so that one is ready before the last was heard also on a slow device, and
the share of what is thrown away falls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, pi
from typing import NamedTuple

STAGES = (0.0, 1 / 3, 2 / 3, 1.0)  # of a step of Runge and Kutta's 3/8 rule: a velocity each


class Chunk(NamedTuple):
    """Frames low .. high are computed, and start .. stop of them kept."""

    low: int
    start: int
    stop: int
    high: int


@dataclass(frozen=True)
class FlowChunks:
    """The plan. Sizes are in blocks of `block` frames, chunks in frames."""

    block: int
    back: int = 2
    ahead: int = 1
    sizes: tuple[int, ...] = (2, 3, 4, 6, 8)  # the last one goes on for ever

    def chunk(self, number: int, frames: int, ended: bool) -> Chunk | None:
        """Chunk `number` of a stream of which so many frames' codes are there, or None: it needs more, or there is none.

        `ended`: no more will come.
        """
        known = self.sizes[:number]
        first = sum(known) + (number - len(known)) * self.sizes[-1]
        size = self.sizes[min(number, len(self.sizes) - 1)]
        start, stop = first * self.block, (first + size) * self.block
        high = stop + self.ahead * self.block
        if start >= frames or (high > frames and not ended):
            return None
        return Chunk(max(0, start - self.back * self.block), start, min(stop, frames), min(high, frames))

    def chunks(self, frames: int) -> Iterator[Chunk]:
        """All of a stream that has ended."""
        number = 0
        while (found := self.chunk(number, frames, True)) is not None:
            yield found
            number += 1


def sway_times(points: int, sway: float = -1.0) -> list[float]:
    """Points of time from 0 to 1: t + s (cos(π t / 2) - 1 + t) (Chen et al. 2024, "F5-TTS", section 3.3); s = -1 gives early
    times more of them."""
    even = [i / (points - 1) for i in range(points)]
    return [t + sway * (cos(pi / 2 * t) - 1 + t) for t in even]
