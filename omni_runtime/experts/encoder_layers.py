"""What encoders share: attention within stretches of one long row, places in it, and layers made of named tensors.

Suffixes: T tokens of all stretches, D width, H heads, E head dimension, N tokens of one stretch, L layers, 2 axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from omni_runtime.experts.linear import Linear, linear
from omni_runtime.kernels import rms_norm

Norm = Callable[[torch.Tensor], torch.Tensor]
Tensors = Mapping[str, torch.Tensor]
Grid = tuple[int, int, int]
"""Steps of time, rows and columns of patches."""


class Seen(NamedTuple):
    """What a picture or clip becomes."""

    vectors_ND: torch.Tensor
    features_LND: torch.Tensor | None = None  # what the first layers of the decoder are given, where the family has such


def attend(q_THE: torch.Tensor, k_THE: torch.Tensor, v_THE: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[T, H·E]: every token sees all of its own stretch and nothing else.

    Stretches run one by one, so that what one gives does not depend on how long its neighbours are.
    """
    parts = []
    for q, k, v in zip(*(x.transpose(0, 1)[None].split_with_sizes(list(lengths), 2) for x in (q_THE, k_THE, v_THE)), strict=True):
        out_1HNE = F.scaled_dot_product_attention(q, k, v)
        parts.append(out_1HNE[0].transpose(0, 1).flatten(1))
    return torch.cat(parts)


def sinusoids(length: int, width: int) -> torch.Tensor:
    """place_ND: sines, then cosines, of rates that fall geometrically from 1 to 1/10000 (Vaswani et al. 2017, section 3.5)."""
    rate_F = torch.exp(-math.log(10_000) / (width // 2 - 1) * torch.arange(width // 2).float())
    angle_NF = torch.arange(length)[:, None] * rate_F
    return torch.cat([angle_NF.sin(), angle_NF.cos()], 1)


def places(grid: Grid, merge: int) -> torch.Tensor:
    """Row and column of each patch, [T, 2], block of merge x merge by block: the order of `patches.py`."""
    steps, rows, columns = grid
    place = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), -1)
    blocks = place.view(rows // merge, merge, columns // merge, merge, 2).transpose(1, 2)
    return blocks.reshape(-1, 2).repeat(steps, 1)


class Parts:
    """Layers by the names of a checkpoint, float32 on one device."""

    def __init__(self, weights: Tensors, device: torch.device, layout: str) -> None:
        self._weights, self._device, self._layout = weights, device, layout

    def take(self, name: str) -> torch.Tensor:
        """A tensor."""
        return self._weights[name].detach().to(self._device, torch.float32)

    def dense(self, *names: str, bias: bool | Sequence[bool] = True, order: torch.Tensor | None = None) -> Linear:
        """Linear layers side by side, as one product; `bias` whether they have one, `order` is that of their outputs."""
        weights = [self.take(f"{name}.weight") for name in names]
        weight, has = torch.cat(weights), [bias] * len(names) if isinstance(bias, bool) else bias
        biases = None
        if any(has):
            each = zip(names, weights, has, strict=True)
            biases = torch.cat([self.take(f"{name}.bias") if its else w.new_zeros(len(w)) for name, w, its in each])
        if order is not None:
            weight, biases = weight[order], None if biases is None else biases[order]
        return linear(weight, biases, self._layout)

    def norm(self, name: str, eps: float) -> Norm:
        """A layer norm."""
        weight, bias = self.take(f"{name}.weight"), self.take(f"{name}.bias")
        return lambda x_TD: F.layer_norm(x_TD, x_TD.shape[-1:], weight, bias, eps)

    def rms(self, name: str, eps: float) -> Norm:
        """An RMS norm."""
        weight = self.take(f"{name}.weight")
        return lambda x_TD: rms_norm(x_TD, weight, eps)
