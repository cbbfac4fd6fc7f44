"""Keys and values into a paged cache as one Triton kernel: a program per token and stretch of its heads. Definition: `kv.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.kv import check


@triton.jit
def _kernel(
    k, v, k_cache, v_cache, slots, k_token, k_head, v_token, v_head, k_block, v_block, blocks, places, width, features,
    BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    block = slot // places  # of a slot below 0 nothing is kept, however this rounds
    if (slot >= 0) & (block < blocks):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        head, feature = column // features, column % features
        key = tl.load(k + token * k_token + head * k_head + feature, mask=inside, other=0.0)
        value = tl.load(v + token * v_token + head * v_head + feature, mask=inside, other=0.0)
        place = slot % places * width + column
        tl.store(k_cache + block * k_block + place, key.to(tl.float32).to(k_cache.dtype.element_ty), mask=inside)
        tl.store(v_cache + block * v_block + place, value.to(tl.float32).to(v_cache.dtype.element_ty), mask=inside)


def store_kv(k_TGE: torch.Tensor, v_TGE: torch.Tensor, k_NPGE: torch.Tensor, v_NPGE: torch.Tensor, slots_T: torch.Tensor) -> None:
    """As `kv.store_kv`."""
    check(k_TGE, v_TGE, k_NPGE, v_NPGE, slots_T)
    if k_TGE.numel() == 0 or k_NPGE.numel() == 0:
        return
    k_TGE, v_TGE = (x if x.stride(2) == 1 else x.contiguous() for x in (k_TGE, v_TGE))
    tokens, heads, features = k_TGE.shape
    strides = (*k_TGE.stride()[:2], *v_TGE.stride()[:2], k_NPGE.stride(0), v_NPGE.stride(0))
    sizes = (*k_NPGE.shape[:2], heads * features, features)
    launch = settings(heads * features)
    grid = (tokens, triton.cdiv(heads * features, launch["BLOCK"]))
    _kernel[grid](k_TGE, v_TGE, k_NPGE, v_NPGE, slots_T.contiguous(), *strides, *sizes, **launch)


def settings(width: int) -> dict[str, int]:
    """Launch settings for tokens of this many values: at most 1024 a program, 256 a warp."""
    block: int = min(triton.next_power_of_2(width), 1024)
    return {"BLOCK": block, "num_warps": max(block // 256, 1), "enable_fp_fusion": False}
