"""Causal attention of a ragged batch over a paged cache: the definition, and the plan that says which program does what.

Prefill chunks and single decode rows are one batch: row r has `counts[r]` query tokens, the last ones of its `lengths[r]`. The
plan cuts it into tiles, each some queries of one row over some of its keys. Long rows of few queries are cut along the keys,
too (split-KV: Dao et al. 2023, "Flash-Decoding"), and merged by their log-sum-exps. Cuts are at fixed positions of a row, so
what a row gets does not depend on its neighbours.

A CUDA graph launches the same programs again with the same shapes. So a plan can be filled up to given `Sizes`: what is filled
in does nothing, and the tensors of one plan may be copied over those of another of the same sizes. `bucket` gives sizes.

Suffixes: T query tokens of all rows, H heads, G heads of keys and values, E head dimension, N blocks, P places of a block, R
rows, B blocks of the longest row, W tiles, M merges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

SMALL, LARGE = 16, 64  # rows of a tile, a query's heads being rows: the least that a matrix instruction takes, and a chunk's
PIECE = 512  # keys after which a small tile is cut: 8 blocks of 64


class Sizes(NamedTuple):
    """How much a plan's tensors hold; all that a launch fixes beside window and group."""

    tokens: int  # query tokens
    rows: int
    blocks: int  # of one row
    tiles: int
    merges: int
    slots: int  # pieces of rows cut along the keys


class Plan(NamedTuple):
    """A batch as `paged_attention` takes it; see `plan`."""

    counts: tuple[int, ...]
    lengths: tuple[int, ...]
    held: tuple[int, ...]  # blocks of each row
    least: int  # places that a block must have for every row's tokens to lie in its blocks
    window: int
    group: int  # heads that share a head of keys and values
    sizes: Sizes
    blocks_RB: torch.Tensor  # int32, block numbers; what is behind a row's last block is not read
    starts_R: torch.Tensor  # int32 [R + 1], first query token of each row
    lengths_R: torch.Tensor  # int32
    tiles_W5: torch.Tensor  # int32: row or -1, first query in its row, first key, key behind the last, slot of a piece or -1
    merges_M4: torch.Tensor  # int32: query token, how many, first slot, pieces; of what is filled in all 0

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a launch reads, by field: to be copied over those of another plan of the same sizes, window and group."""
        return {name: getattr(self, name) for name in TENSORS}

    def on(self, tensors: Mapping[str, torch.Tensor]) -> Plan:
        """The same plan with these in place of its `tensors`."""
        named: dict[str, Any] = dict(tensors)
        return self._replace(**named)

    def fits(self, places: int) -> None:
        """Whether every row's tokens lie in its blocks. A replayed graph asks nothing, so ask here before the copy.

        Raises:
            ValueError: a row has more tokens than its blocks have places.
        """
        if self.least > places:
            for row, (length, blocks) in enumerate(zip(self.lengths, self.held, strict=True)):
                if length > blocks * places:
                    raise ValueError(f"paged_attention: row {row} of {length} tokens has blocks for {blocks * places}")


TENSORS = ("blocks_RB", "starts_R", "lengths_R", "tiles_W5", "merges_M4")


def plan(
    counts: Sequence[int],
    lengths: Sequence[int],
    blocks: Sequence[Sequence[int] | np.ndarray[Any, Any]],
    group: int,
    window: int = 0,
    device: torch.device | str = "cpu",
    sizes: Sizes | None = None,
) -> Plan:
    """Cuts a batch into tiles, the longest first, so that none is left alone at the end.

    Args:
        counts: query tokens of each row, at least 0.
        lengths: tokens of each row, its queries included: their keys are in the cache already.
        blocks: block numbers of each row, in the order of its positions.
        window: a query sees itself and `window` - 1 keys before; 0 sees all.
        sizes: what the tensors are filled up to, for a graph. Query tokens behind the last row's belong to nobody: the kernel
            neither reads nor writes them.

    Raises:
        ValueError: a row has more queries than tokens, the batch does not fit the sizes, or a number is out of range.
    """
    if group < 1 or window < 0:
        raise ValueError(f"plan: group={group}, window={window}: at least 1, and a window of 0 or more")
    if not len(counts) == len(lengths) == len(blocks):
        found = f"{len(counts)} counts, {len(lengths)} lengths, {len(blocks)} tables of blocks"
        raise ValueError(f"plan: {found}: as many of each, one a row")
    small, large = tile_rows(group)
    tiles: list[tuple[int, ...]] = []
    merges: list[tuple[int, ...]] = []
    slots = start = 0
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
    held = tuple(map(len, blocks))
    needed = Sizes(start, len(counts), max(held, default=0), len(tiles), len(merges), slots)
    sizes = sizes or needed
    for name, need, have in zip(Sizes._fields, needed, sizes, strict=True):
        if need > have:
            raise ValueError(f"plan: the batch needs {need} {name}, the sizes are {have}; take a larger bucket")
    blocks_RB = np.zeros((sizes.rows, sizes.blocks), dtype=np.int32)
    for row, mine in enumerate(blocks):
        blocks_RB[row, : len(mine)] = mine
    if blocks_RB.size and blocks_RB.min() < 0:
        raise ValueError(f"plan: block {blocks_RB.min()}: numbers of blocks begin at 0")
    starts_R = np.full(sizes.rows + 1, start, dtype=np.int32)
    starts_R[: len(counts) + 1] = [0, *accumulate(counts)]
    lengths_R = np.zeros(sizes.rows, dtype=np.int32)
    lengths_R[: len(counts)] = lengths
    tiles_W5 = np.full((sizes.tiles, 5), NOBODY, dtype=np.int32)
    tiles_W5[: len(tiles)] = tiles or NOBODY
    merges_M4 = np.zeros((sizes.merges, 4), dtype=np.int32)
    merges_M4[: len(merges)] = merges or 0
    least = max(
        (-(-length // count) if count else length * 2**31 for length, count in zip(lengths, held, strict=True)), default=0
    )
    tensors = [torch.from_numpy(array).to(device) for array in (blocks_RB, starts_R, lengths_R, tiles_W5, merges_M4)]
    return Plan(tuple(counts), tuple(lengths), held, least, window, group, sizes, *tensors)


NOBODY = (-1, 0, 0, 0, -1)  # a tile that is filled in


def bucket(rows: int, queries: int, blocks: int, places: int, group: int, window: int = 0) -> Sizes:
    """Sizes that hold every batch of at most so many rows, each of at most so many queries and blocks of `places` tokens.

    Raises:
        ValueError: a number is out of range.
    """
    if min(rows, queries, blocks, window) < 0 or min(places, group) < 1:
        told = f"rows={rows}, queries={queries}, blocks={blocks}, window={window}, places={places}, group={group}"
        raise ValueError(f"bucket: {told}: none below 0, places and group at least 1")
    small, large = tile_rows(group)
    pieces = -(-blocks * places // PIECE)
    if window:  # the keys of a small tile: so many, and they may begin just before a cut
        pieces = min(pieces, (window + small // group - 3) // PIECE + 2)
    whole = max(queries - 1, 0) // (large // group)  # large tiles before the last, which may be small
    cut = rows if pieces > 1 else 0
    return Sizes(rows * queries, rows, blocks, rows * (whole + max(pieces, 1)), cut, cut * pieces)


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
        Query tokens that belong to nobody are 0; the kernel leaves them unwritten.

    Raises:
        ValueError: shapes do not fit each other or the plan.
    """
    check(q_THE, k_NPGE, v_NPGE, batch)
    out_THE, places = torch.zeros_like(q_THE, memory_format=torch.contiguous_format), k_NPGE.shape[1]
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
        out_THE[start:end] = (weights(score.masked_fill(~seen, -torch.inf)) @ v_HSE).transpose(0, 1).to(q_THE.dtype)
    return out_THE


