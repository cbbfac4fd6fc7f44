"""Denoising: one unit a step, all guidance branches of it together, so that units of one resolution batch freely.

A step carries the noise levels that it goes from and to, so trajectories of different lengths and schedules meet in a batch. What
is the same for all steps of a request, its conditioning, goes by slot name and by tensor name: nothing is found by its place in
a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_runtime.loop import DONE, Context, Fixed
from omni_runtime.loops.flow_match import levels, timestep
from omni_runtime.work import DenoiseStep, Done, Draw, Push, StepResult, Summary, Wait, WorkUnit


class DenoiseState:
    """Where a trajectory stands."""

    __slots__ = (
        "branches",
        "cells",
        "ctx",
        "draw",
        "every",
        "kind",
        "levels",
        "origin",
        "previews",
        "saved",
        "size",
        "step",
        "steps",
        "told",
    )

    def __init__(self, ctx: Context) -> None:
        spec, params = ctx.spec, ctx.params
        self.ctx = ctx
        self.steps: int = params.steps
        self.step = 0
        self.size: tuple[int, int, int] = spec.raster.latent(params.width, params.height)
        _, rows, columns = self.size
        self.cells = float(rows * columns)
        self.levels = levels(spec.schedule, self.steps, (rows // spec.raster.patch) * (columns // spec.raster.patch))
        self.branches: int = spec.branches if params.guidance_scale > 1.0 else 1
        self.kind = ctx.kind(self.size)
        self.draw = Draw(ctx.seed, ctx.node)
        self.every: int = params.preview_every if "preview" in ctx.wants else 0
        self.previews = 0  # pushed
        self.saved: tuple[int, Any] = (0, None)  # steps done, and the latent after them
        self.origin: int | None = None  # the step that begins with what was saved
        self.told = 0  # steps of which all is said

    @property
    def keep(self) -> tuple[str, ...]:
        """Ports that the next step fills."""
        done = self.step + 1
        if done == self.steps:
            return ("latent",) if "latent" in self.ctx.wants else ()
        return ("preview",) if self.every and done % self.every == 0 and done > self.told else ()

    @property
    def save(self) -> bool:
        """Whether the latent after the next step is to be kept here."""
        every, done = self.ctx.spec.save_every, self.step + 1
        return bool(every) and done % every == 0 and self.saved[0] < done < self.steps


class DenoiseLoop(Fixed):
    """Steps that are all or nothing: `lo == hi == branches`."""

    def init(self, ctx: Context) -> DenoiseState:
        return DenoiseState(ctx)

    def next(self, s: DenoiseState) -> WorkUnit | Wait | Done:
        if s.step == s.steps:
            return DONE
        return WorkUnit(s.ctx.run, s.ctx.loop, s.kind, s.branches, s.branches, 0, s.step, weight=s.cells)

    def bind(self, s: DenoiseState, size: int, reused: int = 0) -> DenoiseStep:
        sigma = s.levels[s.step]
        return DenoiseStep(
            step=s.step,
            steps=s.steps,
            sigma=sigma,
            target=s.levels[s.step + 1],
            timestep=timestep(s.ctx.spec.schedule, sigma),
            guidance_scale=s.ctx.params.guidance_scale,
            size=s.size,
            draw=s.draw,
            conditioning={name: reader.peek() for name, reader in s.ctx.readers.items()},
            keep=s.keep,
            latent=s.saved[1] if s.step == s.origin else None,
            save=s.save,
        )

    def advance(self, s: DenoiseState, size: int, result: StepResult) -> Sequence[Push]:
        keep = s.keep
        if s.save:
            s.saved = (s.step + 1, result.items["latent"])
        s.step += 1
        pushes = [Push("progress", s.step - 1, (s.step / s.steps,))]
        if "preview" in keep:
            pushes.append(Push("preview", s.previews, result.tensors["preview"]))
            s.previews += 1
        if "latent" in keep:
            pushes.append(Push("latent", 0, result.tensors["latent"]))
        return pushes

    def rebuild(self, s: DenoiseState) -> None:
        """Back to the latent that was saved last, or to the noise that follows from the seed."""
        s.told = max(s.told, s.step)
        s.step = s.origin = s.saved[0]

    def finalize(self, s: DenoiseState) -> Summary:
        return Summary("done", {"steps": max(s.step, s.told)})
