"""Frames to samples, chunk by chunk. Look-ahead is peeked and never consumed, so there is no flush unit and no end flag.

A decoder that keeps no state is given the frames before a step again (`behind`), and has nothing to lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from omni_runtime.channel import Reader
from omni_runtime.loop import DONE, Context, Fixed
from omni_runtime.loops.items import checked
from omni_runtime.work import AudioStep, Done, Draw, Push, StepResult, Summary, Wait, WorkUnit

WAIT_FRAMES = Wait("frames")


class AudioState:
    """Where a stream of frames stands."""

    __slots__ = ("ctx", "cut", "done", "draw", "frames", "kind", "origin", "scanned")

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.kind = ctx.kind()
        self.draw = Draw(ctx.seed, ctx.node)
        self.frames: Reader = ctx.readers["frames"]
        self.scanned = 0
        self.cut = 0  # one past the last frame known to end a segment
        self.origin = 0  # frame at which what the executor keeps begins
        self.done = 0  # frames whose sound was pushed


class AudioDecodeLoop(Fixed):
    """Steps of 1..n frames."""

    def init(self, ctx: Context) -> AudioState:
        return AudioState(ctx)

    def next(self, s: AudioState) -> WorkUnit | Wait | Done:
        frames = s.frames
        ready = frames.available
        if frames.ended:
            if ready == 0:
                return DONE
        elif (mark := s.ctx.spec.mark) is not None:
            self._scan(s, mark)
            ready = max(ready - s.ctx.spec.ahead, s.cut - frames.cursor)
        else:
            ready -= s.ctx.spec.ahead
        if ready <= 0:
            return WAIT_FRAMES
        return WorkUnit(s.ctx.run, s.ctx.loop, s.kind, 1, ready, frames.cursor, frames.cursor)

    @staticmethod
    def _scan(s: AudioState, mark: int) -> None:
        items = s.frames.channel.items
        for at in range(s.scanned, len(items)):
            if items[at][mark]:
                s.cut = at + 1
        s.scanned = len(items)

    def bind(self, s: AudioState, size: int, reused: int = 0) -> AudioStep:
        at, items = s.frames.cursor, s.frames.channel.items
        back = min(at, s.ctx.spec.behind or 0)
        end = at + size + s.ctx.spec.ahead
        frames: Any = tuple(items[at - back : end])
        if back and isinstance(frames[0], np.ndarray):  # one array on its way, not a hundred
            frames = np.stack(frames)
        fresh = at == s.origin or s.ctx.spec.behind is not None
        return AudioStep(at, size, frames, s.frames.ended and end >= len(items), s.draw, fresh, back)

    def advance(self, s: AudioState, size: int, result: StepResult) -> Sequence[Push]:
        hop, lag = s.ctx.spec.hop, s.ctx.spec.lag
        begins = s.frames.cursor == s.origin
        start = s.frames.cursor * hop - (0 if begins else lag)
        samples = checked("samples", "samples", result.items["samples"])
        if len(samples) != size * hop - (lag if begins else 0):
            less = f" - {lag}" if lag and begins else ""
            raise ValueError(f"{s.ctx.loop}: {size} frames gave {len(samples)} samples, not {size} x {hop}{less}")
        s.frames.take(size)
        s.done = max(s.done, s.frames.cursor)
        return (Push("samples", start, samples),)

    def rebuild(self, s: AudioState) -> None:
        """Back to the beginning of the segment: it can be decoded alone. Or so far that nothing before can be heard any more: the
        next sample is `lag` before the next frame, so it may be of the frame before. What is wrong until then was pushed."""
        at, mark, reach = s.frames.cursor, s.ctx.spec.mark, s.ctx.spec.reach
        if s.ctx.spec.behind is not None:
            return
        if reach is not None:
            at = max(0, s.done - reach - bool(s.ctx.spec.lag))
            s.frames.rewind(at)
            s.origin = at
            return
        while at and (mark is None or not s.frames.channel.items[at - 1][mark]):
            at -= 1
        s.frames.rewind(at)
        s.origin = at

    def finalize(self, s: AudioState) -> Summary:
        return Summary("done", {"frames": s.done, "samples": max(0, s.done * s.ctx.spec.hop - s.ctx.spec.lag)})
