"""Codes to feature frames along an ODE, chunk by chunk: each velocity is a unit, so those of many requests share a batch.

Where chunks lie follows from the codes alone (`flow_chunks`). A chunk takes 4 (num_steps - 1) calls, in which an executor keeps
its trajectory, and what the next chunk needs to know of it. Where that is lost, the stream is made again from its beginning, and
what was pushed is pushed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from omni_runtime.channel import Reader
from omni_runtime.draw import Draw
from omni_runtime.loop import DONE, Context, Fixed
from omni_runtime.loops.flow_chunks import STAGES, Chunk, FlowChunks, sway_times
from omni_runtime.work import Done, FlowStep, Push, StepResult, Summary, Wait, WorkUnit

WAIT_CODES, WAIT_SPEAKER = Wait("codes"), Wait("speaker")


class FlowState:
    """Where a stream stands: call `call` of chunk `number`."""

    __slots__ = ("call", "calls", "codes", "ctx", "done", "draw", "kind", "number", "plan", "speaker")

    def __init__(self, ctx: Context) -> None:
        spec, params = ctx.spec, ctx.params
        self.ctx = ctx
        self.kind = ctx.kind()
        self.codes: Reader = ctx.readers["codes"]
        self.speaker: Reader = ctx.readers["speaker"]
        self.plan = FlowChunks(spec.block, spec.ahead, sizes=spec.chunks)
        times = pairwise(sway_times(params.num_steps, params.sway_coefficient))
        self.calls = [(start + stage * (stop - start), stop - start) for start, stop in times for stage in STAGES]  # time, width
        self.draw = Draw(ctx.seed, ctx.node)
        self.number = 0
        self.call = 0
        self.done = 0  # frames that were pushed

    @property
    def chunk(self) -> Chunk | None:
        """The one that is made now; the codes that have come meanwhile do not change it."""
        return self.plan.chunk(self.number, self.codes.channel.tail * self.ctx.spec.repeats, self.codes.ended)


class FlowDecodeLoop(Fixed):
    """Units of one call."""

    def init(self, ctx: Context) -> FlowState:
        return FlowState(ctx)

    def next(self, s: FlowState) -> WorkUnit | Wait | Done:
        chunk = s.chunk
        if chunk is None:
            return DONE if s.codes.ended else WAIT_CODES
        if not s.speaker.channel.tail:
            return WAIT_SPEAKER
        blocks = -(-(chunk.high - chunk.start) // s.ctx.spec.block)
        return WorkUnit(s.ctx.run, s.ctx.loop, s.kind, 1, 1, at=s.number * len(s.calls) + s.call, weight=blocks)

    def bind(self, s: FlowState, size: int, reused: int = 0) -> FlowStep:
        chunk = s.chunk
        assert chunk is not None, "bound without an offer"
        time, width = s.calls[s.call]
        own = s.codes.channel.items[chunk.start // s.ctx.spec.repeats : chunk.high // s.ctx.spec.repeats]
        return FlowStep(
            s.number,
            s.call,
            len(s.calls),
            time,
            width,
            chunk.start,
            chunk.stop,
            chunk.high,
            tuple(int(frame[0]) for frame in own),
            s.ctx.params.guidance_scale,
            s.draw,
            s.speaker.channel.items[0],
        )

    def advance(self, s: FlowState, size: int, result: StepResult) -> Sequence[Push]:
        chunk = s.chunk
        assert chunk is not None
        s.call += 1
        if s.call < len(s.calls):
            return ()
        s.number, s.call = s.number + 1, 0
        mel = np.asarray(result.items["mel"])
        if mel.ndim != 2 or len(mel) != chunk.stop - chunk.start:
            raise ValueError(f"{s.ctx.loop}: frames {chunk.start} to {chunk.stop} came with shape {mel.shape}")
        s.done = max(s.done, chunk.stop)
        if (over := chunk.stop // s.ctx.spec.repeats - s.codes.cursor) > 0:
            s.codes.take(over)
        return (Push("mel", chunk.start, mel),)

    def rebuild(self, s: FlowState) -> None:
        s.number = s.call = 0

    def finalize(self, s: FlowState) -> Summary:
        return Summary("done", {"frames": s.done})
