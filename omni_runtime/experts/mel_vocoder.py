"""A decoder of feature frames that looks some frames back and ahead, as an expert: op `decode_audio` keeps nothing.

Each step brings the frames around those whose sound it wants. Rows are decoded one by one: what is wanted of each is another
stretch, and nothing is won by company, since a row alone keeps all threads busy (`kernels/cpu_sound.py`).

Suffixes: T frames, M numbers of a frame, S samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from omni_runtime.errors import RequestError
from omni_runtime.experts.base import Launched, Op
from omni_runtime.experts.later import Later, launches, settled
from omni_runtime.experts.linear import varies
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.staging import Reading, Staging
from omni_runtime.work import AudioStep, Row, StepResult


class Shape(Protocol):
    """Of what goes in and out."""

    @property
    def mels(self) -> int: ...
    @property
    def hop(self) -> int: ...


class Decodes(Protocol):
    """A model; `back` and `ahead` are the frames around some that their sound depends on."""

    @property
    def config(self) -> Shape: ...

    back: int
    ahead: int
    exact: bool  # a sample does not tell in which piece it came, to the bit
    device: torch.device

    def piece(self, first: int, frames_TM: torch.Tensor, start: int, stop: int) -> torch.Tensor: ...


class MelVocoder:
    """The expert."""

    def __init__(self, model: Decodes) -> None:
        self.model, self.late = model, launches(model.device)
        self._staging = Staging(model.device)
        self.ops: Mapping[str, Op] = {"decode_audio": self.decode_audio}
        self.invariant = frozenset(self.ops if model.exact else ())
        self.varies = "" if model.exact else varies(model.device)

    def decode_audio(self, rows: Sequence[Row], slots: Slots) -> list[StepResult] | Launched:
        """Port "samples": float32 [size · hop] within -1..1.

        Raises:
            RequestError: frames that are not this model's, or too few around those that are wanted.
        """
        given = [self._frames(row) for row in rows]
        sent = self._staging.send({str(i): frames_TM for i, (_, frames_TM) in enumerate(given)}).values()
        waves = [
            self.model.piece(step.start - step.back, frames_TM, step.start, step.start + step.size)
            for (step, _), frames_TM in zip(given, sent, strict=True)
        ]

        def read(*found: torch.Tensor) -> list[StepResult]:
            return [StepResult(items={"samples": wave_S.numpy()}) for wave_S in found]

        return settled(Later(Reading(*waves), read), self.late)

    def _frames(self, row: Row) -> tuple[AudioStep, np.ndarray[Any, np.dtype[np.float32]]]:
        """frames_TM of a step, of the model's shape."""
        step, model = row.payload, self.model
        if not isinstance(step, AudioStep):
            raise RequestError(f"loop {row.loop!r}: op 'decode_audio' needs an AudioStep, got {type(step).__name__}")
        at = f"loop {row.loop!r}: frames {step.start} to {step.start + step.size}"
        try:
            frames_TM = np.asarray(step.frames, np.float32)
        except (TypeError, ValueError):
            raise RequestError(f"{at}: rows of {model.config.mels} numbers each are needed") from None
        if frames_TM.ndim != 2 or frames_TM.shape[1] != model.config.mels or not np.isfinite(frames_TM).all():
            raise RequestError(f"{at}: of shape {frames_TM.shape}; rows of {model.config.mels} finite numbers are needed")
        if step.start < 0 or step.size < 1 or not min(step.start, model.back) <= step.back <= step.start:
            raise RequestError(
                f"{at}, back={step.back}: at least one frame, with {model.back} before it or all that are; "
                f"the card's loop needs behind={model.back}"
            )
        ahead = len(frames_TM) - step.back - step.size
        if ahead < (0 if step.last else model.ahead):
            raise RequestError(
                f"{at}: {len(frames_TM)} rows, of which {step.back} before, leave {ahead} ahead; {model.ahead} are needed where "
                f"last is false, so the card's loop needs ahead={model.ahead}"
            )
        return step, frames_TM
