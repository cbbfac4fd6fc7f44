"""A linear layer as a function, in the layout that is fastest for its device, its shape and the rows of the call.

On a CPU with a C compiler that is our own (`kernels/cpu.py`, layout "native"): 1.1 to 3 times as fast as the best of torch for up
to 16 rows, 0.85 to 1 of it for 128, one copy of the weight, and rows that do not depend on each other. "bfloat16" and "int8" keep
the weight in less. Elsewhere, and by name, torch's:

Microseconds of a call with so many rows, float32, torch 2.13, one thread of a Sapphire Rapids Xeon:

    weight         as stored (F.linear)                           packed (oneDNN)
    rows              1     2     4     8    16   128   1024         1     2     4     8    16   128   1024
    960 x 576       166   162   200   258   353  1027   6428       261   238   242   277   335  1063   6134
    576 x 576        56    53    75   101   137   589   3729        81    75    82    99   137   620   4137
    3072 x 576      566   646  1173  1492  1281  3287  20484       609   621   606   701   864  2878  21219
    576 x 1536      235   243   441   571   514  1462   9263       324   323   316   372   447  1473  10422
    49152 x 576    8227  9313 18054 28692 23715     -      -      9302  9640  9672 10950 13405     -      -

So few rows, and very many, want the weight as it is; what lies between wants it packed. Summed over SmolLM2-135M: 39 ms as stored
against 48 packed for the decode step of one request, 101 against 54 for that of eight. Both copies are kept, at twice the memory
(a tied head as stored is the embedding, and costs nothing); `layout="packed"` or "plain" keeps one.

A transposed weight (torch.mm) needs 34 ms for one request on one thread but more than F.linear on two, so it is not used.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.nn.functional as F

from omni_runtime.errors import CardError
from omni_runtime.kernels import cpu, cpu_build
from omni_runtime.weights.memory import PACKED_FROM

Linear = Callable[[torch.Tensor], torch.Tensor]
"""x_TK → y_TN"""

LAYOUTS = ("auto", "native", "bfloat16", "int8", "packed", "plain", "paged")
NATIVE = {"auto": "float32", "native": "float32", "bfloat16": "bfloat16", "int8": "int8"}
_FEW, _MANY = 2, 256  # rows: up to the first and from the second on the weight as stored is as fast or faster
_ROWS_HINT = 16  # the number of rows that oneDNN picks its layout for: with 1, 16 rows take 1.3 times as long


def can_pack(weight_NK: torch.Tensor) -> bool:
    """Whether oneDNN can keep this weight in its own layout."""
    here = weight_NK.device.type == "cpu" and weight_NK.dtype == torch.float32
    built_in = torch.backends.mkldnn.is_available()
    return here and built_in and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def native(layout: str, weight: torch.Tensor) -> str | None:
    """What our own kernels are to keep a weight in, or None where torch computes with it.

    Raises:
        CardError: they were asked for by name and cannot be had here.
    """
    if layout not in NATIVE or (layout == "auto" and not (cpu_build.wanted() and cpu.usable(weight))):
        return None
    if not cpu.usable(weight):
        reason = cpu_build.why() or f"they take float32 weights on a CPU, not {weight.dtype} on {weight.device}"
        raise CardError(f"linear={layout!r} asks for kernels that cannot be had: {reason}; use 'auto'")
    return NATIVE[layout]


def varies(device: torch.device, layout: str = "auto") -> str:
    """Why products of this layout depend on the rows of a call, for who asked for a mode in which nothing does."""
    told = f"linear={layout!r} is torch's there, whose sums depend on how many rows a call has"
    if device.type != "cpu":
        return f"{told}; on {device} that cannot be had yet, leave batch_invariant out"
    if reason := "" if cpu_build.library() is not None else cpu_build.why():
        return f"{told}, and our own kernels cannot be had: {reason}; install a compiler, or leave batch_invariant out"
    unset = " and unset OMNI_KERNELS" if os.environ.get("OMNI_KERNELS") else ""
    return f"{told}; take linear='auto', 'native', 'bfloat16' or 'int8'{unset}, or leave batch_invariant out"


def linear(weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None, layout: str = "auto") -> Linear:
    """x ↦ x Wᵀ + b. Layouts differ in the order of summation only: 1e-6 relative.

    "native", "bfloat16" and "int8" are our own kernels with weights of that type, "plain" keeps the weight as it is given,
    "packed" one packed copy; "paged", which means something for a whole decoder, is "plain"; "auto" is "native" where it can be
    had, else what the table above says.

    Raises:
        CardError: an unknown layout, or one that cannot be had here.
    """
    if layout not in LAYOUTS:
        raise CardError(f"linear={layout!r}: one of {', '.join(LAYOUTS)} needed")
    if (kind := native(layout, weight_NK)) is not None:
        return cpu.linear(cpu.pack(weight_NK, bias_N, kind))
    if layout == "packed" and not can_pack(weight_NK):
        what = f"{weight_NK.dtype} on {weight_NK.device}"
        raise CardError(f"linear='packed': oneDNN packs float32 weights on a CPU, not {what}; use 'auto'")
    if layout in ("plain", "paged") or (layout == "auto" and (weight_NK.numel() < PACKED_FROM or not can_pack(weight_NK))):
        return lambda x_TK: F.linear(x_TK, weight_NK, bias_N)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_NK, _ROWS_HINT)
    run = torch.ops.mkldnn._linear_pointwise.default
    if layout == "packed":
        return lambda x_TK: run(x_TK, packed, bias_N, "none", [], "")

    def by_rows(x_TK: torch.Tensor) -> torch.Tensor:
        return run(x_TK, packed, bias_N, "none", [], "") if _FEW < len(x_TK) < _MANY else F.linear(x_TK, weight_NK, bias_N)

    return by_rows
