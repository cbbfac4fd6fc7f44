"""How a stream of codes is cut into chunks that an ODE makes mel frames of, and the points of that ODE.

A chunk is integrated from noise, together with `ahead` blocks after it, which are computed and thrown away. What its velocities
need of the block before is kept by the expert, call by call, from when that block was integrated. So the past costs nothing and
is what it was; only that blocks further ahead are not known yet makes a stream differ from one call over all codes (designs/0023
has the numbers). A chunk depends on the codes up to its window's end and on the noise of its frames, not on when codes came. What
was kept and is lost is made again from the stream's beginning; or a chunk is made by itself, with `back` blocks before it, and
then only nearly the same.

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
    ahead: int = 1
    back: int = 0  # blocks before a chunk that are computed again, where nothing of them is kept
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
