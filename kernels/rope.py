"""Rotary position embedding (Su et al. 2021, equation 34) by tables, for positions of one axis or several: the definition.

Which two features turn together is a matter of layout: feature i and i + F ("halves", Llama) or 2i and 2i + 1 ("pairs", the
paper). Which axis of a position turns a frequency is a vector, `axis_F`: so time, height and width (M-RoPE: Wang et al. 2024,
section 2.1), contiguous or interleaved, and rows and columns of a picture are one formula.

Suffixes: T tokens, H heads, E head dimension, F frequencies, A axes of a position, S positions in the tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from omni_runtime.kernels.norm import rms_norm


def axes(sections: Sequence[int], interleaved: bool = False) -> torch.Tensor:
    """axis_F, int32: which axis of a position every frequency follows, for sections of so many frequencies.

    Contiguous sections lie one after the other (Qwen2-VL). Interleaved, frequency i follows axis i mod A as long as that axis
    has frequencies left, and axis 0 after that (Qwen3-Omni): sections 24, 20, 20 are 0 1 2 ... 0 1 2 0 0 0 0.
    """
    count = len(sections)
    if not interleaved:
        return torch.tensor([axis for axis, width in enumerate(sections) for _ in range(width)], dtype=torch.int32)
    follow = [i % count if i < count * sections[i % count] else 0 for i in range(sum(sections))]
    return torch.tensor(follow, dtype=torch.int32)


def rotary(
    x_THE: torch.Tensor,
    positions_AT: torch.Tensor,
    cos_SF: torch.Tensor,
    sin_SF: torch.Tensor,
    axis_F: torch.Tensor | None = None,
    pairs: bool = False,
    in_place: bool = False,
) -> torch.Tensor:
    """Every head of a token turned by the token's angles: x₁ cos - x₂ sin, x₂ cos + x₁ sin.

    Queries and keys that lie side by side in one tensor are turned by one call on a view of both.

    Args:
        x_THE: float32, bfloat16 or float16; features behind the first 2F stay as they are.
        positions_AT: int32 or int64, below S; a plain [T] is one axis.
        cos_SF, sin_SF: float32 tables.
        axis_F: int32, see `axes`; None: all follow axis 0.
        pairs: layout.
        in_place: write into x, which is then what is returned; else a new contiguous tensor.

    Returns:
        The dtype of x: float32 arithmetic, rounded once.

    Raises:
        ValueError: shapes do not fit.
    """
    positions_AT = check(x_THE, positions_AT, cos_SF, sin_SF, axis_F)
    count = cos_SF.shape[1]
    axis = torch.zeros(count, dtype=torch.int64, device=x_THE.device) if axis_F is None else axis_F.long()
    at_TF = positions_AT.long()[axis].t()
    frequency_F = torch.arange(count, device=x_THE.device)
    cos, sin = cos_SF[at_TF, frequency_F][:, None], sin_SF[at_TF, frequency_F][:, None]
    first, second = places(count, pairs)
    x1, x2 = x_THE[..., first].float(), x_THE[..., second].float()
    out_THE = x_THE if in_place else x_THE.clone(memory_format=torch.contiguous_format)
    out_THE[..., first], out_THE[..., second] = (x1 * cos - x2 * sin).to(x_THE.dtype), (x2 * cos + x1 * sin).to(x_THE.dtype)
    return out_THE


def norm_rotary(
    x_THE: torch.Tensor,
    queries: int,
    q_weight_E: torch.Tensor,
    k_weight_E: torch.Tensor,
    eps: float,
    positions_AT: torch.Tensor,
    cos_SF: torch.Tensor,
    sin_SF: torch.Tensor,
    axis_F: torch.Tensor | None = None,
    pairs: bool = False,
) -> torch.Tensor:
    """QK-norm, then `rotary`, in place: RMSNorm over each head, with one weight for the first `queries` heads and one for the
    rest.

    Equals the two ops one after the other: the norm is rounded to the dtype of x in between.

    Raises:
        ValueError: shapes do not fit.
    """
    check_norm(x_THE, queries, q_weight_E, k_weight_E)
    check(x_THE, positions_AT, cos_SF, sin_SF, axis_F)
    x_THE[:, :queries] = rms_norm(x_THE[:, :queries], q_weight_E, eps)
    x_THE[:, queries:] = rms_norm(x_THE[:, queries:], k_weight_E, eps)
    return rotary(x_THE, positions_AT, cos_SF, sin_SF, axis_F, pairs, in_place=True)


def places(count: int, pairs: bool) -> tuple[slice, slice]:
    """Which features turn together, for so many frequencies."""
    return (slice(0, 2 * count, 2), slice(1, 2 * count, 2)) if pairs else (slice(0, count), slice(count, 2 * count))


def check(
    x_THE: torch.Tensor, positions_AT: torch.Tensor, cos_SF: torch.Tensor, sin_SF: torch.Tensor, axis_F: torch.Tensor | None
) -> torch.Tensor:
    """positions_AT with its axis of axes. ValueError if shapes do not fit."""
    positions_AT = positions_AT[None] if positions_AT.dim() == 1 else positions_AT
    fits = x_THE.dim() == 3 and cos_SF.dim() == 2 and cos_SF.shape == sin_SF.shape and 2 * cos_SF.shape[1] <= x_THE.shape[2]
    fits = fits and positions_AT.dim() == 2 and positions_AT.shape[1] == x_THE.shape[0] and positions_AT.shape[0] > 0
    if not fits or (axis_F is not None and axis_F.shape != cos_SF.shape[1:]):
        shapes = (
            f"x {tuple(x_THE.shape)}, positions {tuple(positions_AT.shape)}, cos {tuple(cos_SF.shape)}, sin {tuple(sin_SF.shape)}"
        )
        axis = "" if axis_F is None else f", axis {tuple(axis_F.shape)}"
        raise ValueError(f"rotary: {shapes}{axis} do not fit [T, H, E], [A, T], [S, F], [S, F], [F] with 2F at most E")
    return positions_AT


def check_norm(x_THE: torch.Tensor, queries: int, q_weight_E: torch.Tensor, k_weight_E: torch.Tensor) -> None:
    """Whether weights fit the heads. ValueError if not."""
    features = x_THE.shape[-1:]
    if x_THE.dim() != 3 or q_weight_E.shape != features or k_weight_E.shape != features or not 0 <= queries <= x_THE.shape[1]:
        shapes = f"x {tuple(x_THE.shape)}, queries={queries}, weights {tuple(q_weight_E.shape)} and {tuple(k_weight_E.shape)}"
        raise ValueError(f"norm_rotary: {shapes} do not fit [T, H, E], at most H, [E] and [E]")
