"""Joint attention in Triton: a program per tile of queries and head, which walks the keys of both streams where they lie.

Nothing is concatenated. Definition and plan: `joint.py`; the running softmax: `attention_triton.attend`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.attention_triton import LOG2_E, attend, settings
from omni_runtime.kernels.joint import QUERIES, JointPlan, check


@triton.jit
def _walk(
    query, k, v, start, end, head, k_token, k_head, v_token, v_head, features, scale, top, total, mixed,
    BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    feature = tl.arange(0, BLOCK_E)
    wide = feature < features
    for at in range(start, end, BLOCK_N):
        token = at + tl.arange(0, BLOCK_N)
        there = token < end
        k_at = token.to(tl.int64) * k_token + head * k_head
        v_at = token.to(tl.int64) * v_token + head * v_head
        key = tl.load(k + k_at[None, :] + feature[:, None], mask=there[None, :] & wide[:, None], other=0.0)
        value = tl.load(v + v_at[:, None] + feature[None, :], mask=there[:, None] & wide[None, :], other=0.0)
        top, total, mixed = attend(query, key, value, there[None, :], scale, top, total, mixed)
    return top, total, mixed


@triton.jit
def _kernel(
    q1, k1, v1, q2, k2, v2, out1, out2, starts, tiles, samples, features, heads, scale, q1_token, q1_head, k1_token, k1_head,
    v1_token, v1_head, q2_token, q2_head, k2_token, k2_head, v2_token, v2_head, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    tile = tiles + tl.program_id(0) * 3
    head = tl.program_id(1).to(tl.int64)
    sample, stream, first = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    start1, end1 = tl.load(starts + sample), tl.load(starts + sample + 1)
    start2, end2 = tl.load(starts + samples + 1 + sample), tl.load(starts + samples + 2 + sample)
    if stream == 0:
        q, out, q_token, q_head, token, last = q1, out1, q1_token, q1_head, start1 + first, end1
    else:
        q, out, q_token, q_head, token, last = q2, out2, q2_token, q2_head, start2 + first, end2
    line = (token + tl.arange(0, BLOCK_M)).to(tl.int64)
    feature = tl.arange(0, BLOCK_E)
    inside = (line < last)[:, None] & (feature < features)[None, :]
    query = tl.load(q + (line * q_token + head * q_head)[:, None] + feature[None, :], mask=inside, other=0.0)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    top, total, mixed = _walk(query, k1, v1, start1, end1, head, k1_token, k1_head, v1_token, v1_head, features, scale,
                              top, total, mixed, BLOCK_N, BLOCK_E)  # fmt: skip
    top, total, mixed = _walk(query, k2, v2, start2, end2, head, k2_token, k2_head, v2_token, v2_head, features, scale,
                              top, total, mixed, BLOCK_N, BLOCK_E)  # fmt: skip
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out + ((line * heads + head) * features)[:, None] + feature[None, :], mixed.to(out.dtype.element_ty), mask=inside)


def joint_attention(
    first_3NHE: Sequence[torch.Tensor], second_3SHE: Sequence[torch.Tensor], batch: JointPlan, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `joint.joint_attention`. Tokens and heads may be strided."""
    check(first_3NHE, second_3SHE, batch)
    every = [x if x.stride(2) == 1 else x.contiguous() for x in (*first_3NHE, *second_3SHE)]
    outs = [torch.empty(q.shape, dtype=q.dtype, device=q.device) for q in (every[0], every[3])]
    _, heads, features = every[0].shape
    if len(batch.tiles_W3) == 0 or heads * features == 0:
        return outs[0], outs[1]
    strides = [stride for x in every for stride in x.stride()[:2]]
    sizes = (len(batch.counts), features, heads, scale * LOG2_E)
    grid = (len(batch.tiles_W3), heads)
    launch = {
        "BLOCK_M": QUERIES,
        "BLOCK_E": max(triton.next_power_of_2(features), 16),
        **settings(features, every[0].element_size()),
    }
    _kernel[grid](*every, *outs, batch.starts_2B, batch.tiles_W3, *sizes, *strides, **launch)
    return outs[0], outs[1]
