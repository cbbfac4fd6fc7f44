"""The gate of SwiGLU (Shazeer 2020, equation 5, whose Swish with beta 1 is SiLU): the definition.

Suffixes: R rows, F features of the gate.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of rows that hold the gate and then up: [..., 2F] → [..., F].

    Computed in float32, rounded once to the dtype of x. Any number of leading axes.

    Raises:
        ValueError: the last axis has no two halves.
    """
    check(x)
    gate_RF, up_RF = x.float().chunk(2, -1)
    return (F.silu(gate_RF) * up_RF).to(x.dtype)


def check(x: torch.Tensor) -> None:
    """Whether shapes fit. ValueError if not."""
    if x.dim() == 0 or x.shape[-1] % 2:
        raise ValueError(f"silu_mul: x {tuple(x.shape)}, the last axis must hold gate and up, as many of each")
