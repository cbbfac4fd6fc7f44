"""Products with few rows, and whole decoder layers, in C on a CPU (`cpu.c`), for weights of three types.

The torch definition of a product stands here; that of the layers is `experts/decoder.py`. A row's result depends on that row
alone, to the bit: not on the rows beside it, on the chunk that it came in, or on the number of threads. So an answer is
the same alone, in a crowd, after a preemption and with a copied beginning.

Suffixes: R rows, K inputs, N outputs, P panels of 32 outputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from omni_runtime.kernels import cpu_build

from omni_runtime.errors import OmniError

PANEL = 32  # outputs side by side in memory
TYPES = ("float32", "bfloat16", "int8")
STORE = 0  # what becomes of a product, as in cpu_product.h
SMALL = 100_000  # multiplications: waking a second thread costs as much
_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class Mat(ctypes.Structure):
    """As `Mat` of cpu.c."""

    _fields_ = [("w", _POINTER), ("scale", _POINTER), ("bias", _POINTER), ("n", _INT), ("k", _INT), ("kind", _INT), ("pad", _INT)]


class Packed(NamedTuple):
    """A weight in panels. Lives as long as its tensors do."""

    panels_PKL: torch.Tensor
    scale_N: torch.Tensor | None  # int8 only
    bias_N: torch.Tensor | None
    mat: Mat


@lru_cache(maxsize=1)
def functions() -> Any:
    """The library with its signatures.

    Raises:
        OmniError: there is none here.
    """
    found = cpu_build.library()
    if found is None:
        raise OmniError(f"kernels for the CPU were asked for, but {cpu_build.why()}; install one, or take 'auto'")
    found.omni_linear.argtypes = [_POINTER, _POINTER, _LONG, _POINTER, _LONG, _LONG, _INT, _INT]
    found.omni_layers.argtypes = [_POINTER, _INT, _INT, _POINTER]
    found.omni_flow.argtypes = [_POINTER, _POINTER]
    found.omni_norm.argtypes = [_POINTER, _POINTER, _POINTER, _LONG, _INT, _FLOAT]
    return found


def usable(weight: torch.Tensor) -> bool:
    """Whether these kernels run where a weight is."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and cpu_build.library() is not None


def pack(weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None, kind: str = "float32", gated: bool = False) -> Packed:
    """A weight of float32 for `linear`.

    Args:
        kind: what it is kept in. bfloat16 is rounded to nearest even; int8 has a scale an output, its greatest weight over 127.
        gated: the first half of the rows are gates of the second: they go into a panel with it, 16 and 16.

    Raises:
        OmniError: an unknown kind.
    """
    if kind not in TYPES:
        raise OmniError(f"weights={kind!r}: one of {', '.join(TYPES)} needed")
    count, inputs = weight_NK.shape
    if gated:
        weight_NK = _paired(weight_NK)
        bias_N = None if bias_N is None else _paired(bias_N)
    blocks = -(-len(weight_NK) // PANEL)
    padded_NK = torch.zeros(blocks * PANEL, inputs)
    padded_NK[: len(weight_NK)] = weight_NK
    scale_N = None
    if kind == "int8":
        scale_N = F.pad(padded_NK.abs(), (0, 1)).amax(1).div(127.0).clamp_(min=1e-30)  # of no inputs, too
        padded_NK = padded_NK.div_(scale_N[:, None]).round_()
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}[kind]
    panels_PKL = (
        padded_NK.view(blocks, PANEL, inputs).transpose(1, 2).to(dtype, memory_format=torch.contiguous_format).contiguous()
    )
    if bias_N is not None:
        bias_N = F.pad(bias_N.detach().float(), (0, blocks * PANEL - len(bias_N))).contiguous()
    at = [None if t is None else t.data_ptr() for t in (scale_N, bias_N)]
    return Packed(panels_PKL, scale_N, bias_N, Mat(panels_PKL.data_ptr(), *at, count, inputs, TYPES.index(kind), 0))


def _paired(both: torch.Tensor) -> torch.Tensor:
    """Gates and ups in turns of 16."""
    gate, up = both.chunk(2)
    short = -len(gate) % 16
    pad = [0, 0] * (both.ndim - 1) + [0, short]
    parts = [F.pad(part, pad).unflatten(0, (-1, 16)) for part in (gate, up)]
    return torch.stack(parts, 1).flatten(0, 2)


def linear(packed: Packed) -> Callable[[torch.Tensor], torch.Tensor]:
    """x_RK ↦ x Wᵀ + b, [R, N], float32. int8 and bfloat16 weights are widened first: only they are rounded, x is not.

    Args:
        packed: not `gated`.
    """
    run, mat, at = functions().omni_linear, packed.mat, ctypes.addressof(packed.mat)
    inputs, outputs, work = mat.k, mat.n, mat.k * mat.n

    def apply(x_RK: torch.Tensor) -> torch.Tensor:
        if x_RK.dtype != torch.float32 or x_RK.shape[-1] != inputs:
            raise ValueError(f"linear: x {tuple(x_RK.shape)} of {x_RK.dtype} for a weight of {inputs} float32 inputs")
        y_RN = torch.empty(*x_RK.shape[:-1], outputs)
        flat_RK = x_RK if x_RK.ndim == 2 and x_RK.stride(1) == 1 else x_RK.reshape(-1, inputs).contiguous()
        rows = len(flat_RK)
        if rows and outputs:
            threads = torch.get_num_threads() if rows * work > SMALL else 1
            run(at, flat_RK.data_ptr(), flat_RK.stride(0), y_RN.data_ptr(), outputs, rows, STORE, threads)
        return y_RN

    apply.packed = packed  # type: ignore[attr-defined]  # its tensors live as long as this function; `packed_of` finds them
    return apply


def packed_of(linear: Callable[[torch.Tensor], torch.Tensor]) -> Packed | None:
    """The weight of a function that `linear` gave, for whoever runs several products in one call; None for another function."""
    return getattr(linear, "packed", None)


def definition(packed: Packed, x_RK: torch.Tensor) -> torch.Tensor:
    """What `linear` gives, up to the order of a sum."""
    blocks, inputs, _ = packed.panels_PKL.shape
    weight_NK = packed.panels_PKL.float().transpose(1, 2).reshape(blocks * PANEL, inputs)[: packed.mat.n]
    if packed.scale_N is not None:
        weight_NK = weight_NK * packed.scale_N[: packed.mat.n, None]
    bias_N = None if packed.bias_N is None else packed.bias_N[: packed.mat.n]
    return F.linear(x_RK, weight_NK, bias_N)
