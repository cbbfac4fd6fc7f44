"""The thinker of Qwen3-Omni as an expert: a text model whose prompt may hold what its encoders made of sound and pictures.

Port "inner" has, for every inset of a step that asks, the states at its positions in that step as the talker's configuration
wants them: [n, D], what layer `accept` is fed.

Suffixes: N tokens of a step, D width, T tokens of the batch, 3 axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from omni_runtime.errors import RequestError
from omni_runtime.experts import insets
from omni_runtime.experts.decoder import DecoderLM, Given
from omni_runtime.experts.insets import Medium
from omni_runtime.experts.qwen3_options import open_folder, read_options
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.text_lm import TextLM
from omni_runtime.weights.folder_tokenizer import folder_tokenizer
from omni_runtime.work import ArStep, Inset, Row, TensorRef


class Thinker(TextLM):
    """The expert. `accept` is the layer whose input goes to a talker; None: there is no talker."""

    def __init__(self, model: DecoderLM, pieces: Sequence[bytes], accept: int | None = None) -> None:
        super().__init__(model, pieces)
        self._accept = accept

    def taps_of(self, steps: Sequence[ArStep]) -> tuple[int, ...]:
        return (self._accept,) if self._accept is not None and any(step.inner for step in steps) else ()

    def given(self, row: Row, step: ArStep, slots: Slots) -> Given | None:
        """Vectors in place of placeholders, and where the tokens stand.

        Raises:
            RequestError: an inset's tensors are not of this model.
        """
        positions_3N = insets.positions(step.start, len(step.tokens), step.positions, step.shift)
        if not step.insets:
            return None if positions_3N is None else Given(positions_3N=positions_3N)
        own = [(found, self._medium(row, found, slots)) for found in step.insets]
        return insets.given(self.model.embed(step.tokens), step.start, own, positions_3N)

    def _medium(self, row: Row, inset: Inset, slots: Slots) -> Medium:
        vectors_MD: torch.Tensor = slots.read(inset.vectors)
        features_LMD: torch.Tensor | None = None if inset.features is None else slots.read(inset.features)
        for kept, axes in ((vectors_MD, 2), (features_LMD, 3)):
            if kept is not None and (kept.ndim != axes or kept.shape[-1] != self.model.config.width):
                shape, width = tuple(kept.shape), self.model.config.width
                raise RequestError(f"loop {row.loop!r}: a medium of shape {shape}; this model's vectors have {width} numbers")
        return Medium(vectors_MD, features_LMD)

    def inner(
        self, row: Row, step: ArStep, taps: Mapping[int, torch.Tensor], at: int, slots: Slots
    ) -> dict[str, tuple[TensorRef, ...]]:
        if self._accept is None:
            raise RequestError(f"loop {row.loop!r}: this model has no layer that a talker reads")
        state_TD, found = taps[self._accept], []
        for inset in step.insets:
            low, high = max(inset.at, step.start), min(inset.at + inset.count, step.start + len(step.tokens))
            rows_ND = state_TD[at + low - step.start : at + high - step.start].clone()  # a view would keep the batch alive
            found.append(slots.keep(row, "inner", low, rows_ND))
        return {"inner": tuple(found)}


def build(options: Mapping[str, Any], device: str) -> Thinker:
    """Options: `checkpoint`, a folder; `linear`, see `linear.LAYOUTS`.

    Raises:
        CardError: an unknown option, or one of the wrong type.
        CheckpointError: the folder is not a whole Qwen3-Omni.
    """
    asked = read_options(options, "qwen3 thinker")
    folder = open_folder(asked)
    pieces = folder_tokenizer(folder.folder, folder.config.thinker.vocab).pieces
    talker = folder.config.talker
    accept = None if talker is None else talker.accept
    return Thinker(DecoderLM(folder.config.thinker, folder.thinker(), device, asked.linear), pieces, accept)
