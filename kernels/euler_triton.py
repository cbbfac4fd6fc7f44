"""Guidance and an Euler step as one Triton kernel: a program per stretch of a row. Definition: `euler.py`.

Suffixes: R rows, each a step of one request; B branches, rows of the network's batch; X elements of a latent, on any axes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.euler import check


@triton.jit
def _kernel(latent, velocity, with_, without, scale, sigma, target, after, clean, branches, elements, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < elements
    prompted, free = tl.load(with_ + row).to(tl.int64), tl.load(without + row).to(tl.int64)
    fits = (prompted >= 0) & (prompted < branches) & (free >= 0) & (free < branches)
    known = column < tl.where(fits, elements, 0)  # a branch that is not there gives NaN
    v1 = tl.load(velocity + prompted * elements + column, mask=known, other=float("nan")).to(tl.float32)
    v0 = tl.load(velocity + free * elements + column, mask=known, other=float("nan")).to(tl.float32)
    v = v0 + tl.load(scale + row) * (v1 - v0)
    noise = tl.load(sigma + row)
    x = tl.load(latent + row * elements + column, mask=inside, other=0.0)
    tl.store(after + row * elements + column, x + (tl.load(target + row) - noise) * v, mask=inside)
    tl.store(clean + row * elements + column, x - noise * v, mask=inside)


def guided_euler(
    latent_RX: torch.Tensor,
    velocity_BX: torch.Tensor,
    with_R: torch.Tensor,
    without_R: torch.Tensor,
    scale_R: torch.Tensor,
    sigma_R: torch.Tensor,
    target_R: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `euler.guided_euler`; bit-equal to it in float32, since products are not contracted."""
    rows = (with_R, without_R, scale_R, sigma_R, target_R)
    check(latent_RX, velocity_BX, *rows)
    after_RX = torch.empty(latent_RX.shape, dtype=torch.float32, device=latent_RX.device)
    clean_RX = torch.empty(latent_RX.shape, dtype=torch.float32, device=latent_RX.device)
    if latent_RX.numel() == 0:
        return after_RX, clean_RX
    elements = latent_RX[0].numel()
    block: int = min(triton.next_power_of_2(elements), 1024)
    launch = {"BLOCK": block, "num_warps": max(block // 256, 1), "enable_fp_fusion": False}
    values = (latent_RX.float().contiguous(), velocity_BX.contiguous(), *(row.contiguous() for row in rows))
    _kernel[(len(latent_RX), triton.cdiv(elements, block))](*values, after_RX, clean_RX, len(velocity_BX), elements, **launch)
    return after_RX, clean_RX
