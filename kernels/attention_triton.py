"""Paged attention in Triton: one launch for prefill chunks, decode rows and pieces of long ones, and one that merges the pieces.

A program does one tile of the plan for one head of keys and values; rows of its matrices are (query, head of the group). Small
and large tiles are two shapes of the same code. Definition and plan: `attention.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.attention import Plan, check, tile_rows

LOG2_E = 1.4426950408889634


@triton.jit
def attend(query, key, value, seen, scale, top, total, mixed):
    """One step of the running softmax (Milakov and Gimelshein 2018; Dao et al. 2022): (top, total, mixed) after some more keys.

    query [M, E], key [E, S], value [S, E], seen [M, S]; scale is in units of log 2. A row that has seen nothing stays at -inf.
    """
    score = tl.where(seen, tl.dot(query, key, input_precision="ieee") * scale, float("-inf"))
    risen = tl.maximum(top, tl.max(score, 1))
    base = tl.where(risen == float("-inf"), 0.0, risen)  # -inf - -inf would be NaN
    fade = tl.exp2(top - base)
    weight = tl.exp2(score - base[:, None])
    total = total * fade + tl.sum(weight, 1)
    mixed = mixed * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return risen, total, mixed


@triton.jit
def _tile(
    q, k, v, table, out, parts, peaks, token, count, at, row, low, high, slot, head, heads, q_token, q_head, k_block, v_block,
    table_row, places, features, window, scale, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    line = tl.arange(0, BLOCK_M)
    feature = tl.arange(0, BLOCK_E)
    wide = feature < features
    query = line // GROUP
    mine = (query < count) & (line < BLOCK_M // GROUP * GROUP)
    my_head = head * GROUP + line % GROUP
    where = (token + query).to(tl.int64) * q_token + my_head * q_head
    inside = mine[:, None] & wide[None, :]
    query_tile = tl.load(q + where[:, None] + feature[None, :], mask=inside, other=0.0)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    groups = heads // GROUP
    for start in range(low, high, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        there = key < high
        block = tl.load(table + row * table_row + key // places, mask=there, other=0).to(tl.int64)
        place = (key % places) * groups * features + head * features
        k_at, v_at = block * k_block + place, block * v_block + place
        key_tile = tl.load(k + k_at[None, :] + feature[:, None], mask=there[None, :] & wide[:, None], other=0.0)
        value_tile = tl.load(v + v_at[:, None] + feature[None, :], mask=there[:, None] & wide[None, :], other=0.0)
        seen = there[None, :] & (key[None, :] <= (at + query)[:, None]) & (key[None, :] > (at + query)[:, None] - window)
        top, total, mixed = attend(query_tile, key_tile, value_tile, seen, scale, top, total, mixed)
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    if slot >= 0:
        if BLOCK_M == SMALL:  # only small tiles are cut
            piece = (slot.to(tl.int64) * groups + head) * SMALL + line
            tl.store(parts + piece[:, None] * features + feature[None, :], mixed, mask=inside)
            tl.store(peaks + piece, top + tl.log2(tl.where(total > 0.0, total, 1.0)), mask=mine)
    else:
        out_at = ((token + query).to(tl.int64) * heads + my_head) * features
        tl.store(out + out_at[:, None] + feature[None, :], mixed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _kernel(
    q, k, v, table, starts, lengths, tiles, out, parts, peaks, heads, q_token, q_head, k_block, v_block, table_row, places,
    features, window, scale, GROUP: tl.constexpr, SMALL: tl.constexpr, LARGE: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    tile = tiles + tl.program_id(0) * 5
    row = tl.load(tile).to(tl.int64)
    if row >= 0:
        first, low, high, slot = tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3), tl.load(tile + 4)
        start = tl.load(starts + row)
        count = tl.load(starts + row + 1) - start
        at = tl.load(lengths + row) - count + first  # position of the tile's first query
        left = count - first
        if left * GROUP <= SMALL:
            _tile(q, k, v, table, out, parts, peaks, start + first, left, at, row, low, high, slot, tl.program_id(1), heads,
                  q_token, q_head, k_block, v_block, table_row, places, features, window, scale,
                  GROUP, SMALL, BLOCK_N, BLOCK_E, SMALL)  # fmt: skip
        else:
            _tile(q, k, v, table, out, parts, peaks, start + first, left, at, row, low, high, slot, tl.program_id(1), heads,
                  q_token, q_head, k_block, v_block, table_row, places, features, window, scale,
                  GROUP, LARGE, BLOCK_N, BLOCK_E, SMALL)  # fmt: skip


@triton.jit
def _merge(merges, parts, peaks, out, heads, features, GROUP: tl.constexpr, SMALL: tl.constexpr, BLOCK_E: tl.constexpr):
    merge = merges + tl.program_id(0) * 4
    token, count, slot, pieces = tl.load(merge), tl.load(merge + 1), tl.load(merge + 2), tl.load(merge + 3)
    head, groups = tl.program_id(1), heads // GROUP
    line = tl.arange(0, SMALL)
    feature = tl.arange(0, BLOCK_E)
    mine = line < count * GROUP
    inside = mine[:, None] & (feature < features)[None, :]
    top = tl.full([SMALL], float("-inf"), tl.float32)
    total = tl.zeros([SMALL], tl.float32)
    mixed = tl.zeros([SMALL, BLOCK_E], tl.float32)
    for i in range(pieces):
        piece = ((slot + i).to(tl.int64) * groups + head) * SMALL + line
        peak = tl.load(peaks + piece, mask=mine, other=float("-inf"))
        part = tl.load(parts + piece[:, None] * features + feature[None, :], mask=inside, other=0.0)
        risen = tl.maximum(top, peak)
        base = tl.where(risen == float("-inf"), 0.0, risen)
        fade, weight = tl.exp2(top - base), tl.exp2(peak - base)
        total = total * fade + weight
        mixed = mixed * fade[:, None] + part * weight[:, None]
        top = risen
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    at = ((token + line // GROUP).to(tl.int64) * heads + head * GROUP + line % GROUP) * features
    tl.store(out + at[:, None] + feature[None, :], mixed.to(out.dtype.element_ty), mask=inside)


def paged_attention(q_THE: torch.Tensor, k_NPGE: torch.Tensor, v_NPGE: torch.Tensor, batch: Plan, scale: float) -> torch.Tensor:
    """As `attention.paged_attention`. Tokens, heads of q and blocks of the cache may be strided; a block is contiguous."""
    check(q_THE, k_NPGE, v_NPGE, batch)
    for name, cache_NPGE in (("k", k_NPGE), ("v", v_NPGE)):
        if len(cache_NPGE) and not cache_NPGE[0].is_contiguous():
            raise ValueError(
                f"paged_attention: a block of the {name} cache has strides {cache_NPGE.stride()[1:]}, contiguous is needed"
            )
    _, heads, features = q_THE.shape
    out_THE = torch.empty(q_THE.shape, dtype=q_THE.dtype, device=q_THE.device)
    if out_THE.numel() == 0 or len(batch.tiles_W5) == 0:
        return out_THE
    q_THE = q_THE if q_THE.stride(2) == 1 else q_THE.contiguous()
    groups = heads // batch.group
    small, large = tile_rows(batch.group)
    parts = torch.empty((batch.sizes.slots, groups, small, features), dtype=torch.float32, device=q_THE.device)
    peaks = torch.empty((batch.sizes.slots, groups, small), dtype=torch.float32, device=q_THE.device)
    shapes = {"GROUP": batch.group, "SMALL": small, "BLOCK_E": max(triton.next_power_of_2(features), 16)}
    strides = (q_THE.stride(0), q_THE.stride(1), k_NPGE.stride(0), v_NPGE.stride(0), batch.blocks_RB.stride(0))
    window = batch.window or 2**30  # positions are smaller
    sizes = (k_NPGE.shape[1], features, window, scale * LOG2_E)
    inputs = (q_THE, k_NPGE, v_NPGE, batch.blocks_RB, batch.starts_R, batch.lengths_R, batch.tiles_W5)
    launch = settings(features, q_THE.element_size())
    _kernel[(len(batch.tiles_W5), groups)](
        *inputs, out_THE, parts, peaks, heads, *strides, *sizes, **shapes, LARGE=large, **launch
    )  # fmt: skip
    if batch.sizes.merges:
        merges = (batch.merges_M4, parts, peaks, out_THE, heads, features)
        _merge[(len(batch.merges_M4), groups)](*merges, **shapes, num_warps=4, enable_fp_fusion=False)
    return out_THE


def settings(features: int, bytes_each: int) -> dict[str, int]:
    """Launch settings by the width of a key, so that neither sm_80 nor sm_90 spills: half as many keys at once from 128
    features on (sm_80
    spilled 19 registers), 8 warps for 256, and for float32, which no matrix instruction takes exactly, 16 keys."""
    keys = 16 if bytes_each == 4 else 64 if features <= 64 else 32
    warps = 8 if bytes_each == 4 or features > 128 else 4
    return {"BLOCK_N": keys, "num_warps": warps, "num_stages": 2, "enable_fp_fusion": False}
