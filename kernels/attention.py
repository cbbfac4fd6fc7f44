"""Causal attention of a ragged batch over a paged cache: the definition, and the plan that says which program does what.

Prefill chunks and single decode rows are one batch: row r has `counts[r]` query tokens, the last ones of its `lengths[r]`. The
plan cuts it into tiles, each some queries of one row over some of its keys. Long rows of few queries are cut along the keys,
too (split-KV: Dao et al. 2023, "Flash-Decoding"), and merged by their log-sum-exps. Cuts are at fixed positions of a row, so
what a row gets does not depend on its neighbours.

Suffixes: T query tokens of all rows, H heads, G heads of keys and values, E head dimension, N blocks, P places of a block, R
rows, B blocks of the longest row, W tiles, M merges.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

SMALL, LARGE = 16, 64  # rows of a tile, a query's heads being rows: the least that a matrix instruction takes, and a chunk's
PIECE = 512  # keys after which a small tile is cut: 8 blocks of 64


class Plan(NamedTuple):
    """A batch as `paged_attention` takes it; see `plan`."""

    counts: tuple[int, ...]
    lengths: tuple[int, ...]
    window: int
    group: int  # heads that share a head of keys and values
    blocks_RB: torch.Tensor  # int32, block numbers; what is behind a row's last block is not read
    starts_R: torch.Tensor  # int32 [R + 1], first query token of each row
    lengths_R: torch.Tensor  # int32
    tiles_W5: torch.Tensor  # int32: row or -1, first query in its row, first key, key behind the last, slot of a piece or -1
    merges_M4: torch.Tensor  # int32: query token, how many, first slot, pieces
    slots: int


def plan(
    counts: Sequence[int],
    lengths: Sequence[int],
    blocks: Sequence[Sequence[int]],
    group: int,
    window: int = 0,
    device: torch.device | str = "cpu",
    pad: int = 1,
) -> Plan:
    """Cuts a batch into tiles, the longest first, so that none is left alone at the end.

    Args:
        counts: query tokens of each row, at least 0.
        lengths: tokens of each row, its queries included: their keys are in the cache already.
        blocks: block numbers of each row, in the order of its positions.
        window: a query sees itself and `window` - 1 keys before; 0 sees all.
        pad: tiles are filled up to a multiple of this with ones that do nothing, for a graph of a fixed number of programs.

    Raises:
        ValueError: a row has more queries than tokens.
    """
    small, large = tile_rows(group)
    tiles, merges, slots, start = [], [], 0, 0
    for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        if not 0 <= count <= length:
            raise ValueError(f"plan: row {row} has {count} queries and {length} tokens; it needs at least as many tokens")
        first = 0
        while first < count:
            few = (count - first) * group <= small
            taken = count - first if few else min(large // group, count - first)
            low = max(length - count + first - window + 1, 0) if window else 0
            high = length - count + first + taken
            cuts = [low, *range((low // PIECE + 1) * PIECE, high, PIECE), high] if few else [low, high]
            if len(cuts) == 2:
                tiles.append((row, first, low, high, -1))
            else:
                merges.append((start + first, taken, slots, len(cuts) - 1))
                for a, b in pairwise(cuts):
                    tiles.append((row, first, a, b, slots))
                    slots += 1
            first += taken
        start += count
    tiles.sort(key=lambda tile: tile[2] - tile[3])
    tiles += [(-1, 0, 0, 0, -1)] * (-len(tiles) % pad)
    widest = max((len(row) for row in blocks), default=0)
    table = [[*row, *[0] * (widest - len(row))] for row in blocks]
    starts = [0, *torch.tensor(list(counts), dtype=torch.int64).cumsum(0).tolist()] if counts else [0]

    def ints(values: Sequence[object], *shape: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32).view(shape).to(device)

    rows = len(counts)
    tensors = (ints(table, rows, widest), ints(starts, rows + 1), ints(list(lengths), rows), ints(tiles, len(tiles), 5))
    return Plan(tuple(counts), tuple(lengths), window, group, *tensors, ints(merges, len(merges), 4), slots)


def tile_rows(group: int) -> tuple[int, int]:
    """Rows of a small and of a large tile: powers of 2 that hold at least all heads of one query."""
    small = SMALL
    while small < group:
        small *= 2
    return small, max(LARGE, small)


def paged_attention(q_THE: torch.Tensor, k_NPGE: torch.Tensor, v_NPGE: torch.Tensor, batch: Plan, scale: float) -> torch.Tensor:
    """softmax(q kᵀ · scale) v for every head of every query, over the keys that it sees (Vaswani et al. 2017, equation 1).

    Query i of a row stands at position length - count + i and sees no later key. Head h reads keys and values of head h div
    (H/G).

    Args:
        q_THE: all rows' queries, one row after the other; float32, bfloat16 or float16.
        k_NPGE, v_NPGE: the cache, same dtype; position p of a row is place p mod P of its block p div P.

    Returns:
        [T, H, E] in the dtype of q. Sums are float32; the kernel rounds weights to the dtype of v before it multiplies by v.

    Raises:
        ValueError: shapes do not fit each other or the plan.
    """
    check(q_THE, k_NPGE, v_NPGE, batch)
    out_THE, places = torch.empty_like(q_THE, memory_format=torch.contiguous_format), k_NPGE.shape[1]
    end = 0
    for row, (count, length) in enumerate(zip(batch.counts, batch.lengths, strict=True)):
        start, end = end, end + count
        blocks = batch.blocks_RB[row, : -(-length // places)].long()
        k_HSE, v_HSE = (
            x[blocks].flatten(0, 1)[:length].float().repeat_interleave(batch.group, 1).transpose(0, 1) for x in (k_NPGE, v_NPGE)
        )
        at = torch.arange(length - count, length, device=q_THE.device)[:, None]
        key = torch.arange(length, device=q_THE.device)
        seen = (key <= at) & (key > at - batch.window) if batch.window else key <= at
        score = q_THE[start:end].float().transpose(0, 1) @ k_HSE.transpose(1, 2) * scale
        out_THE[start:end] = (score.masked_fill(~seen, -torch.inf).softmax(-1) @ v_HSE).transpose(0, 1).to(q_THE.dtype)
    return out_THE


def check(q_THE: torch.Tensor, k_NPGE: torch.Tensor, v_NPGE: torch.Tensor, batch: Plan) -> None:
    """Whether shapes fit each other and the plan. ValueError if not."""
    fits = q_THE.dim() == 3 and k_NPGE.dim() == 4 and k_NPGE.shape == v_NPGE.shape and k_NPGE.shape[3] == q_THE.shape[2]
    if not fits or q_THE.shape[1] != k_NPGE.shape[2] * batch.group or not q_THE.dtype == k_NPGE.dtype == v_NPGE.dtype:
        shapes = ", ".join(f"{tuple(x.shape)} {x.dtype}" for x in (q_THE, k_NPGE, v_NPGE))
        raise ValueError(
            f"paged_attention: {shapes} do not fit q [T, H, E], k and v [N, P, G, E] with H = {batch.group} G, in one dtype"
        )
    if len(q_THE) != sum(batch.counts):
        raise ValueError(f"paged_attention: {len(q_THE)} query tokens, the plan has {sum(batch.counts)}")
    room = batch.blocks_RB.shape[1] * k_NPGE.shape[1]
    if max(batch.lengths, default=0) > room:
        raise ValueError(f"paged_attention: a row of {max(batch.lengths)} tokens, but blocks for {room}")
