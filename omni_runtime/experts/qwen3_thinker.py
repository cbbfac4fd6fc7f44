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
from omni_runtime.experts.decoder import DecoderLM
from omni_runtime.experts.media_lm import MediaLM
from omni_runtime.experts.omni_options import read_options
from omni_runtime.experts.slots import Slots
from omni_runtime.weights.folder_tokenizer import folder_tokenizer
from omni_runtime.weights.qwen3_omni import OmniFolder
from omni_runtime.work import ArStep, Row, TensorRef


class Thinker(MediaLM):
    """The expert. `accept` is the layer whose input goes to a talker; None: there is no talker."""

    def __init__(self, model: DecoderLM, pieces: Sequence[bytes], accept: int | None = None) -> None:
        super().__init__(model, pieces)
        self._accept = accept

    def taps_of(self, steps: Sequence[ArStep]) -> tuple[int, ...]:
        return (self._accept,) if self._accept is not None and any(step.inner for step in steps) else ()

    def inner(
        self, row: Row, step: ArStep, hidden_TD: torch.Tensor, taps: Mapping[int, torch.Tensor], at: int, slots: Slots
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
    folder = OmniFolder(asked.folder)
    pieces = folder_tokenizer(folder.folder, folder.config.thinker.vocab).pieces
    talker = folder.config.talker
    accept = None if talker is None else talker.accept
    return Thinker(DecoderLM(folder.config.thinker, folder.thinker(), device, asked.linear), pieces, accept)
