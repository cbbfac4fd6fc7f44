"""A linear layer as a function, in the layout that is fastest for its device, its shape and the rows of the call.

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

from collections.abc import Callable

import torch
import torch.nn.functional as F

from omni_runtime.errors import CardError
from omni_runtime.weights.memory import PACKED_FROM

Linear = Callable[[torch.Tensor], torch.Tensor]
"""x_TK → y_TN"""

LAYOUTS = ("auto", "packed", "plain")
_FEW, _MANY = 2, 256  # rows: up to the first and from the second on the weight as stored is as fast or faster
_ROWS_HINT = 16  # the number of rows that oneDNN picks its layout for: with 1, 16 rows take 1.3 times as long


def can_pack(weight_NK: torch.Tensor) -> bool:
    """Whether oneDNN can keep this weight in its own layout."""
    here = weight_NK.device.type == "cpu" and weight_NK.dtype == torch.float32
    built_in = torch.backends.mkldnn.is_available()
    return here and built_in and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def linear(weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None, layout: str = "auto") -> Linear:
    """x ↦ x Wᵀ + b. Layouts differ in the order of summation only: 1e-6 relative.

    "plain" keeps the weight as it is given, "packed" one packed copy, "auto" what the table above says.

    Raises:
        CardError: an unknown layout, or "packed" where oneDNN cannot.
    """
    if layout not in LAYOUTS:
        raise CardError(f"linear={layout!r}: one of {', '.join(LAYOUTS)} needed")
    if layout == "packed" and not can_pack(weight_NK):
        what = f"{weight_NK.dtype} on {weight_NK.device}"
        raise CardError(f"linear='packed': oneDNN packs float32 weights on a CPU, not {what}; use 'auto'")
    if layout == "plain" or (layout == "auto" and (weight_NK.numel() < PACKED_FROM or not can_pack(weight_NK))):
        return lambda x_TK: F.linear(x_TK, weight_NK, bias_N)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_NK, _ROWS_HINT)
    run = torch.ops.mkldnn._linear_pointwise.default
    if layout == "packed":
        return lambda x_TK: run(x_TK, packed, bias_N, "none", [], "")

    def by_rows(x_TK: torch.Tensor) -> torch.Tensor:
        return run(x_TK, packed, bias_N, "none", [], "") if _FEW < len(x_TK) < _MANY else F.linear(x_TK, weight_NK, bias_N)

    return by_rows
