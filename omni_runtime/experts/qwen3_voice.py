"""The talker of Qwen3-Omni as an expert (`talk_op` is what it shares with others): it is fed ids, and states where media stood.

Suffixes: T positions of the batch, N of a row, D width of the talker, W width of the thinker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from omni_runtime.experts.omni_options import read_options
from omni_runtime.experts.qwen3_predictor import CodePredictor
from omni_runtime.experts.qwen3_talker import Talker
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.speakers import voiced
from omni_runtime.experts.staging import Staging
from omni_runtime.experts.talk_op import TalkOp, distinct
from omni_runtime.weights.qwen3_omni import OmniFolder
from omni_runtime.work import TalkStep

OPENING = 9  # positions


class Voice(TalkOp):
    """The expert.

    Args:
        talker: the model.
        embedding_VW: of the thinker's tokens, as stored: rows of it are read.
    """

    def __init__(self, talker: Talker, embedding_VW: torch.Tensor) -> None:
        c = talker.config
        super().__init__(talker, OPENING, (c.decoder.vocab, *[c.codebook] * (c.groups - 1)), turns=True)
        self.talker = talker
        self._embedding_VW = embedding_VW
        self._marks: dict[str, torch.Tensor] = {}

    def counted(self, step: TalkStep) -> tuple[int, list[int]]:
        """First codes, by frame."""
        return max(0, step.start - step.before - OPENING), [frame[0] for frame in step.frames]

    @torch.inference_mode()
    def vectors(self, steps: Sequence[TalkStep], slots: Slots) -> torch.Tensor:
        """Each projection is one product for the batch."""
        ids = [token for step in steps for token in (*step.turns, *step.opening, *step.text)]
        there = self.talker.model.device
        rows_NW, index_T = distinct(ids, self._embedding_VW)
        ends = list(accumulate(step.size for step in steps))
        framed = [row for step, end in zip(steps, ends, strict=True) for row in range(end - len(step.frames), end)]
        sent = Staging(there).send({"rows": rows_NW, "index": index_T, "framed": np.array(framed, np.int64)})
        x_TD = self.talker.text(sent["rows"])[sent["index"]]
        media: list[tuple[int, torch.Tensor]] = []
        at = 0
        for step in steps:
            media += [(at + row, part_NW) for row, part_NW in self.states(step, slots, self.talker.config.thinker_width)]
            if step.opening:
                low = max(0, step.start - step.before)
                begins = at + len(step.turns)
                x_TD[begins : begins + len(step.opening)] += self._marks_of(step.speaker)[low : low + len(step.opening)]
            at += step.size
        if media:
            states_TD = self.talker.media(torch.cat([states_NW.to(there, torch.float32) for _, states_NW in media]))
            for (at, states_NW), part_ND in zip(
                media, states_TD.split_with_sizes([len(states) for _, states in media]), strict=True
            ):
                x_TD[at : at + len(states_NW)] = part_ND
        if framed:
            framed_F = sent["framed"]
            x_TD[framed_F] = self.talker.frames([frame for step in steps for frame in step.frames], x_TD[framed_F])
        return x_TD

    def _marks_of(self, speaker: str) -> torch.Tensor:
        if speaker not in self._marks:
            self._marks[speaker] = self.talker.marks(speaker)
        return self._marks[speaker]


def build(options: Mapping[str, Any], device: str) -> Voice:
    """Options: `checkpoint`, a folder; `linear`, see `linear.LAYOUTS`.

    Raises:
        CardError: an unknown option, or one of the wrong type.
        CheckpointError: the folder is not a whole Qwen3-Omni, or has no voice.
    """
    asked = read_options(options, "qwen3 voice")
    folder = OmniFolder(asked.folder)
    config = voiced(folder.config.talker, folder.folder)
    heads = [folder.tensor(f"talker.code_predictor.lm_head.{i}.weight") for i in range(config.groups - 1)]
    predictor = CodePredictor(config, folder.predictor(), heads, device, asked.linear)
    talker = Talker(config, folder.talker(), predictor, folder.named("talker."), device, asked.linear)
    return Voice(talker, folder.tensor("thinker.model.embed_tokens.weight"))
