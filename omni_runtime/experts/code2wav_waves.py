"""The convolutions of code2wav: hidden states of frames to samples, with the tails of every layer handed in and out.

Suffixes: R rows, C channels, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from omni_runtime.experts.causal import CausalConv, CausalUpsample
from omni_runtime.experts.linear import Linear, linear
from omni_runtime.experts.steady import gelu
from omni_runtime.kernels.sound import Bend
from omni_runtime.weights.qwen3_omni_parts import VocoderConfig

DILATIONS = (1, 3, 9)  # of the residual units at each rate
NORM_EPS = 1e-6  # of the layer norms inside ConvNeXt blocks, whatever the configuration says of others

Take = Callable[[str], torch.Tensor]


class _ConvNext(NamedTuple):
    """x + gamma · MLP(norm(depthwise(x))) (Liu et al. 2022, figure 4)."""

    upsample: CausalUpsample
    depthwise: CausalConv
    norm: tuple[torch.Tensor, torch.Tensor]
    wide: Linear
    narrow: Linear
    gamma_D: torch.Tensor


class _Unit(NamedTuple):
    """x + pointwise(snake(dilated(snake(x)))) (Kumar et al. 2023, figure 1)."""

    dilated: CausalConv
    pointwise: CausalConv


class _Rate(NamedTuple):
    upsample: CausalUpsample
    units: tuple[_Unit, ...]


class Waves:
    """Resident weights; `take` gives them by the names of the checkpoint below `code2wav.`."""

    def __init__(self, config: VocoderConfig, take: Take, layout: str) -> None:
        def conv(at: str, dilation: int = 1, groups: int = 1, bend: Bend | None = None) -> CausalConv:
            return CausalConv(take(f"{at}.conv.weight"), take(f"{at}.conv.bias"), dilation, groups, bend)

        def up(at: str, rate: int, bend: Bend | None = None) -> CausalUpsample:
            return CausalUpsample(take(f"{at}.conv.weight"), take(f"{at}.conv.bias"), rate, bend)

        def act(at: str) -> Bend:
            return take(f"{at}.alpha"), take(f"{at}.beta")

        def dense(at: str) -> Linear:
            return linear(take(f"{at}.weight"), take(f"{at}.bias"), layout)

        self._blocks = []
        for i, ratio in enumerate(config.ratios):
            at = f"upsample.{i}"
            norm = take(f"{at}.1.norm.weight"), take(f"{at}.1.norm.bias")
            depthwise = conv(f"{at}.1.dwconv", groups=config.width)
            mlp = dense(f"{at}.1.pwconv1"), dense(f"{at}.1.pwconv2")
            self._blocks.append(_ConvNext(up(f"{at}.0", ratio), depthwise, norm, *mlp, take(f"{at}.1.gamma")))
        self._first = conv("decoder.0")
        self._rates = []
        for i, rate in enumerate(config.rates):
            at = f"decoder.{i + 1}.block"
            units = [
                _Unit(
                    conv(f"{at}.{j}.conv1", dilation, bend=act(f"{at}.{j}.act1")),
                    conv(f"{at}.{j}.conv2", bend=act(f"{at}.{j}.act2")),
                )
                for j, dilation in enumerate(DILATIONS, 2)
            ]
            self._rates.append(_Rate(up(f"{at}.1", rate, act(f"{at}.0")), tuple(units)))
        last = len(config.rates) + 1
        self._last = conv(f"decoder.{last + 1}", bend=act(f"decoder.{last}"))

    def fresh(self) -> tuple[torch.Tensor, ...]:
        """The tails before the beginning, in the order in which a call uses them."""
        convs: list[CausalConv | CausalUpsample] = []
        for block in self._blocks:
            convs += [block.upsample, block.depthwise]
        convs.append(self._first)
        for rate in self._rates:
            convs.append(rate.upsample)
            convs += [conv for unit in rate.units for conv in (unit.dilated, unit.pointwise)]
        return tuple(conv.fresh() for conv in (*convs, self._last))

    def __call__(
        self, x_RCT: torch.Tensor, kept: Sequence[torch.Tensor], begins: bool
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Samples, [R, T] within -1..1, and the tails after them."""
        before, after = iter(kept), []

        def run(conv: CausalConv, x_RCT: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
            y_RCT, tail = conv(x_RCT, next(before), into)
            after.append(tail)
            return y_RCT

        def grow(conv: CausalUpsample, x_RCT: torch.Tensor) -> torch.Tensor:
            y_RCT, tail = conv(x_RCT, next(before), begins)
            after.append(tail)
            return y_RCT

        for block in self._blocks:
            x_RCT = grow(block.upsample, x_RCT)
            h_RTC = run(block.depthwise, x_RCT).transpose(1, 2)
            h_RTC = F.layer_norm(h_RTC, h_RTC.shape[-1:], *block.norm, NORM_EPS)
            flat = block.narrow(gelu(block.wide(h_RTC.flatten(0, 1)))) * block.gamma_D
            x_RCT = x_RCT + flat.view(h_RTC.shape).transpose(1, 2)
        x_RCT = run(self._first, x_RCT)
        for rate in self._rates:
            x_RCT = grow(rate.upsample, x_RCT)
            for unit in rate.units:
                x_RCT = run(unit.pointwise, run(unit.dilated, x_RCT), x_RCT)
        return run(self._last, x_RCT)[:, 0].clamp(-1.0, 1.0), after
