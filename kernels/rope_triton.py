"""Rotary position embedding, alone or after QK-norm, as one Triton kernel: a program per token and some heads. Definition:
`rope.py`.

Suffixes: T tokens, H heads, E head dimension, F frequencies, A axes of a position, S positions in the tables.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.rope import check, check_norm


@triton.jit
def _kernel(
    x, out, positions, axis, cos, sin, q_weight, k_weight, x_token, x_head, out_token, out_head, tokens, heads, features,
    frequencies, table, queries, eps, AXES: tl.constexpr, PAIRS: tl.constexpr, NORM: tl.constexpr, REST: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    frequency = tl.arange(0, BLOCK_F)
    turned = frequency < frequencies
    if PAIRS:
        first, second = 2 * frequency, 2 * frequency + 1
    else:
        first, second = frequency, frequency + frequencies
    line = positions + token
    if AXES:
        line += tl.load(axis + frequency, mask=turned, other=0).to(tl.int64) * tokens
    at = tl.load(line + tl.zeros([BLOCK_F], tl.int32), mask=turned, other=0).to(tl.int64)
    known = turned & (at >= 0) & (at < table)  # a position beyond the table gives NaN, not what lies behind it
    c = tl.load(cos + at * frequencies + frequency, mask=known, other=float("nan"))[None, :]
    s = tl.load(sin + at * frequencies + frequency, mask=known, other=float("nan"))[None, :]
    row = head.to(tl.int64)[:, None]
    inside = (head < heads)[:, None] & turned[None, :]
    here = x + token * x_token + row * x_head
    x1 = tl.load(here + first[None, :], mask=inside, other=0.0).to(tl.float32)
    x2 = tl.load(here + second[None, :], mask=inside, other=0.0).to(tl.float32)
    there = out + token * out_token + row * out_head
    if REST:
        column = 2 * frequencies + tl.arange(0, BLOCK_REST)
        rest_inside = (head < heads)[:, None] & (column < features)[None, :]
        rest = tl.load(here + column[None, :], mask=rest_inside, other=0.0).to(tl.float32)
    if NORM:
        total = tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)
        if REST:
            total += tl.sum(rest * rest, 1)
        scale = tl.rsqrt(total / features + eps)[:, None]
        is_query = (head < queries)[:, None]
        w1 = tl.where(is_query, _row(q_weight, first, turned), _row(k_weight, first, turned))
        w2 = tl.where(is_query, _row(q_weight, second, turned), _row(k_weight, second, turned))
        x1 = (x1 * scale * w1).to(x.dtype.element_ty).to(tl.float32)  # rounded as the norm alone would
        x2 = (x2 * scale * w2).to(x.dtype.element_ty).to(tl.float32)
        if REST:
            rest = (
                rest
                * scale
                * tl.where(is_query, _row(q_weight, column, column < features), _row(k_weight, column, column < features))
            )
    tl.store(there + first[None, :], (x1 * c - x2 * s).to(out.dtype.element_ty), mask=inside)
    tl.store(there + second[None, :], (x2 * c + x1 * s).to(out.dtype.element_ty), mask=inside)
    if REST:
        tl.store(there + column[None, :], rest.to(out.dtype.element_ty), mask=rest_inside)


@triton.jit
def _row(weight, column, inside):
    return tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)[None, :]


def rotary(
    x_THE: torch.Tensor,
    positions_AT: torch.Tensor,
    cos_SF: torch.Tensor,
    sin_SF: torch.Tensor,
    axis_F: torch.Tensor | None = None,
    pairs: bool = False,
    in_place: bool = False,
) -> torch.Tensor:
    """As `rope.rotary`. Tokens and heads may be strided, features too unless they are to be turned in place."""
    positions_AT = check(x_THE, positions_AT, cos_SF, sin_SF, axis_F)
    return _launch(x_THE, positions_AT, cos_SF, sin_SF, axis_F, pairs, in_place, None)


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
    """As `rope.norm_rotary`. Features must be contiguous."""
    check_norm(x_THE, queries, q_weight_E, k_weight_E)
    positions_AT = check(x_THE, positions_AT, cos_SF, sin_SF, axis_F)
    norm = (queries, q_weight_E.contiguous(), k_weight_E.contiguous(), eps)
    return _launch(x_THE, positions_AT, cos_SF, sin_SF, axis_F, pairs, True, norm)


def _launch(
    x_THE: torch.Tensor,
    positions_AT: torch.Tensor,
    cos_SF: torch.Tensor,
    sin_SF: torch.Tensor,
    axis_F: torch.Tensor | None,
    pairs: bool,
    in_place: bool,
    norm: tuple[int, torch.Tensor, torch.Tensor, float] | None,
) -> torch.Tensor:
    tokens, heads, features = x_THE.shape
    frequencies = cos_SF.shape[1]
    if x_THE.stride(2) != 1 and features > 1:
        if in_place:
            raise ValueError(f"rotary: x with strides {x_THE.stride()}, contiguous features are needed to turn them in place")
        x_THE = x_THE.contiguous()
    out_THE = x_THE if in_place else torch.empty(x_THE.shape, dtype=x_THE.dtype, device=x_THE.device)
    if x_THE.numel() == 0:
        return out_THE
    if frequencies == 0 and norm is None:
        return out_THE if in_place else out_THE.copy_(x_THE)
    queries, q_weight_E, k_weight_E, eps = norm or (0, cos_SF, cos_SF, 0.0)
    rest = features - 2 * frequencies if norm or not in_place else 0
    launch = settings(heads, frequencies, rest)
    tensors = (x_THE, out_THE, positions_AT.contiguous(), cos_SF if axis_F is None else axis_F.contiguous())
    tables = (cos_SF.contiguous(), sin_SF.contiguous(), q_weight_E, k_weight_E)
    strides = (x_THE.stride(0), x_THE.stride(1), out_THE.stride(0), out_THE.stride(1))
    sizes = (tokens, heads, features, frequencies, len(cos_SF), queries, eps)
    kinds = {"AXES": axis_F is not None, "PAIRS": pairs, "NORM": norm is not None, "REST": rest > 0}
    _kernel[(tokens, triton.cdiv(heads, launch["BLOCK_H"]))](*tensors, *tables, *strides, *sizes, **kinds, **launch)
    return out_THE


def settings(heads: int, frequencies: int, rest: int) -> dict[str, int]:
    """Launch settings: heads so that a program turns at most 2048 pairs, 512 a warp."""
    block_f: int = triton.next_power_of_2(max(frequencies, 1))
    block_h: int = min(triton.next_power_of_2(heads), max(2048 // block_f, 1))
    warps = min(max(block_h * block_f // 512, 1), 8)
    block_rest = triton.next_power_of_2(max(rest, 1))
    return {"BLOCK_H": block_h, "BLOCK_F": block_f, "BLOCK_REST": block_rest, "num_warps": warps, "enable_fp_fusion": False}
