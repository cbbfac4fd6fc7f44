"""A flow as an expert: op `velocity` moves the trajectories of many requests by one velocity each, in one call of the model.

What a loop keeps is its trajectory, and keys and values of the last block of the chunk before, one tensor a call. That of a call
is given up when the same call of this chunk has left its own. So a loop holds those of `calls` calls, never twice as many: 36 of
786 kB in the published shape of Qwen2.5-Omni, which are 28 MB; trajectory and slopes are 0.3 MB. Nothing is ever changed, only
replaced.

What is beside a row in its batch may move its velocity in the last bits, as products of a matrix do: by nothing where layers are
our own kernels or packed, by 1e-6 of its deviation where they are torch's as stored (1024 wide, 4 layers; `linear`).

Suffixes: T frames of a window, M numbers of a frame, K numbers that a speaker is told by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from omni_runtime.errors import RequestError
from omni_runtime.experts.base import Launched, Op
from omni_runtime.experts.flow_window import Moved, Window
from omni_runtime.experts.later import Later, launches, settled
from omni_runtime.experts.philox_noise import frame_noise
from omni_runtime.experts.runge_kutta import Trajectory
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.speakers import by_name
from omni_runtime.experts.staging import Reading, Staging
from omni_runtime.work import FlowStep, Row, StepResult

STREAM = ("calls", "guidance_scale", "draw", "speaker")  # what is the same in all steps of a stream
CHUNK = (*STREAM, "start", "stop", "high", "codes")  # and of a chunk


class Shape(Protocol):
    """Of a model's frames."""

    @property
    def block(self) -> int: ...
    @property
    def repeats(self) -> int: ...
    @property
    def mels(self) -> int: ...


class Moves(Protocol):
    """A model."""

    @property
    def config(self) -> Shape: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def exact(self) -> bool: ...

    def voice(self, condition_K: torch.Tensor, mel_TM: torch.Tensor) -> torch.Tensor: ...

    def velocity(self, windows: Sequence[Window]) -> list[Moved]: ...


@dataclass(frozen=True)
class _Stream:
    """Where a stream stands: `step` has been done."""

    step: FlowStep
    path: Trajectory
    past: tuple[torch.Tensor | None, ...]  # by call of this chunk that is still to come; empty: there is no block before
    kept: tuple[torch.Tensor | None, ...]  # by call of this chunk that is done

    @property
    def next(self) -> tuple[int, int]:
        """Chunk and call that may follow."""
        step = self.step
        return (step.chunk, step.call + 1) if step.call + 1 < step.calls else (step.chunk + 1, 0)


class _Slot:
    """What is kept of one loop."""

    stream: _Stream | None = None


