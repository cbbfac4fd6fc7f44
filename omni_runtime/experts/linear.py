"""A linear layer as a function, in the layout that is fastest for its device and shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from omni_runtime.errors import CardError

Linear = Callable[[torch.Tensor], torch.Tensor]
"""x_TK → y_TN"""

LAYOUTS = ("auto", "packed", "plain")
# Weights below this many elements stay plain. 576x576 at 1, 4, 16, 128 rows: plain 63, 87, 147, 630 µs, packed 93, 90, 160, 677;
# 960x576: plain 167, 297, 460, 1130, packed 203, 207, 313, 1080 (one thread of a Sapphire Rapids Xeon).
_SMALL = 400_000
_ROWS_HINT = 16  # the number of rows that oneDNN picks the layout for: with 1, 16 rows take 1.3 times as long


def can_pack(weight_NK: torch.Tensor) -> bool:
    """Whether oneDNN can keep this weight in its own layout."""
    here = weight_NK.device.type == "cpu" and weight_NK.dtype == torch.float32
    return here and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


def linear(weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None, layout: str = "auto") -> Linear:
    """x ↦ x Wᵀ + b. A packed weight is a copy, so that the plain one can be let go of.

    Layouts differ in the order of summation only: 1e-6 relative.

    Raises:
        CardError: an unknown layout, or "packed" where oneDNN cannot.
    """
    if layout not in LAYOUTS:
        raise CardError(f"linear={layout!r}: one of {', '.join(LAYOUTS)} needed")
    if layout == "packed" and not can_pack(weight_NK):
        raise CardError(f"linear='packed': oneDNN packs float32 weights on a CPU, not {weight_NK.dtype} on {weight_NK.device}; use 'auto'")
    if layout == "plain" or not can_pack(weight_NK) or (layout == "auto" and weight_NK.numel() < _SMALL):
        return lambda x_TK: F.linear(x_TK, weight_NK, bias_N)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_NK, _ROWS_HINT)
    run = torch.ops.mkldnn._linear_pointwise.default
    return lambda x_TK: run(x_TK, packed, bias_N, "none", [], "")
