"""Adaptive layer norm (Peebles and Xie 2023, section 3.2), and the gated residual that goes with it: the definition.

Suffixes: B batch, N tokens, D features. Everything is computed in the dtype of x.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

EPS = 1e-6  # in units of x²


def modulate(x_BND: torch.Tensor, shift_BD: torch.Tensor, scale_BD: torch.Tensor) -> torch.Tensor:
    """(x - mean) / sqrt(variance + EPS) · (1 + scale) + shift; mean and variance are those of a token's features.

    Raises:
        ValueError: shapes do not fit.
    """
    check("modulate", x_BND, None, shift_BD, scale_BD)
    normed_BND = F.layer_norm(x_BND, x_BND.shape[-1:], None, None, EPS)
    return torch.addcmul(shift_BD[:, None], normed_BND, 1 + scale_BD[:, None])


def gate(x_BND: torch.Tensor, delta_BND: torch.Tensor, gate_BD: torch.Tensor) -> torch.Tensor:
    """x + gate · delta.

    Raises:
        ValueError: shapes do not fit.
    """
    check("gate", x_BND, delta_BND, gate_BD)
    return torch.addcmul(x_BND, gate_BD[:, None], delta_BND)


def check(op: str, x_BND: torch.Tensor, delta_BND: torch.Tensor | None, *vectors_BD: torch.Tensor) -> None:
    """Whether shapes fit. ValueError if not."""
    fits = x_BND.dim() == 3 and (delta_BND is None or delta_BND.shape == x_BND.shape)
    if not fits or any(vector.shape != (x_BND.shape[0], x_BND.shape[2]) for vector in vectors_BD):
        others = [tuple(t.shape) for t in (delta_BND, *vectors_BD) if t is not None]
        raise ValueError(f"{op}: x {tuple(x_BND.shape)} and {others} do not fit: x [B, N, D], delta like it, vectors [B, D]")
