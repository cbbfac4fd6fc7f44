"""The thinker of Qwen2.5-Omni as an expert: a text model with media, and what its talker is fed of it.

Port "states" has one float32 tensor [N, W] for all N tokens of a step that asks (`inner`), by the number of the first: see
`qwen25_talker.spoken`. Port "hidden" is that of any `TextLM`.

Suffixes: N tokens of a step, T tokens of the batch, W width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from omni_runtime.experts.decoder import DecoderLM
from omni_runtime.experts.media_lm import MediaLM
from omni_runtime.experts.omni_options import read_options
from omni_runtime.experts.qwen25_talker import spoken
from omni_runtime.experts.slots import Slots
from omni_runtime.weights.folder_tokenizer import folder_tokenizer
from omni_runtime.weights.qwen2_5_omni import Qwen25Folder
from omni_runtime.work import ArStep, Row, TensorRef


class Thinker(MediaLM):
    """The expert."""

    def taps_of(self, steps: Sequence[ArStep]) -> tuple[int, ...]:
        return (0,) if any(step.inner for step in steps) else ()

    def inner(
        self, row: Row, step: ArStep, hidden_TD: torch.Tensor, taps: Mapping[int, torch.Tensor], at: int, slots: Slots
    ) -> dict[str, tuple[TensorRef, ...]]:
        start, stop = step.start, step.start + len(step.tokens)
        spans = [range(max(i.at, start) - start, min(i.at + i.count, stop) - start) for i in step.insets]
        here, media = slice(at, at + len(step.tokens)), [i for span in spans for i in span]
        return {"states": (slots.keep(row, "states", start, spoken(taps[0][here], hidden_TD[here], media)),)}


def build(options: Mapping[str, Any], device: str) -> Thinker:
    """Options: `checkpoint`, a folder; `linear`, see `linear.LAYOUTS`.

    Raises:
        CardError: an unknown option, or one of the wrong type.
        CheckpointError: the folder is not a whole Qwen2.5-Omni.
    """
    asked = read_options(options, "qwen2.5 thinker")
    folder = Qwen25Folder(asked.folder)
    pieces = folder_tokenizer(folder.folder, folder.config.thinker.vocab).pieces
    return Thinker(DecoderLM(folder.config.thinker, folder.thinker(), device, asked.linear), pieces)
