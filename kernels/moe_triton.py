"""A mixture of experts in Triton: two grouped products, the first with the gate behind it, and a sum. Definition: `moe.py`.

Pairs of token and chosen expert are sorted by expert with torch, stably, so that a run repeats to the bit; atomics would not.
Tiles of the sorted pairs belong to one expert each. How many there are is known on the device only; the grid is the most that
can be, and programs too many do nothing, so nobody waits for the host.

Suffixes: T tokens, D width, X experts, F features of an expert, C chosen experts of a token, P = T·C pairs, W tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.moe import check


@triton.jit
def _gate_up(
    x, gate_up, hidden, order, tiles, choices, width, features, x_token, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tiles + tl.program_id(0) * 3
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        place = tl.load(tile + 1) + tl.arange(0, BLOCK_M)
        mine = place < tl.load(tile + 2)
        token = tl.load(order + place, mask=mine, other=0).to(tl.int64) // choices
        column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        kept = column < features
        gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        rows = gate_up + (2 * expert * features + column) * width
        for start in range(0, width, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            inner = k < width
            a = tl.load(x + token[:, None] * x_token + k[None, :], mask=mine[:, None] & inner[None, :], other=0.0)
            inside = inner[:, None] & kept[None, :]
            at = rows[None, :] + k[:, None]
            gate = tl.dot(a, tl.load(at, mask=inside, other=0.0), gate, input_precision="ieee")
            at += features * width  # pointers of its own cost 56 registers more on sm_80
            up = tl.dot(a, tl.load(at, mask=inside, other=0.0), up, input_precision="ieee")
        result = gate * tl.sigmoid(gate) * up
        out = hidden + place.to(tl.int64)[:, None] * features + column[None, :]
        tl.store(out, result.to(hidden.dtype.element_ty), mask=mine[:, None] & kept[None, :])


@triton.jit
def _down(
    hidden, down, parts, order, tiles, weights, width, features, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tiles + tl.program_id(0) * 3
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        place = tl.load(tile + 1) + tl.arange(0, BLOCK_M)
        mine = place < tl.load(tile + 2)
        pair = tl.load(order + place, mask=mine, other=0).to(tl.int64)
        column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        kept = column < width
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        rows = down + (expert * width + column) * features
        for start in range(0, features, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            inner = k < features
            at = hidden + place.to(tl.int64)[:, None] * features + k[None, :]
            a = tl.load(at, mask=mine[:, None] & inner[None, :], other=0.0)
            b = tl.load(rows[None, :] + k[:, None], mask=inner[:, None] & kept[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
        weight = tl.load(weights + pair, mask=mine, other=0.0)
        out = parts + pair[:, None] * width + column[None, :]
        tl.store(out, total * weight[:, None], mask=mine[:, None] & kept[None, :])


@triton.jit
def _sum(parts, experts, out, choices, width, count, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for choice in range(choices):
        pair = token * choices + choice
        expert = tl.load(experts + pair)
        if (expert >= 0) & (expert < count):  # nobody wrote the part of an expert that is not there
            total += tl.load(parts + pair * width + column, mask=inside, other=0.0)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)


def fused_moe(
    x_TD: torch.Tensor,
    gate_up_XMD: torch.Tensor,
    down_XDF: torch.Tensor,
    expert_TC: torch.Tensor,
    weight_TC: torch.Tensor,
    invariant: bool = False,
) -> torch.Tensor:
    """As `moe.fused_moe`. Tokens may be strided; weights are contiguous or copied. Never waits for the device."""
    check(x_TD, gate_up_XMD, down_XDF, expert_TC, weight_TC)
    tokens, width = x_TD.shape
    experts, features, choices = len(gate_up_XMD), down_XDF.shape[2], expert_TC.shape[1]
    out_TD = torch.empty((tokens, width), dtype=x_TD.dtype, device=x_TD.device)
    if 0 in (tokens, width, choices, features, experts):
        return out_TD.zero_()
    x_TD = x_TD if x_TD.stride(1) == 1 else x_TD.contiguous()
    pairs = tokens * choices
    launch = settings(pairs, experts, x_TD.element_size(), invariant)
    order_P, tiles_W3 = sort(expert_TC, experts, launch["BLOCK_M"])
    hidden_PF = torch.empty((pairs, features), dtype=x_TD.dtype, device=x_TD.device)
    parts_PD = torch.empty((pairs, width), dtype=torch.float32, device=x_TD.device)
    up = (x_TD, gate_up_XMD.contiguous(), hidden_PF, order_P, tiles_W3, choices, width, features, x_TD.stride(0))
    _gate_up[(len(tiles_W3), triton.cdiv(features, launch["BLOCK_N"]))](*up, **launch)
    down = (hidden_PF, down_XDF.contiguous(), parts_PD, order_P, tiles_W3, weight_TC.float().contiguous(), width, features)
    _down[(len(tiles_W3), triton.cdiv(width, launch["BLOCK_N"]))](*down, **launch)
    block: int = min(triton.next_power_of_2(width), 1024)
    last = {"BLOCK": block, "num_warps": max(block // 256, 1), "enable_fp_fusion": False}
    grid = (tokens, triton.cdiv(width, block))
    _sum[grid](parts_PD, expert_TC.contiguous(), out_TD, choices, width, experts, **last)
    return out_TD


def sort(expert_TC: torch.Tensor, experts: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The pairs by expert, int32 [P], and tiles of at most so many of them, int32 [W, 3]: expert or -1, first, expert's end."""
    flat_P = expert_TC.flatten().long()
    flat_P = torch.where((flat_P >= 0) & (flat_P < experts), flat_P, experts)  # those of no expert come last, in no tile
    order_P = flat_P.argsort(stable=True).int()
    count_X = torch.zeros(experts + 1, dtype=torch.int64, device=flat_P.device).scatter_add_(0, flat_P, torch.ones_like(flat_P))
    count_X = count_X[:experts]
    end_X = count_X.cumsum(0)
    needed_X = (count_X + rows - 1).div(rows, rounding_mode="floor")
    last_X = needed_X.cumsum(0)
    tile_W = torch.arange(len(flat_P) // rows + min(experts, len(flat_P)), device=flat_P.device)
    expert_W = torch.searchsorted(last_X, tile_W, right=True)
    at_W = expert_W.clamp(max=experts - 1)
    first_W = (end_X - count_X)[at_W] + (tile_W - (last_X - needed_X)[at_W]) * rows
    tiles_W3 = torch.stack([torch.where(expert_W < experts, expert_W, -1), first_W, end_X[at_W]], 1)
    return order_P, tiles_W3.int().contiguous()


def settings(pairs: int, experts: int, bytes_each: int, invariant: bool) -> dict[str, int]:
    """Launch settings: tiles of 16 pairs where an expert has few, of 64 where it has 32 or more on average, or always: 16 rows
    take mma on sm_90 and 64 wgmma, whose sums need not agree to the bit.

    In float32, which no matrix instruction takes exactly, always few, and half as much at once: sm_80 spilled 88 registers.
    """
    many = (invariant or pairs >= 32 * experts) and bytes_each < 4
    shapes = {"BLOCK_M": 64 if many else 16, "BLOCK_N": 64, "BLOCK_K": 32 if bytes_each == 4 else 64}
    return {**shapes, "num_warps": 4, "num_stages": 3, "enable_fp_fusion": False}
