"""Denoising: one unit a step, all guidance branches of it together, so that units of one resolution batch freely."""

from __future__ import annotations

from collections.abc import Sequence

from omni_runtime.loop import DONE, Context, Fixed
from omni_runtime.work import DenoiseStep, Done, Draw, Push, StepResult, Summary, Wait, WorkUnit


class DenoiseState:
    """Where a trajectory stands."""

    __slots__ = ("ctx", "draw", "kind", "step", "steps")

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.steps: int = ctx.params.steps
        self.step = 0
        self.kind = ctx.kind(tuple(ctx.params.size))
        self.draw = Draw(ctx.seed, ctx.node)


class DenoiseLoop(Fixed):
    """Steps that are all or nothing: `lo == hi == branches`."""

    def init(self, ctx: Context) -> DenoiseState:
        return DenoiseState(ctx)

    def next(self, s: DenoiseState) -> WorkUnit | Wait | Done:
        if s.step == s.steps:
            return DONE
        rows = s.ctx.spec.branches
        return WorkUnit(s.ctx.run, s.ctx.loop, s.kind, rows, rows, 0, s.step)

    def bind(self, s: DenoiseState, size: int, reused: int = 0) -> DenoiseStep:
        return DenoiseStep(s.step, s.steps, s.draw, s.ctx.readers["conditioning"].peek(), tuple(s.ctx.params.size))

    def advance(self, s: DenoiseState, size: int, result: StepResult) -> Sequence[Push]:
        s.step += 1
        progress = Push("progress", s.step - 1, (s.step / s.steps,))
        if s.step < s.steps:
            return (progress,)
        return progress, Push("latent", 0, result.tensors["latent"])

    def finalize(self, s: DenoiseState) -> Summary:
        return Summary("done", {"steps": s.step})
