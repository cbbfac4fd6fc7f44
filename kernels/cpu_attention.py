"""Attention of a ragged batch in C (`cpu.c`), float32 on a CPU: each query sees a stretch of one sequence, and says which.

A query's result depends on its own keys and values alone, to the bit: on no other query, however many came with it, and not on
where in its sequence's memory they stand or on the number of threads.

Suffixes: N queries of all sequences, H query heads, K key-value heads, S positions of a sequence, E head dimension.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from omni_runtime.kernels import cpu

_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class Stretch(NamedTuple):
    """What the queries of one sequence see: query i positions low[i] .. high[i]."""

    k_KSE: torch.Tensor
    v_KSE: torch.Tensor
    low: np.ndarray[Any, np.dtype[np.int64]]
    high: np.ndarray[Any, np.dtype[np.int64]]


@lru_cache(maxsize=1)
def functions() -> Any:
    """The library with this signature."""
    found = cpu.functions()
    found.omni_attend.argtypes = [_POINTER, _POINTER, _LONG, _POINTER, _LONG, _INT, _INT, _INT, _FLOAT, _INT]
    return found


def attend(q_NHE: torch.Tensor, stretches: Sequence[Stretch]) -> torch.Tensor:
    """softmax(q k / sqrt(E)) v of each query over its stretch, [N, H * E]; query heads share key heads in order.

    Raises:
        ValueError: a stretch is empty or not within its sequence, or a tensor is not float32 with heads side by side.
    """
    rows, heads, size = q_NHE.shape
    if not q_NHE.numel():
        return torch.empty(rows, heads * size)
    seen, at, most = np.empty((rows, 4), np.int64), 0, 0
    kept, kv_heads = [], 1
    for k_KSE, v_KSE, low, high in stretches:
        k_KSE, v_KSE = k_KSE.contiguous(), v_KSE.contiguous()
        kv_heads, count, _ = k_KSE.shape
        if k_KSE.shape != v_KSE.shape or k_KSE.shape[2] != size or k_KSE.dtype != torch.float32 or heads % kv_heads:
            raise ValueError(f"attend: keys {tuple(k_KSE.shape)} of {k_KSE.dtype} for queries {tuple(q_NHE.shape)}")
        if (len(low) and not 0 <= low.min() <= high.max() <= count) or (low >= high).any():
            raise ValueError(f"attend: queries see positions {low.tolist()} to {high.tolist()} of {count}")
        if at + len(low) > rows:
            raise ValueError(f"attend: stretches of more than the {rows} queries")
        part = seen[at : at + len(low)]
        part[:, 0], part[:, 1] = (x.data_ptr() + low * size * 4 for x in (k_KSE, v_KSE))
        part[:, 2], part[:, 3] = count * size, high - low
        kept += [k_KSE, v_KSE]  # as long as the call
        at, most = at + len(low), most + int((high - low).sum())
    if at != rows or q_NHE.dtype != torch.float32 or q_NHE.stride()[1:] != (size, 1):
        raise ValueError(f"attend: {at} stretches for queries {tuple(q_NHE.shape)} of {q_NHE.dtype}, {q_NHE.stride()}")
    out_NX = torch.empty(rows, heads * size)
    threads = torch.get_num_threads() if 2 * most * heads * size > cpu.SMALL else 1
    where = seen.ctypes.data, q_NHE.data_ptr(), q_NHE.stride(0), out_NX.data_ptr()
    functions().omni_attend(*where, rows, heads, kv_heads, size, size**-0.5, threads)
    return out_NX


def definition(q_NHE: torch.Tensor, stretches: Sequence[Stretch]) -> torch.Tensor:
    """What `attend` gives, up to the order of a sum."""
    parts, at = [], 0
    for k_KSE, v_KSE, low, high in stretches:
        for q_HE, first, last in zip(q_NHE[at : at + len(low)], low.tolist(), high.tolist(), strict=True):
            k, v = (x[:, first:last].repeat_interleave(len(q_HE) // len(x), 0) for x in (k_KSE, v_KSE))
            weight_HS = (torch.einsum("he,hse->hs", q_HE, k) * q_HE.shape[1] ** -0.5).softmax(-1)
            parts.append(torch.einsum("hs,hse->he", weight_HS, v).flatten())
        at += len(low)
    return torch.stack(parts)
