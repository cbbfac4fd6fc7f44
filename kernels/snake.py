"""SnakeBeta (Ziyin et al. 2020, equation 3, with magnitude apart from frequency as in BigVGAN: Lee et al. 2023): the definition.

Suffixes: N sequences, C channels, L positions.
"""

from __future__ import annotations

import torch

EPS = 1e-9  # of the magnitude's divisor


def snake_beta(x_NCL: torch.Tensor, alpha_C: torch.Tensor, beta_C: torch.Tensor) -> torch.Tensor:
    """x + sin²(x · exp(alpha)) / (exp(beta) + EPS): frequency and magnitude of a channel are given as logarithms.

    Computed in float32, rounded once to the dtype of x.

    Raises:
        ValueError: shapes do not fit.
    """
    check(x_NCL, alpha_C, beta_C)
    x = x_NCL.float()
    sine = torch.sin(x * alpha_C.float().exp()[:, None])
    return (x + sine.square() / (beta_C.float().exp() + EPS)[:, None]).to(x_NCL.dtype)


def check(x_NCL: torch.Tensor, alpha_C: torch.Tensor, beta_C: torch.Tensor) -> None:
    """Whether shapes fit. ValueError if not."""
    if x_NCL.dim() != 3 or alpha_C.shape != x_NCL.shape[1:2] or beta_C.shape != alpha_C.shape:
        shapes = f"x {tuple(x_NCL.shape)}, alpha {tuple(alpha_C.shape)}, beta {tuple(beta_C.shape)}"
        raise ValueError(f"snake_beta: {shapes} do not fit [N, C, L], [C], [C]")
