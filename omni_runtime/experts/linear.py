"""A linear layer as a function, in the layout that is fastest for its device, its shape and the rows of the call.

Microseconds of a call with 1, 8, 16, 128, 1024 rows, float32, Sapphire Rapids Xeon, one thread, torch 2.13:

    weight        as stored (F.linear)             transposed (mm)                  packed (oneDNN)
    960 x 576     166  258   353  1027   6428      136   323   415   903   6554     261  277  335  1063   6134
    576 x 576      56  101   137   589   3729       56    61    95   472   3681      81   99  137   620   4137
    3072 x 576    566 1492  1281  3287  20484      471  1198  1430  3742  20002     609  701  864  2878  21219
    576 x 1536    235  571   514  1462   9263      254   469   561  1260   9340     324  372  447  1473  10422
    49152 x 576  8227 28692 23715     -      -    6926 19407 22840     -      -    9302 10950 13405    -      -

So one row, and very many, want the transposed weight, and what lies between wants it packed: 34 against 47 ms for the decode step
of one request, 53 against 81 ms for that of eight (SmolLM2-135M, sum of its linear layers). Both copies are kept, at twice the
memory of the layers; `layout="packed"` or "plain" keeps one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from omni_runtime.errors import CardError

Linear = Callable[[torch.Tensor], torch.Tensor]
"""x_TK → y_TN"""

LAYOUTS = ("auto", "packed", "plain")
_SMALL = 400_000  # elements: a smaller weight is read too fast for packing to pay (row 2 of the table)
_MANY = 256  # rows from which on the transposed weight is as fast again
_ROWS_HINT = 16  # the number of rows that oneDNN picks its layout for: with 1, 16 rows take 1.3 times as long


def can_pack(weight_NK: torch.Tensor) -> bool:
    """Whether oneDNN can keep this weight in its own layout."""
    here = weight_NK.device.type == "cpu" and weight_NK.dtype == torch.float32
    built_in = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
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
    if layout == "plain" or (layout == "auto" and weight_NK.device.type != "cpu"):
        return lambda x_TK: F.linear(x_TK, weight_NK, bias_N)
    if layout == "auto" and (weight_NK.numel() < _SMALL or not can_pack(weight_NK)):
        return _transposed(weight_NK, bias_N)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_NK, _ROWS_HINT)
    run = torch.ops.mkldnn._linear_pointwise.default
    if layout == "packed":
        return lambda x_TK: run(x_TK, packed, bias_N, "none", [], "")
    transposed = _transposed(weight_NK, bias_N)

    def by_rows(x_TK: torch.Tensor) -> torch.Tensor:
        return run(x_TK, packed, bias_N, "none", [], "") if 1 < len(x_TK) < _MANY else transposed(x_TK)

    return by_rows


def _transposed(weight_NK: torch.Tensor, bias_N: torch.Tensor | None) -> Linear:
    weight_KN = weight_NK.t().contiguous()
    if bias_N is None:
        return lambda x_TK: torch.mm(x_TK, weight_KN)
    return lambda x_TK: torch.addmm(bias_N, x_TK, weight_KN)
