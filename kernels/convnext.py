"""The ConvNeXt block (Liu et al. 2022, figure 4), causal over time and going on where the last chunk ended: the definition.

Suffixes: N sequences, C channels, L positions, K taps, P = K - 1 positions of state, F features inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from omni_runtime.kernels.conv import extend


class ConvNeXt(NamedTuple):
    """Weights of a block, of one dtype."""

    taps_CK: torch.Tensor  # depthwise
    taps_bias_C: torch.Tensor
    norm_weight_C: torch.Tensor
    norm_bias_C: torch.Tensor
    up_FC: torch.Tensor
    up_bias_F: torch.Tensor
    down_CF: torch.Tensor
    down_bias_C: torch.Tensor
    gamma_C: torch.Tensor  # layer scale
    eps: float = 1e-6  # of the norm


Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Depthwise = Callable[[torch.Tensor, torch.Tensor, ConvNeXt], tuple[torch.Tensor, torch.Tensor]]


def depthwise_norm(x_NCL: torch.Tensor, state_NCP: torch.Tensor, weights: ConvNeXt) -> tuple[torch.Tensor, torch.Tensor]:
    """LayerNorm over channels of a depthwise causal convolution: [N, L, C], and the state for the next chunk.

    `state_NCP` are the P inputs before x, zeros at the beginning. Computed in float32, rounded once to the dtype of x.

    Raises:
        ValueError: shapes do not fit.
    """
    check(x_NCL, state_NCP, weights)
    padded_NCL, state_NCP = extend(x_NCL, state_NCP)
    _, channels, length = x_NCL.shape
    windows_NCLK = padded_NCL.float().unfold(2, weights.taps_CK.shape[1], 1) if length else padded_NCL.new_zeros(*x_NCL.shape, 1)
    y_NCL = (windows_NCLK * weights.taps_CK[:, None].float()).sum(-1) + weights.taps_bias_C.float()[:, None]
    scale_C, shift_C = weights.norm_weight_C.float(), weights.norm_bias_C.float()
    return F.layer_norm(y_NCL.transpose(1, 2), (channels,), scale_C, shift_C, weights.eps).to(x_NCL.dtype), state_NCP


def convnext_block(
    x_NCL: torch.Tensor,
    state_NCP: torch.Tensor,
    weights: ConvNeXt,
    invariant: bool = False,
    depthwise: Depthwise = depthwise_norm,
    linear: Linear = F.linear,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x + gamma · down(gelu(up(norm(depthwise(x))))): [N, C, L], and the state for the next chunk.

    The two matrix products are `linear`, in the dtype of x: the device's own library, or with `invariant` in the Triton form
    `matrix_triton.product`, with which a sequence is the same to the bit beside any others.

    Raises:
        ValueError: shapes do not fit.
    """
    normed_NLC, state_NCP = depthwise(x_NCL, state_NCP, weights)
    hidden_NLF = F.gelu(linear(normed_NLC, weights.up_FC, weights.up_bias_F))
    change_NLC = linear(hidden_NLF, weights.down_CF, weights.down_bias_C)
    return torch.addcmul(x_NCL, weights.gamma_C[:, None], change_NLC.transpose(1, 2)), state_NCP


def check(x_NCL: torch.Tensor, state_NCP: torch.Tensor, weights: ConvNeXt) -> None:
    """Whether shapes fit. ValueError if not."""
    channels, taps = weights.taps_CK.shape
    vectors = (weights.taps_bias_C, weights.norm_weight_C, weights.norm_bias_C)
    fits = x_NCL.dim() == 3 and x_NCL.shape[1] == channels and taps > 0 and all(v.shape == (channels,) for v in vectors)
    if not fits or state_NCP.shape != (*x_NCL.shape[:2], taps - 1) or state_NCP.dtype != x_NCL.dtype:
        given = (
            f"x {tuple(x_NCL.shape)} {x_NCL.dtype}, state {tuple(state_NCP.shape)} {state_NCP.dtype}, taps {channels} x {taps}"
        )
        raise ValueError(f"depthwise_norm: {given} do not fit; x is [N, {channels}, L], the state [N, {channels}, {taps - 1}]")
