"""Depthwise causal convolution and LayerNorm of a ConvNeXt block as one Triton kernel: a program per few positions, all channels.

What it writes is what the matrix products read, tokens by channels. Definition: `convnext.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from omni_runtime.kernels import convnext
from omni_runtime.kernels.conv import extend
from omni_runtime.kernels.convnext import ConvNeXt, check
from omni_runtime.kernels.matrix_triton import product

WIDEST = 4096  # channels


@triton.jit
def _kernel(
    x, taps, taps_bias, scale, shift, out, length, padded, channels, count, eps, BLOCK_C: tl.constexpr, BLOCK_T: tl.constexpr
):
    sequence = tl.program_id(1).to(tl.int64)
    time = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    channel = tl.arange(0, BLOCK_C)
    there, now = channel < channels, time < length
    inside = there[:, None] & now[None, :]
    line = x + (sequence * channels + channel) * padded
    total = tl.zeros([BLOCK_C, BLOCK_T], tl.float32)
    for tap in range(count):
        w = tl.load(taps + channel * count + tap, mask=there, other=0.0).to(tl.float32)
        value = tl.load(line[:, None] + (time + tap)[None, :], mask=inside, other=0.0).to(tl.float32)
        total += w[:, None] * value
    total += tl.load(taps_bias + channel, mask=there, other=0.0).to(tl.float32)[:, None]
    total = tl.where(there[:, None], total, 0.0)
    mean = tl.sum(total, 0) / channels
    centred = tl.where(there[:, None], total - mean[None, :], 0.0)
    variance = tl.sum(centred * centred, 0) / channels
    a = tl.load(scale + channel, mask=there, other=0.0).to(tl.float32)[:, None]
    b = tl.load(shift + channel, mask=there, other=0.0).to(tl.float32)[:, None]
    result = centred * tl.rsqrt(variance + eps)[None, :] * a + b
    where = (sequence * length + time)[None, :] * channels + channel[:, None]
    tl.store(out + where, result.to(out.dtype.element_ty), mask=inside)


def depthwise_norm(x_NCL: torch.Tensor, state_NCP: torch.Tensor, weights: ConvNeXt) -> tuple[torch.Tensor, torch.Tensor]:
    """As `convnext.depthwise_norm`, for at most WIDEST channels."""
    check(x_NCL, state_NCP, weights)
    sequences, channels, length = x_NCL.shape
    if channels > WIDEST:
        raise ValueError(f"depthwise_norm: {channels} channels, at most {WIDEST} fit one program; use form='torch'")
    padded_NCL, state_NCP = extend(x_NCL, state_NCP)
    out_NLC = torch.empty((sequences, length, channels), dtype=x_NCL.dtype, device=x_NCL.device)
    if out_NLC.numel() == 0:
        return out_NLC, state_NCP
    vectors = (weights.taps_CK, weights.taps_bias_C, weights.norm_weight_C, weights.norm_bias_C)
    launch = settings(channels)
    inputs = (padded_NCL, *(v.contiguous() for v in vectors), out_NLC)
    sizes = (length, padded_NCL.shape[2], channels, weights.taps_CK.shape[1], weights.eps)
    _kernel[(triton.cdiv(length, launch["BLOCK_T"]), sequences)](*inputs, *sizes, **launch)
    return out_NLC, state_NCP


def convnext_block(
    x_NCL: torch.Tensor, state_NCP: torch.Tensor, weights: ConvNeXt, invariant: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `convnext.convnext_block`, with the fused beginning."""
    return convnext.convnext_block(x_NCL, state_NCP, weights, invariant, depthwise_norm, product if invariant else F.linear)


def settings(channels: int) -> dict[str, int]:
    """Launch settings: 8192 values a program, 8 positions at most; 1024 values a warp."""
    block_c: int = triton.next_power_of_2(channels)
    block_t: int = min(max(8192 // block_c, 1), 8)
    return {
        "BLOCK_C": block_c,
        "BLOCK_T": block_t,
        "num_warps": min(max(block_c * block_t // 1024, 1), 8),
        "enable_fp_fusion": False,
    }
