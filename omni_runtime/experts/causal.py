"""Causal convolutions over a stream that comes in pieces: each keeps what the next piece needs of the ones before.

A piece gives exactly what it adds to the answer of the whole, so pieces of any size give the sound of one call, up to rounding.

Suffixes: R rows, C channels, T positions of a piece, P positions kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Carry = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""x_RCT, what was kept → y_RCT, what to keep"""


class CausalConv:
    """y(t) = Σ_k w(k) x(t - (K - 1 - k)·dilation) + b, x = 0 before the beginning. The last (K - 1)·dilation inputs are kept."""

    def __init__(self, weight: torch.Tensor, bias_C: torch.Tensor, dilation: int = 1, groups: int = 1) -> None:
        self._weight, self._bias_C, self._dilation, self._groups = weight, bias_C, dilation, groups
        self._kept = (weight.shape[2] - 1) * dilation
        self._channels = weight.shape[1] * groups

    def fresh(self) -> torch.Tensor:
        """What is kept before the beginning, [C, P]."""
        return self._weight.new_zeros(self._channels, self._kept)

    def __call__(self, x_RCT: torch.Tensor, kept_RCP: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_RCT = torch.cat([kept_RCP, x_RCT], -1)
        y_RCT = F.conv1d(x_RCT, self._weight, self._bias_C, dilation=self._dilation, groups=self._groups)
        return y_RCT, x_RCT[..., x_RCT.shape[-1] - self._kept :]


class CausalUpsample:
    """A transposed convolution of stride r and kernel r or 2r.

    With kernel 2r input t adds to the blocks of r samples t and t + 1, so a block is whole when the next input is there. Kept is
    the half of the last input that is still to come. The first block has no input before it, and is not part of the answer:
    from n inputs come (n - 1)·r samples, and from then on r for each. The makers cut both ends of their one call the same way.
    """

    def __init__(self, weight: torch.Tensor, bias_C: torch.Tensor, rate: int) -> None:
        self._weight, self._bias_C1, self._rate = weight, bias_C[:, None], rate
        self._kept = weight.shape[2] - rate
        assert self._kept in (0, rate), f"a kernel of {weight.shape[2]} for a stride of {rate}"

    def fresh(self) -> torch.Tensor:
        """What is kept before the beginning, [C, P]."""
        return self._weight.new_zeros(self._weight.shape[1], self._kept)

    def __call__(self, x_RCT: torch.Tensor, kept_RCP: torch.Tensor, begins: bool) -> tuple[torch.Tensor, torch.Tensor]:
        y_RCT = F.conv_transpose1d(x_RCT, self._weight, stride=self._rate)
        if not self._kept:
            return y_RCT + self._bias_C1, kept_RCP
        whole = x_RCT.shape[-1] * self._rate
        y_RCT[..., : self._kept] += kept_RCP
        first = self._kept if begins else 0
        return y_RCT[..., first:whole] + self._bias_C1, y_RCT[..., whole:]


def snake(alpha_C: torch.Tensor, beta_C: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """x + sin²(e^α x) / (e^β + 1e-9), a channel at a time (Ziyin et al. 2020, equation 3; BigVGAN's form with two parameters)."""
    rate_C1 = alpha_C.exp()[:, None]
    share_C1 = 1.0 / (beta_C.exp()[:, None] + 1e-9)

    def run(x_RCT: torch.Tensor) -> torch.Tensor:
        wave_RCT = (x_RCT * rate_C1).sin_()
        return torch.addcmul(x_RCT, share_C1, wave_RCT.mul_(wave_RCT))  # square() is pow, and takes twice as long

    return run
