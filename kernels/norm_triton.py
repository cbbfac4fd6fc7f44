"""RMSNorm as one Triton kernel: a program per row, the row in registers. Definition: `norm.py`.

Suffixes: R rows, D features.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

WIDEST = 16384  # features: 32 values in each of 512 threads; with twice that sm_90 spills registers


@triton.jit
def _kernel(x, residual, weight, out, total, stride, features, eps, BLOCK: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # row * stride passes 2**31 at 256 k rows of 8192
    column = tl.arange(0, BLOCK)
    inside = column < features
    # Upcast at the load: the interpreter does bfloat16 arithmetic on bit patterns, and a GPU would round every step.
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row * features + column, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * features + column, rounded, mask=inside)
        value = rounded.to(tl.float32)
    mean = tl.sum(value * value, axis=0) / features
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    result = value * tl.rsqrt(mean + eps) * scale
    tl.store(out + row * features + column, result.to(out.dtype.element_ty), mask=inside)


def rms_norm(x_RD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """As `norm.rms_norm`. Rows may be strided, features are contiguous or copied."""
    return _launch(x_RD, None, weight_D, eps)[0]


def add_rms_norm(
    x_RD: torch.Tensor, residual_RD: torch.Tensor, weight_D: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `norm.add_rms_norm`."""
    return _launch(x_RD, residual_RD, weight_D, eps)


def _launch(
    x_RD: torch.Tensor, residual_RD: torch.Tensor | None, weight_D: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    features = x_RD.shape[-1]
    if weight_D.shape != (features,) or (residual_RD is not None and residual_RD.shape != x_RD.shape):
        other = None if residual_RD is None else tuple(residual_RD.shape)
        raise ValueError(f"rms_norm: x {tuple(x_RD.shape)}, residual {other} and weight {tuple(weight_D.shape)} do not fit")
    if features > WIDEST:
        raise ValueError(f"rms_norm: {features} features, at most {WIDEST} fit one program; use form='torch'")
    out_RD = torch.empty(x_RD.shape, dtype=x_RD.dtype, device=x_RD.device)
    total_RD = out_RD if residual_RD is None else torch.empty(x_RD.shape, dtype=x_RD.dtype, device=x_RD.device)
    if x_RD.numel() == 0:
        return out_RD, total_RD
    rows_RD = x_RD.reshape(-1, features)
    if rows_RD.stride(-1) != 1:
        rows_RD = rows_RD.contiguous()
    other_RD = rows_RD if residual_RD is None else residual_RD.contiguous()
    arguments = (rows_RD, other_RD, weight_D.contiguous(), out_RD, total_RD, rows_RD.stride(0), features, eps)
    _kernel[(len(rows_RD),)](*arguments, ADD=residual_RD is not None, **settings(features))
    return out_RD, total_RD


def settings(features: int) -> dict[str, int]:
    """Launch settings for rows of this width: 256 values a warp, at most 16 warps.

    Contraction to fused multiply-adds is off by word, because its default differs between triton 3.9 and 3.10.
    """
    block: int = triton.next_power_of_2(features)
    return {"BLOCK": block, "num_warps": min(max(block // 256, 1), 16), "enable_fp_fusion": False}
