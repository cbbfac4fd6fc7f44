"""The encoders of an omni folder as experts: what a user sends becomes vectors of the thinker, a call for each sound or picture.

Op `hear` reads input "sounds", one float32 [B, T] of log-mel frames, and keeps port "vectors": one tensor [N, D]. Op `see` reads
input "pictures", one float32 [steps, rows, columns, X] of patches: its shape is the grid, the order within a step is that of
blocks (`patches`). It keeps "vectors" [N, D], and "features" [L, N, D] where the family has such. Neither keeps state, and no
result tells what else was in its batch. Which family it is, the folder tells (`omni_families`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from omni_runtime.errors import RequestError
from omni_runtime.experts.base import Op
from omni_runtime.experts.omni_families import family_of
from omni_runtime.experts.omni_family import Hears, Sees
from omni_runtime.experts.omni_options import read_options
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.staging import Staging
from omni_runtime.work import CallStep, Row, StepResult

Singles = np.ndarray[Any, np.dtype[np.float32]]


class Hearing:
    """An audio encoder, of sounds of at least so many mel frames."""

    def __init__(self, model: Hears, least: int = 1) -> None:
        self.model, self._least = model, least
        self.ops: Mapping[str, Op] = {"hear": self.hear}

    def hear(self, rows: Sequence[Row], slots: Slots) -> list[StepResult]:
        """Vectors for the sound of each row.

        Raises:
            RequestError: a row without exactly one sound of at least the least frames.
        """
        given = [_one(row, "sounds", 2) for row in rows]
        for row, mel_BT in zip(rows, given, strict=True):
            mels = self.model.config.mels
            if mel_BT.shape[0] != mels or mel_BT.shape[1] < self._least:
                needed = f"[{mels}, frames] is needed, frames at least {self._least}"
                raise RequestError(f"loop {row.loop!r}: a sound of {mel_BT.shape}, {needed}")
        found = self.model.encode(_sent(given, self.model.device)) if rows else []
        return [
            StepResult(tensors={"vectors": (slots.keep(row, "vectors", _index(row), vectors_ND),)})
            for row, vectors_ND in zip(rows, found, strict=True)
        ]


class Seeing:
    """A vision encoder."""

    def __init__(self, model: Sees) -> None:
        self.model = model
        self.ops: Mapping[str, Op] = {"see": self.see}

    def see(self, rows: Sequence[Row], slots: Slots) -> list[StepResult]:
        """Vectors and features for the picture or clip of each row.

        Raises:
            RequestError: a row without exactly one picture, or with one that is not cut as this encoder needs it.
        """
        given, c = [_one(row, "pictures", 4) for row in rows], self.model.config
        for row, patches in zip(rows, given, strict=True):
            steps, high, wide, numbers = patches.shape
            if not steps * high * wide or high % c.merge or wide % c.merge or numbers != c.pixels:
                needed = f"[steps, rows, columns, {c.pixels}], rows and columns multiples of {c.merge},"
                raise RequestError(f"loop {row.loop!r}: patches of shape {patches.shape}, {needed} are needed")
        patches_TX = [x.flatten(0, 2) for x in _sent(given, self.model.device)]
        pictures = [(x_TX, (p.shape[0], p.shape[1], p.shape[2])) for x_TX, p in zip(patches_TX, given, strict=True)]
        results = []
        for row, seen in zip(rows, self.model.encode(pictures) if rows else [], strict=True):
            made = {"vectors": seen.vectors_ND}
            if seen.features_LND is not None:
                made["features"] = seen.features_LND
            results.append(StepResult(tensors={port: (slots.keep(row, port, _index(row), x),) for port, x in made.items()}))
        return results


def _sent(arrays: Sequence[Singles], device: torch.device) -> list[torch.Tensor]:
    """All in one transfer."""
    return list(Staging(device).send({str(i): array for i, array in enumerate(arrays)}).values())


def _index(row: Row) -> int:
    assert isinstance(row.payload, CallStep)
    return row.payload.index


def _one(row: Row, name: str, axes: int) -> Singles:
    step = row.payload
    if not isinstance(step, CallStep):
        raise RequestError(f"loop {row.loop!r}: a CallStep is needed, got {type(step).__name__}")
    items = step.inputs.get(name, ())
    if set(step.inputs) != {name} or len(items) != 1:
        raise RequestError(f"loop {row.loop!r}: one item of {name!r} is needed, got {str(step.inputs)[:80]}")
    found = np.asarray(items[0], np.float32)
    if found.ndim != axes or not np.isfinite(found).all():
        raise RequestError(f"loop {row.loop!r}: {name!r} has shape {found.shape}; {axes} axes of finite numbers are needed")
    return found


def build_hearing(options: Mapping[str, Any], device: str) -> Hearing:
    """Options: `checkpoint`, a folder; `linear`, see `linear.LAYOUTS`; `family`, where it is none of ours.

    Raises:
        CardError: an unknown option, or one of the wrong type.
        CheckpointError: the folder is not a whole one of a family that is known.
    """
    asked = read_options(options, "hearing")
    family = family_of(asked)
    folder = family.open(asked.folder)
    return Hearing(family.hearing(folder.config.audio, folder.named("thinker.audio_tower."), device, asked.linear), family.least)


def build_seeing(options: Mapping[str, Any], device: str) -> Seeing:
    """As `build_hearing`."""
    asked = read_options(options, "seeing")
    family = family_of(asked)
    folder = family.open(asked.folder)
    return Seeing(family.seeing(folder.config.vision, folder.named("thinker.visual."), device, asked.linear))
