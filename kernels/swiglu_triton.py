"""The gate of SwiGLU as one Triton kernel: a program per stretch of a row. Definition: `swiglu.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.swiglu import check


@triton.jit
def _kernel(x, out, stride, features, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < features
    gate = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * stride + features + column, mask=inside, other=0.0).to(tl.float32)
    result = gate * tl.sigmoid(gate) * up
    tl.store(out + row * features + column, result.to(out.dtype.element_ty), mask=inside)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """As `swiglu.silu_mul`. Rows may be strided, features are contiguous or copied."""
    check(x)
    features = x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], features), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    rows = x.reshape(-1, 2 * features)
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    launch = settings(features)
    _kernel[(len(rows), triton.cdiv(features, launch["BLOCK"]))](rows, out, rows.stride(0), features, **launch)
    return out


def settings(features: int) -> dict[str, int]:
    """Launch settings: at most 1024 values a program, 256 a warp."""
    block: int = min(triton.next_power_of_2(features), 1024)
    return {"BLOCK": block, "num_warps": max(block // 256, 1), "enable_fp_fusion": False}
