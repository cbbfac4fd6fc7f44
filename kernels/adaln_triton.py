"""Adaptive layer norm and the gated residual as Triton kernels: a program per token. Definition: `adaln.py`.

The definition rounds after the norm and again after the modulation; here there is one rounding, at the end.

Suffixes: B batch, N tokens, D features.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.adaln import EPS, check

WIDEST = 16384  # features, as in `norm_triton.py`


@triton.jit
def _modulate(x, shift, scale, out, tokens, x_batch, x_token, shift_batch, scale_batch, features, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    batch, token = row // tokens, row % tokens
    column = tl.arange(0, BLOCK)
    inside = column < features
    value = tl.load(x + batch * x_batch + token * x_token + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=0) / features
    centred = tl.where(inside, value - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / features
    a = 1.0 + tl.load(scale + batch * scale_batch + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(shift + batch * shift_batch + column, mask=inside, other=0.0).to(tl.float32)
    result = centred * tl.rsqrt(variance + eps) * a + b
    tl.store(out + row * features + column, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gate(x, delta, gates, out, tokens, x_batch, x_token, d_batch, d_token, gate_batch, features, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    batch, token = row // tokens, row % tokens
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < features
    value = tl.load(x + batch * x_batch + token * x_token + column, mask=inside, other=0.0).to(tl.float32)
    change = tl.load(delta + batch * d_batch + token * d_token + column, mask=inside, other=0.0).to(tl.float32)
    much = tl.load(gates + batch * gate_batch + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * features + column, (value + much * change).to(out.dtype.element_ty), mask=inside)


def modulate(x_BND: torch.Tensor, shift_BD: torch.Tensor, scale_BD: torch.Tensor) -> torch.Tensor:
    """As `adaln.modulate`, for at most WIDEST features. Shift and scale may be pieces of a wider tensor."""
    check("modulate", x_BND, None, shift_BD, scale_BD)
    batch, tokens, features = x_BND.shape
    if features > WIDEST:
        raise ValueError(f"modulate: {features} features, at most {WIDEST} fit one program; use form='torch'")
    out_BND = torch.empty(x_BND.shape, dtype=x_BND.dtype, device=x_BND.device)
    if out_BND.numel() == 0:
        return out_BND
    x_BND, shift_BD, scale_BD = (_packed(t) for t in (x_BND, shift_BD, scale_BD))
    block: int = triton.next_power_of_2(features)
    launch = {"BLOCK": block, "num_warps": min(max(block // 256, 1), 16), "enable_fp_fusion": False}
    strides = (*x_BND.stride()[:2], shift_BD.stride(0), scale_BD.stride(0))
    _modulate[(batch * tokens,)](x_BND, shift_BD, scale_BD, out_BND, tokens, *strides, features, EPS, **launch)
    return out_BND


def gate(x_BND: torch.Tensor, delta_BND: torch.Tensor, gate_BD: torch.Tensor) -> torch.Tensor:
    """As `adaln.gate`."""
    check("gate", x_BND, delta_BND, gate_BD)
    batch, tokens, features = x_BND.shape
    out_BND = torch.empty(x_BND.shape, dtype=x_BND.dtype, device=x_BND.device)
    if out_BND.numel() == 0:
        return out_BND
    x_BND, delta_BND, gate_BD = (_packed(t) for t in (x_BND, delta_BND, gate_BD))
    block: int = min(triton.next_power_of_2(features), 1024)
    launch = {"BLOCK": block, "num_warps": max(block // 256, 1), "enable_fp_fusion": False}
    strides = (*x_BND.stride()[:2], *delta_BND.stride()[:2], gate_BD.stride(0))
    grid = (batch * tokens, triton.cdiv(features, block))
    _gate[grid](x_BND, delta_BND, gate_BD, out_BND, tokens, *strides, features, **launch)
    return out_BND


def _packed(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
