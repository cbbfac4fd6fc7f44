"""The convolutions of code2wav by fused kernels, as on a GPU: the twin of `code2wav_waves.py`, which says what is computed.

A kernel is a convolution with the activation before it and the carried inputs in front. The tails of a stream are one row of
numbers, so that rows are stacked and parted by one operation each, and not by one for every convolution; and the whole is a graph
for every number of rows and frames that comes again.

Suffixes: R rows, C channels, T positions, D width, F numbers of all tails of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from omni_runtime.experts.code2wav_waves import DILATIONS, NORM_EPS, Take
from omni_runtime.experts.graphs import Graphs, Inputs, Outputs
from omni_runtime.kernels import (
    ConvNeXt,
    causal_conv,
    causal_transposed_conv,
    convnext_block,
    pack,
    pack_transposed,
)
from omni_runtime.weights.qwen3_omni_parts import VocoderConfig

GRAPHS = 16  # shapes of batches: a card's chunks have one size, but first and last ones

Snake = tuple[torch.Tensor, torch.Tensor]


class _Part(NamedTuple):
    """One operation that carries inputs: x_RCT and the tail before it → y_RCT and the tail after it."""

    run: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    shape: tuple[int, int]  # of its tail: channels, positions
    cut: int = 0  # positions at the beginning of a stream that are no part of the answer
    adds: int = 0  # parts before it whose input is added to its answer


class FusedWaves:
    """Resident weights; `take` gives them by the names of the checkpoint below `code2wav.`.

    Args:
        device: where they are.
        form: of the kernels; see `omni_runtime.kernels`.
    """

    def __init__(self, config: VocoderConfig, take: Take, device: torch.device, form: str | None = None) -> None:
        self._graphs = Graphs(device, GRAPHS)
        self._form, self._device = form, device
        parts: list[_Part] = []
        for i, ratio in enumerate(config.ratios):
            at = f"upsample.{i}"
            parts += [self._up(take, f"{at}.0", ratio), self._block(take, f"{at}.1")]
        parts.append(self._conv(take, "decoder.0"))
        for i, rate in enumerate(config.rates):
            at = f"decoder.{i + 1}.block"
            parts.append(self._up(take, f"{at}.1", rate, f"{at}.0"))
            for j, dilation in enumerate(DILATIONS, 2):
                parts.append(self._conv(take, f"{at}.{j}.conv1", dilation, f"{at}.{j}.act1"))
                parts.append(self._conv(take, f"{at}.{j}.conv2", 1, f"{at}.{j}.act2")._replace(adds=2))
        last = len(config.rates) + 1
        self._parts = [*parts, self._conv(take, f"decoder.{last + 1}", 1, f"decoder.{last}")]
        self._sizes = [part.shape[0] * part.shape[1] for part in self._parts]

    def _conv(self, take: Take, at: str, dilation: int = 1, act: str | None = None) -> _Part:
        weight_KOC, bias_O = pack(take(f"{at}.conv.weight")), take(f"{at}.conv.bias")
        snake, form = _snake(take, act), self._form
        shape = weight_KOC.shape[2], (len(weight_KOC) - 1) * dilation
        return _Part(lambda x, tail: causal_conv(x, tail, weight_KOC, bias_O, dilation, snake, form=form), shape)

    def _up(self, take: Take, at: str, rate: int, act: str | None = None) -> _Part:
        weight_JQC, bias_O = pack_transposed(take(f"{at}.conv.weight"), rate), take(f"{at}.conv.bias")
        snake, form = _snake(take, act), self._form
        past = len(weight_JQC) - 1
        shape = weight_JQC.shape[2], past
        return _Part(
            lambda x, tail: causal_transposed_conv(x, tail, weight_JQC, rate, bias_O, snake, form=form), shape, past * rate
        )

    def _block(self, take: Take, at: str) -> _Part:
        form, taps_CK = self._form, take(f"{at}.dwconv.conv.weight")[:, 0]
        weights = ConvNeXt(
            taps_CK=taps_CK,
            taps_bias_C=take(f"{at}.dwconv.conv.bias"),
            norm_weight_C=take(f"{at}.norm.weight"),
            norm_bias_C=take(f"{at}.norm.bias"),
            up_FC=take(f"{at}.pwconv1.weight"),
            up_bias_F=take(f"{at}.pwconv1.bias"),
            down_CF=take(f"{at}.pwconv2.weight"),
            down_bias_C=take(f"{at}.pwconv2.bias"),
            gamma_C=take(f"{at}.gamma"),
            eps=NORM_EPS,
        )
        return _Part(lambda x, tail: convnext_block(x, tail, weights, form=form), (taps_CK.shape[0], taps_CK.shape[1] - 1))

    def fresh(self) -> tuple[torch.Tensor, ...]:
        """The tails before the beginning: one tensor [F]."""
        return (torch.zeros(sum(self._sizes), device=self._device),)

    def __call__(
        self, x_RCT: torch.Tensor, kept: Sequence[torch.Tensor], begins: bool
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Samples, [R, T] within -1..1, and the tails after them, [R, F]. Both are written anew by the next call."""
        rows, _, frames = x_RCT.shape

        def run(given: Inputs) -> Outputs:
            return self._run(given["x"], given["kept"], begins)

        wave_RT, after_RF = self._graphs.run((rows, frames, begins), run, {"x": x_RCT, "kept": kept[0]})
        return wave_RT, [after_RF]

    def _run(self, x_RCT: torch.Tensor, kept_RF: torch.Tensor, begins: bool) -> tuple[torch.Tensor, torch.Tensor]:
        after: list[torch.Tensor] = []
        before: list[torch.Tensor] = []  # what went into each part
        for part, tail_RF in zip(self._parts, kept_RF.split(self._sizes, 1), strict=True):
            before.append(x_RCT)
            x_RCT, tail_RCP = part.run(x_RCT, tail_RF.view(len(x_RCT), *part.shape))
            if begins and part.cut:
                x_RCT = x_RCT[..., part.cut :]
            if part.adds:
                x_RCT = x_RCT + before[-part.adds]
            after.append(tail_RCP.flatten(1))
        return x_RCT[:, 0].clamp(-1.0, 1.0), torch.cat(after, 1)


def _snake(take: Take, at: str | None) -> Snake | None:
    return None if at is None else (take(f"{at}.alpha"), take(f"{at}.beta"))
