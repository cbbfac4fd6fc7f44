"""A matrix product in Triton whose rows do not depend on each other to the bit. Definition: `matrix.py`.

An element is the sum of its pieces of PIECE inputs, first to last, and a piece is summed by steps of BLOCK_K from nothing. Tiles
and steps are chosen by the weight alone, never by the number of rows. Who adds the pieces is free: where rows are few, each has a
program of its own and another adds them up; where they are many, one program does all of it, in the same order.

Suffixes: T rows, K inputs, N outputs, P pieces.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.matrix import check

PIECE = 1024  # inputs: of 4096, four programs a tile; what they hand over is 1/8 of the weights for 64 rows
BUSY = 128  # programs that keep a device busy: about as many as it has processors (A100 108, H200 132, MI300X 304)


@triton.jit
def _piece(
    x, weight, token, mine, column, kept, low, high, x_token, w_column, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(low, high, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inner = k < high
        a = tl.load(x + token[:, None] * x_token + k[None, :], mask=mine[:, None] & inner[None, :], other=0.0)
        b = tl.load(weight + column[None, :] * w_column + k[:, None], mask=inner[:, None] & kept[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    return total


# Rows are no constant of the compiled kernel, not even 1: the same code runs for all of them.
@triton.jit(do_not_specialize=["tokens"])
def _kernel(
    x, weight, bias, out, tokens, columns, depth, x_token, w_column, SPLIT: tl.constexpr, BIAS: tl.constexpr,
    PIECE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    mine, kept = token < tokens, column < columns
    inside = mine[:, None] & kept[None, :]
    if SPLIT:
        piece = tl.program_id(2)
        low = piece * PIECE
        total = _piece(x, weight, token, mine, column, kept, low, tl.minimum(low + PIECE, depth), x_token, w_column,
                       BLOCK_M, BLOCK_N, BLOCK_K)  # fmt: skip
        out += piece.to(tl.int64) * tokens * columns
    else:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for low in range(0, depth, PIECE):
            total += _piece(x, weight, token, mine, column, kept, low, tl.minimum(low + PIECE, depth), x_token, w_column,
                            BLOCK_M, BLOCK_N, BLOCK_K)  # fmt: skip
        if BIAS:
            total += tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)[None, :]
    tl.store(out + token[:, None] * columns + column[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _add(parts, bias, out, tokens, columns, pieces, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = column < columns
    total = tl.zeros([BLOCK], tl.float32)
    for piece in range(pieces):
        total += tl.load(parts + (piece * tokens.to(tl.int64) + token) * columns + column, mask=kept, other=0.0)
    if BIAS:
        total += tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + token * columns + column, total.to(out.dtype.element_ty), mask=kept)


def product(x_TK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """As `matrix.product`; a row is the same to the bit alone and beside any others. Rows of both may be strided."""
    check(x_TK, weight_NK, bias_N)
    columns, depth = weight_NK.shape
    out_TN = torch.empty((*x_TK.shape[:-1], columns), dtype=x_TK.dtype, device=x_TK.device)
    if out_TN.numel() == 0:
        return out_TN
    if depth == 0:
        return out_TN.zero_() if bias_N is None else out_TN.copy_(bias_N)
    rows_TK = x_TK.reshape(-1, depth)
    rows_TK, weight_NK = (t if t.stride(1) == 1 else t.contiguous() for t in (rows_TK, weight_NK))
    tokens, pieces, launch = len(rows_TK), -(-depth // PIECE), settings(columns, x_TK.element_size())
    tiles = (-(-columns // launch["BLOCK_N"]), -(-tokens // launch["BLOCK_M"]))
    split = pieces > 1 and tiles[0] * tiles[1] < BUSY
    bias = {"BIAS": bias_N is not None}
    bias_N = weight_NK if bias_N is None else bias_N.contiguous()
    into = torch.empty((pieces, tokens, columns), dtype=torch.float32, device=x_TK.device) if split else out_TN
    sizes = (tokens, columns, depth, rows_TK.stride(0), weight_NK.stride(0))
    _kernel[(*tiles, pieces if split else 1)](
        rows_TK, weight_NK, bias_N, into, *sizes, SPLIT=split, PIECE=PIECE, **bias, **launch
    )
    if split:
        block: int = min(triton.next_power_of_2(columns), 1024)
        last = {"BLOCK": block, "num_warps": max(block // 256, 1), "enable_fp_fusion": False}
        _add[(tokens, -(-columns // block))](into, bias_N, out_TN, tokens, columns, pieces, **bias, **last)
    return out_TN


def settings(columns: int, bytes_each: int) -> dict[str, int]:
    """Launch settings, by the weight alone: 64 rows, the least that wgmma takes; one row costs as much, which reading the weights
    hides. Twice the columns where there are many, with a stage less: gfx942 has 64 KiB.

    In float32, which no matrix instruction takes exactly, 16 rows: what is computed for nobody is not hidden there.
    """
    if bytes_each == 4:
        return {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3, "enable_fp_fusion": False}
    wide = {"BLOCK_N": 128, "num_stages": 3} if columns >= 8192 else {"BLOCK_N": 64, "num_stages": 4}
    return {"BLOCK_M": 64, "BLOCK_K": 64, **wide, "num_warps": 4, "enable_fp_fusion": False}
