"""Joint attention of two streams of tokens, each token to all of both (Esser et al. 2024, section 4), for a ragged batch: the
definition.

Suffixes: B samples, N tokens of the first stream (a picture's) of all samples, S of the second (a text's), H heads, E head
dimension, W tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from omni_runtime.kernels.attention import weights

QUERIES = 64  # of a tile


class JointPlan(NamedTuple):
    """A batch as `joint_attention` takes it; see `joint_plan`."""

    counts: tuple[tuple[int, int], ...]
    starts_2B: torch.Tensor  # int32 [2, B + 1], first token of each sample in each stream
    tiles_W3: torch.Tensor  # int32: sample, stream, first query


def joint_plan(counts: Sequence[tuple[int, int]], device: torch.device | str = "cpu") -> JointPlan:
    """The tiles of samples with so many tokens in their first and second stream, the samples with most keys first."""
    starts = torch.zeros(2, len(counts) + 1, dtype=torch.int32)
    starts[:, 1:] = torch.tensor(counts, dtype=torch.int32).view(-1, 2).t().cumsum(1)
    order = sorted(range(len(counts)), key=lambda sample: -sum(counts[sample]))
    tiles = [(b, stream, first) for b in order for stream in (0, 1) for first in range(0, counts[b][stream], QUERIES)]
    return JointPlan(tuple(counts), starts.to(device), torch.tensor(tiles, dtype=torch.int32).view(-1, 3).to(device))


def joint_attention(
    first_3NHE: Sequence[torch.Tensor], second_3SHE: Sequence[torch.Tensor], batch: JointPlan, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(q kᵀ · scale) v over the keys of both streams of a sample, without a mask.

    Args:
        first_3NHE: q, k and v of the first stream, samples one after the other; float32, bfloat16 or float16. Where positions
            turn them (2-D RoPE), `rotary` has done so.
        second_3SHE: of the second stream, same dtype.

    Returns:
        [N, H, E] and [S, H, E] in the dtype of q. Sums are float32; the kernel rounds weights to the dtype of v before it
        multiplies.

    Raises:
        ValueError: shapes do not fit each other or the plan.
    """
    check(first_3NHE, second_3SHE, batch)
    outs = [torch.empty_like(stream[0], memory_format=torch.contiguous_format) for stream in (first_3NHE, second_3SHE)]
    at = [0, 0]
    for counts in batch.counts:
        parts = [slice(start, start + count) for start, count in zip(at, counts, strict=True)]
        q, k, v = (
            torch.cat([x[parts[0]], y[parts[1]]]).float().transpose(0, 1) for x, y in zip(first_3NHE, second_3SHE, strict=True)
        )
        mixed = (weights(q @ k.transpose(1, 2) * scale) @ v).transpose(0, 1).to(first_3NHE[0].dtype)
        outs[0][parts[0]], outs[1][parts[1]] = mixed.split(list(counts))
        at = [part.stop for part in parts]
    return outs[0], outs[1]


def check(first_3NHE: Sequence[torch.Tensor], second_3SHE: Sequence[torch.Tensor], batch: JointPlan) -> None:
    """Whether shapes fit each other and the plan. ValueError if not."""
    every = [*first_3NHE, *second_3SHE]
    totals = [sum(count[stream] for count in batch.counts) for stream in (0, 1)]
    fits = len(first_3NHE) == len(second_3SHE) == 3 and all(x.dim() == 3 and x.dtype == every[0].dtype for x in every)
    fits = fits and all(x.shape == (totals[i // 3], *every[0].shape[1:]) for i, x in enumerate(every))
    if not fits:
        shapes = ", ".join(f"{tuple(x.shape)} {x.dtype}" for x in every)
        raise ValueError(
            f"joint_attention: {shapes} do not fit q, k, v of [{totals[0]}, H, E] and of [{totals[1]}, H, E], in one dtype"
        )