def weights(score: torch.Tensor) -> torch.Tensor:
    """softmax along the last axis; 0 of a row that is all -inf, as the kernel has it, where the formula has 0 / 0."""
    return score.softmax(-1).masked_fill((score == -torch.inf).all(-1, keepdim=True), 0.0)


def check(q_THE: torch.Tensor, k_NPGE: torch.Tensor, v_NPGE: torch.Tensor, batch: Plan) -> None:
    """Whether shapes fit each other and the plan. ValueError if not."""
    fits = q_THE.dim() == 3 and k_NPGE.dim() == 4 and k_NPGE.shape == v_NPGE.shape and k_NPGE.shape[3] == q_THE.shape[2]
    if not fits or q_THE.shape[1] != k_NPGE.shape[2] * batch.group or not q_THE.dtype == k_NPGE.dtype == v_NPGE.dtype:
        shapes = ", ".join(f"{tuple(x.shape)} {x.dtype}" for x in (q_THE, k_NPGE, v_NPGE))
        raise ValueError(
            f"paged_attention: {shapes} do not fit q [T, H, E], k and v [N, P, G, E] with H = {batch.group} G, in one dtype"
        )
    if len(q_THE) != batch.sizes.tokens:
        raise ValueError(f"paged_attention: {len(q_THE)} query tokens, the plan has {batch.sizes.tokens}")
    batch.fits(k_NPGE.shape[1])
