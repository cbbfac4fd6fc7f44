"""SnakeBeta in Triton, alone and as a function that the convolutions apply to what they load. Definition: `snake.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.snake import EPS, check


@triton.jit
def snake(x, alpha, beta, eps):
    """x + sin²(x · exp(alpha)) / (exp(beta) + eps), all float32.

    The square of the sine is a polynomial after x is brought to within half a period: `tl.sin` reduces any x exactly, which takes
    a table, and gave a convolution 568 spill instructions on sm_90. Error below 6e-6 up to 30 radians, most of it the rounding
    of the product to float32, as with any sine.
    """
    turns = x * tl.exp(alpha) * 0.3183098861837907
    r = turns - tl.floor(turns + 0.5)
    z = r * r
    s = -0.0073704309457  # sin(pi r) / r, Taylor: pi^(2k+1) / (2k+1)!
    s = s * z + 0.0821458866111
    s = s * z - 0.5992645293208
    s = s * z + 2.5501640398774
    s = s * z - 5.1677127800500
    s = (s * z + 3.1415926535898) * r
    return x + s * s / (tl.exp(beta) + eps)


@triton.jit
def _kernel(x, alpha, beta, out, channels, length, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < length
    channel = row % channels
    a, b = tl.load(alpha + channel).to(tl.float32), tl.load(beta + channel).to(tl.float32)
    value = tl.load(x + row * length + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * length + column, snake(value, a, b, eps).to(out.dtype.element_ty), mask=inside)


def snake_beta(x_NCL: torch.Tensor, alpha_C: torch.Tensor, beta_C: torch.Tensor) -> torch.Tensor:
    """As `snake.snake_beta`."""
    check(x_NCL, alpha_C, beta_C)
    out_NCL = torch.empty(x_NCL.shape, dtype=x_NCL.dtype, device=x_NCL.device)
    if out_NCL.numel() == 0:
        return out_NCL
    sequences, channels, length = x_NCL.shape
    block: int = min(triton.next_power_of_2(length), 1024)
    launch = {"BLOCK": block, "num_warps": max(block // 256, 1), "enable_fp_fusion": False}
    inputs = (x_NCL.contiguous(), alpha_C.contiguous(), beta_C.contiguous(), out_NCL)
    _kernel[(sequences * channels, triton.cdiv(length, block))](*inputs, channels, length, EPS, **launch)
    return out_NCL
