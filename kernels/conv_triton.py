"""Causal and causal transposed convolutions as one Triton kernel: a matrix product a tap, summed in registers. Definition:
`conv.py`.

A transposed convolution of stride s is a convolution over its inputs with s times as many rows, whose results lie side by side
in time. Inputs come with their state in front, in one tensor: one load a tap, where two with a choice between them spilled
registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.conv import Snake, check, extend
from omni_runtime.kernels.snake import EPS
from omni_runtime.kernels.snake import check as check_snake
from omni_runtime.kernels.snake_triton import snake


@triton.jit
def _kernel(
    x, weight, bias, alpha, beta, out, length, padded, channels, rows, taps, step, origin, eps, STRIDE: tl.constexpr,
    BIAS: tl.constexpr, SNAKE: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(2).to(tl.int64)
    time = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    row = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    now, kept = time < length, row < rows
    total = tl.zeros([BLOCK_O, BLOCK_T], tl.float32)
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)
        there = channel < channels
        if SNAKE:
            a = tl.load(alpha + channel, mask=there, other=0.0).to(tl.float32)[:, None]
            b = tl.load(beta + channel, mask=there, other=0.0).to(tl.float32)[:, None]
        line = x + (sequence * channels + channel) * padded
        for tap in range(taps):
            at = (time + (origin + tap * step))[None, :]
            value = tl.load(line[:, None] + at, mask=there[:, None] & now[None, :], other=0.0)
            if SNAKE:
                value = snake(value.to(tl.float32), a, b, eps).to(x.dtype.element_ty)
            matrix = (tap * rows + row.to(tl.int64))[:, None] * channels + channel[None, :]
            w = tl.load(weight + matrix, mask=kept[:, None] & there[None, :], other=0.0)
            total = tl.dot(w, value, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + row // STRIDE, mask=kept, other=0.0).to(tl.float32)[:, None]
    place = (sequence * (rows // STRIDE) + row // STRIDE) * length * STRIDE + row % STRIDE
    where = place[:, None] + (time.to(tl.int64) * STRIDE)[None, :]
    tl.store(out + where, total.to(out.dtype.element_ty), mask=kept[:, None] & now[None, :])


def causal_conv(
    x_NCL: torch.Tensor,
    state_NCP: torch.Tensor,
    weight_KOC: torch.Tensor,
    bias_O: torch.Tensor | None = None,
    dilation: int = 1,
    snake: Snake | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `conv.causal_conv`."""
    taps = len(weight_KOC)
    check("causal_conv", x_NCL, state_NCP, weight_KOC, bias_O, weight_KOC.shape[1], (taps - 1) * dilation)
    return _launch(x_NCL, state_NCP, weight_KOC, bias_O, 1, dilation, 0, snake)


def causal_transposed_conv(
    x_NCL: torch.Tensor,
    state_NCP: torch.Tensor,
    weight_JQC: torch.Tensor,
    stride: int,
    bias_O: torch.Tensor | None = None,
    snake: Snake | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `conv.causal_transposed_conv`."""
    taps, rows, _ = weight_JQC.shape
    if stride < 1 or rows % stride:
        raise ValueError(f"causal_transposed_conv: weight {tuple(weight_JQC.shape)} has no {stride} rows an output")
    check("causal_transposed_conv", x_NCL, state_NCP, weight_JQC, bias_O, rows // stride, taps - 1)
    return _launch(x_NCL, state_NCP, weight_JQC, bias_O, stride, -1, taps - 1, snake)


def _launch(
    x_NCL: torch.Tensor,
    state_NCP: torch.Tensor,
    weight: torch.Tensor,
    bias_O: torch.Tensor | None,
    stride: int,
    step: int,
    origin: int,
    snake: Snake | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if snake is not None:
        check_snake(x_NCL, *snake)
    sequences, channels, length = x_NCL.shape
    taps, rows, _ = weight.shape
    padded_NCL, state_NCP = extend(x_NCL, state_NCP)
    out = torch.empty((sequences, rows // stride, length * stride), dtype=x_NCL.dtype, device=x_NCL.device)
    if out.numel() == 0:
        return out, state_NCP
    alpha_C, beta_C = snake or (weight, weight)
    inputs = (padded_NCL, weight.contiguous(), weight if bias_O is None else bias_O.contiguous(), alpha_C, beta_C, out)
    sizes = (length, padded_NCL.shape[2], channels, rows, taps, step, origin, EPS)
    kinds = {"STRIDE": stride, "BIAS": bias_O is not None, "SNAKE": snake is not None}
    launch = settings(length, x_NCL.element_size())
    grid = (triton.cdiv(length, launch["BLOCK_T"]), triton.cdiv(rows, launch["BLOCK_O"]), sequences)
    _kernel[grid](*inputs, *sizes, **kinds, **launch)
    return out, state_NCP


def settings(length: int, bytes_each: int) -> dict[str, int]:
    """Launch settings: 64 rows by 64 positions, by 16 for chunks of a few frames; 32 channels at once.

    In float32, which no matrix instruction takes exactly, half of both: 64 by 32 spilled 400 registers on sm_90.
    """
    shapes = {"BLOCK_O": 64, "BLOCK_T": 64 if length > 16 else 16, "BLOCK_C": 32}
    if bytes_each == 4:
        shapes |= {"BLOCK_O": 32, "BLOCK_C": 16}
    return {**shapes, "num_warps": 8 if length > 16 and bytes_each < 4 else 4, "num_stages": 2, "enable_fp_fusion": False}
