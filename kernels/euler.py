"""Classifier-free guidance (Ho and Salimans 2022, equation 6) and one Euler step along the guided velocity: the definition.

Suffixes: R rows, each a step of one request; B branches, rows of the network's batch; X elements of a latent, on any axes.
"""

from __future__ import annotations

import torch


def guided_euler(
    latent_RX: torch.Tensor,
    velocity_BX: torch.Tensor,
    with_R: torch.Tensor,
    without_R: torch.Tensor,
    scale_R: torch.Tensor,
    sigma_R: torch.Tensor,
    target_R: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every row one step on, by its own guidance and noise levels.

    Args:
        latent_RX: where the rows are, float32.
        velocity_BX: what the network says of every branch; of any float dtype, taken as float32.
        with_R: branch of each row that was given its prompt, int64.
        without_R: branch that was not; the same as `with_R` where there is no guidance.
        scale_R: guidance scale, float32; 1 where there is none.
        sigma_R, target_R: noise level before and after the step, float32.

    Returns:
        The latents after the step, and the clean latents that they point at: x - sigma v.

    Raises:
        ValueError: shapes do not fit.
    """
    check(latent_RX, velocity_BX, with_R, without_R, scale_R, sigma_R, target_R)
    axes = (-1, *[1] * (latent_RX.dim() - 1))
    free_RX = velocity_BX[without_R].float()
    velocity_RX = free_RX + scale_R.view(axes) * (velocity_BX[with_R].float() - free_RX)
    after_RX = latent_RX + (target_R - sigma_R).view(axes) * velocity_RX
    return after_RX, latent_RX - sigma_R.view(axes) * velocity_RX


def check(latent_RX: torch.Tensor, velocity_BX: torch.Tensor, *vectors_R: torch.Tensor) -> None:
    """Whether shapes fit. ValueError if not."""
    fits = latent_RX.dim() > 0 and velocity_BX.shape[1:] == latent_RX.shape[1:]
    if not fits or any(vector.shape != latent_RX.shape[:1] for vector in vectors_R):
        others = [tuple(vector.shape) for vector in vectors_R]
        raise ValueError(
            f"guided_euler: latent {tuple(latent_RX.shape)}, velocity {tuple(velocity_BX.shape)}, rows {others} do not fit"
        )
