"""A text model whose prompt may hold what encoders made of sound and pictures.

Suffixes: N tokens of a step, D width, M rows of a medium, L layers, 3 axes.
"""

from __future__ import annotations

import torch

from omni_runtime.errors import RequestError
from omni_runtime.experts import insets
from omni_runtime.experts.decoder import Given
from omni_runtime.experts.insets import Medium
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.text_lm import TextLM
from omni_runtime.work import ArStep, Inset, Row


class MediaLM(TextLM):
    """A `TextLM` that takes insets and positions of three numbers."""

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