class FlowOp:
    """The expert.

    Args:
        flow: the model.
        speakers: by name, what its `voice` is made of: condition_K and mel_TM.
    """

    def __init__(self, flow: Moves, speakers: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.flow = flow
        self._speakers = {name: (name, *given) for name, given in speakers.items()}
        self._voices: dict[str, torch.Tensor] = {}
        self.late = launches(flow.device)
        self.ops: Mapping[str, Op] = {"velocity": self.velocity}
        self.invariant = frozenset(self.ops if flow.exact else ())

    @torch.inference_mode()
    def velocity(self, rows: Sequence[Row], slots: Slots) -> list[StepResult] | Launched:
        """Port "mel" after the last call of a chunk: float32 [stop - start, M].

        Raises:
            RequestError: a step that contradicts itself or does not follow the one before, a code that is no sound, or a speaker
                that is not there. Nothing has changed then.
            FloatingPointError: a row's frames are not numbers. Nothing has changed then.
        """
        if not rows:
            return []
        assert len({(row.run, row.loop) for row in rows}) == len(rows), "two rows of one loop in a batch"
        steps = [self._step(row) for row in rows]
        held = [slots.state(row, _Slot) for row in rows]
        noise = self._noise(steps)
        streams = [self._stream(slot.stream, step, noise.get(i)) for i, (slot, step) in enumerate(zip(held, steps, strict=True))]
        windows = [self._window(stream, step) for stream, step in zip(streams, steps, strict=True)]
        after: list[_Stream] = []
        ended: dict[int, torch.Tensor] = {}  # rows whose chunk has ended, and its frames
        for step, stream, moved in zip(steps, streams, self.flow.velocity(windows), strict=True):
            path = stream.path.after(moved.velocity_TM, step.width)
            after.append(_Stream(step, path, stream.past[1:], (*stream.kept, moved.kept)))
            if step.call + 1 == step.calls:
                mel_TM = ended[len(after) - 1] = path.x_TM[: step.stop - step.start]
                after[-1] = replace(after[-1], path=Trajectory(mel_TM.new_empty(0, self.flow.config.mels)))

        def read(*mels: torch.Tensor) -> list[StepResult]:
            results = [StepResult() for _ in rows]
            for i, mel_TM in zip(ended, mels, strict=True):
                if not torch.isfinite(mel_TM).all():
                    raise FloatingPointError(f"frames {steps[i].start} to {steps[i].stop} of a flow are not numbers")
                results[i] = StepResult(items={"mel": mel_TM.numpy()})
            for slot, stream in zip(held, after, strict=True):
                slot.stream = stream
            return results

        return settled(Later(Reading(*ended.values()), read), self.late)

    def _stream(self, kept: _Stream | None, step: FlowStep, noise: Trajectory | None) -> _Stream:
        """Where a stream stands before a step; a chunk begins with noise."""
        if not step.chunk and noise is not None:
            return _Stream(step, noise, (), ())
        if kept is None or kept.next != (step.chunk, step.call):
            there = "nothing" if kept is None else "call {1} of chunk {0}".format(*kept.next)
            raise RequestError(
                f"call {step.call} of chunk {step.chunk}: what is kept here goes on with {there}; begin again with chunk 0"
            )
        odd = [name for name in (CHUNK if step.call else STREAM) if getattr(step, name) != getattr(kept.step, name)]
        if not step.call and step.start != kept.step.stop:
            odd.append("start")
        if odd:
            now, then = (", ".join(f"{name}={getattr(one, name)!r}" for name in odd) for one in (step, kept.step))
            raise RequestError(f"call {step.call} of chunk {step.chunk}: {now}, after {then}; begin again with chunk 0")
        return kept if noise is None else _Stream(step, noise, kept.kept, ())

    def _noise(self, steps: Sequence[FlowStep]) -> dict[int, Trajectory]:
        """Of the steps that begin a chunk, by their place."""
        found = {}
        for i, step in enumerate(steps):
            if not step.call:
                noise_TM = frame_noise(step.draw.seed, step.draw.node, step.start, step.high - step.start, self.flow.config.mels)
                found[str(i)] = noise_TM
        return {int(i): Trajectory(x_TM) for i, x_TM in Staging(self.flow.device).send(found).items()} if found else {}

    def _window(self, stream: _Stream, step: FlowStep) -> Window:
        blocks, over = divmod(step.stop - step.start, self.flow.config.block)
        return Window(
            stream.path.point(step.width),
            step.time,
            step.codes,
            self._voice(step.speaker),
            step.guidance_scale,
            step.start,
            stream.past[0] if stream.past else None,
            0 if over else blocks,
        )

    def _voice(self, speaker: str) -> torch.Tensor:
        """voice_2D, made once."""
        name, condition_K, mel_TM = by_name(self._speakers, speaker)
        if name not in self._voices:
            self._voices[name] = self.flow.voice(condition_K, mel_TM)
        return self._voices[name]

    def _step(self, row: Row) -> FlowStep:
        step, c = row.payload, self.flow.config
        if not isinstance(step, FlowStep):
            raise RequestError(f"loop {row.loop!r}: op 'velocity' needs a FlowStep, got {type(step).__name__}")
        at = f"loop {row.loop!r}: call {step.call} of {step.calls} of chunk {step.chunk}"
        if not 0 <= step.call < step.calls or step.calls % 4 or step.chunk < 0:
            raise RequestError(f"{at}: calls count from 0, four for each step of the ODE, chunks from 0")
        if not all(map(math.isfinite, (step.time, step.width, step.guidance_scale))):
            told = f"time={step.time}, width={step.width}, guidance_scale={step.guidance_scale}"
            raise RequestError(f"{at}: {told}: finite numbers needed")
        where = f"frames {step.start} to {step.stop}, looking ahead to {step.high}"
        if not 0 <= step.start < step.stop <= step.high or step.start % c.block or (step.start == 0) != (step.chunk == 0):
            raise RequestError(f"{at}: {where}; a chunk begins with a block of {c.block}, chunk 0 with frame 0")
        if step.stop < step.high and step.stop % c.block:
            raise RequestError(f"{at}: {where}; what is before frames ahead is whole blocks of {c.block}")
        if len(step.codes) * c.repeats != step.high - step.start:
            raise RequestError(f"{at}: {len(step.codes)} codes of {c.repeats} frames each for {where}")
        return step
