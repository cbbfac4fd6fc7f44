"""The code predictor of Qwen3-Omni: the other codes of a frame, one after the other, inside the talker's step.

A frame has G codes. The first is the talker's; given its embedding and the state that it was drawn from, a small decoder draws
the other G - 1, each with a head and an embedding of its own. It keeps nothing from frame to frame, and all rows of a batch are
at the same code, so a step is G - 1 passes over R rows.

Suffixes: R rows, D width, G codes of a frame, P = G - 1 of them predicted, V codebook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from msgspec.structs import replace

from omni_runtime.draw import Draw
from omni_runtime.experts import device_draw
from omni_runtime.experts.decoder import DecoderLM
from omni_runtime.experts.device_draw import Arrays
from omni_runtime.experts.linear import linear
from omni_runtime.experts.sampling import draw
from omni_runtime.weights.qwen3_omni_parts import TalkerConfig

INNER = (
    1 << 31
)  # set in the node of a predictor's draws: their randomness is not that of the talker's own, whose index they share


def inner(how: Draw) -> Draw:
    """The same with a stream of random numbers of its own, and without edits."""
    return replace(how, node=how.node | INNER, edits=None)


class CodePredictor:
    """Resident weights.

    Args:
        config: of the talker.
        weights: of the decoder, by the names of `parameter_shapes`: the embeddings of all groups are one table.
        heads: one matrix [V, D] a predicted code.
        device: where it computes.
        layout: that of `linear.linear`.
    """

    def __init__(
        self,
        config: TalkerConfig,
        weights: Mapping[str, torch.Tensor],
        heads: Sequence[torch.Tensor],
        device: str = "cpu",
        layout: str = "auto",
    ) -> None:
        self.config = config
        self._model = DecoderLM(config.predictor, weights, device, layout)
        there = self._model.device
        self._heads = [linear(head.detach().to(there, torch.float32), None, layout) for head in heads]
        assert len(self._heads) == config.groups - 1, f"{len(self._heads)} heads for {config.groups - 1} predicted codes"

    def embed(self, group: int, codes: Sequence[int]) -> torch.Tensor:
        """Embeddings of codes of one group, 1 .. G-1."""
        return self._model.embed([(group - 1) * self.config.codebook + code for code in codes])

    @torch.inference_mode()
    def predict(
        self, hidden_RD: torch.Tensor, first_RD: torch.Tensor, how: Sequence[Draw], frames: Sequence[int]
    ) -> list[list[int]]:
        """Codes 1 .. G-1 of one frame a row.

        Args:
            hidden_RD: the talker's state that code 0 was drawn from.
            first_RD: the talker's embedding of code 0.
            how: how a row draws; no edits, since nobody counts these codes.
            frames: which frame of its answer each row is at. Code g is draw number frame · P + g - 1 of its stream.

        Raises:
            FloatingPointError: a row's logits are not numbers.
        """
        codes = self.config.groups - 1
        kv_LRKSE, at = self._model.rows(len(how), codes + 1), 0
        fed_RND = torch.stack([hidden_RD, first_RD], 1)
        found: list[list[int]] = [[] for _ in how]
        for group in range(1, codes + 1):
            logits_RV = self._heads[group - 1](self._model.lockstep(fed_RND, kv_LRKSE, at))
            at += fed_RND.shape[1]
            for r, row in enumerate(found):
                row.append(draw(logits_RV[r], how[r], frames[r] * codes + group - 1))
            fed_RND = self.embed(group, [row[-1] for row in found])[:, None]
        return found

    def brought(self, how: Sequence[Draw], frames: Sequence[int]) -> Arrays:
        """What `predict_there` draws with, for a decoder with pages."""
        codes, found = self.config.groups - 1, device_draw.arrays(how, frames, [None] * len(how))
        assert not any(name.startswith("changes.") for name in found), "nobody counts these codes"
        del found["draws.index_R"]
        index_PR = np.array([[frame * codes + group for frame in frames] for group in range(codes)], np.int64)
        return {f"inner.{name}": value for name, value in found.items()} | {"inner.index_PR": index_PR}

    @torch.inference_mode()
    def predict_there(
        self, hidden_RD: torch.Tensor, first_RD: torch.Tensor, sent: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """code_RP and the largest logit of each draw, on the device: no pass waits for the codes of the one before.

        Args:
            hidden_RD: as for `predict`.
            first_RD: as for `predict`.
            sent: `brought`, on the device.
        """
        codes, rows = self.config.groups - 1, len(hidden_RD)
        how = {name.removeprefix("inner."): value for name, value in sent.items() if name.startswith("inner.draws.")}
        kv, at = self._model.rows(rows, codes + 1), 0
        fed_RND = torch.stack([hidden_RD, first_RD], 1)
        code_RP = torch.empty(rows, codes, dtype=torch.int64, device=hidden_RD.device)
        peak_RP = torch.empty(rows, codes, device=hidden_RD.device)
        for group in range(codes):
            logits_RV = self._heads[group](self._model.lockstep(fed_RND, kv, at))
            at += fed_RND.shape[1]
            code_R, peak_RP[:, group] = device_draw.draw_there(logits_RV, how | {"draws.index_R": sent["inner.index_PR"][group]})
            code_RP[:, group] = code_R
            fed_RND = self._model.embed_there(code_R.clamp(min=0) + group * self.config.codebook)[:, None]
        return code_RP, peak_RP
