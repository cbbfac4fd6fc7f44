"""Causal convolutions over a stream that comes in pieces: each keeps what the next piece needs of the ones before.

A piece gives exactly what it adds to the answer of the whole, so pieces of any size give the sound of one call: to the bit with
the kernels for a CPU (`cpu_sound`), up to rounding without.

Suffixes: R rows, C channels, T positions of a piece, P positions kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from omni_runtime.kernels import cpu_sound
from omni_runtime.kernels.sound import Bend, snake_of

Carry = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""x_RCT, what was kept → y_RCT, what to keep"""


class CausalConv:
    """y(t) = Σ_k w(k) f(x(t - (K - 1 - k)·dilation)) + b, x = 0 before the beginning. The last (K - 1)·dilation inputs are kept.

    f is a Snake, if one is given.
    """

    def __init__(
        self, weight: torch.Tensor, bias_C: torch.Tensor, dilation: int = 1, groups: int = 1, bend: Bend | None = None
    ) -> None:
        self._weight, self._bias_C, self._dilation, self._groups = weight, bias_C, dilation, groups
        self._kept = (weight.shape[2] - 1) * dilation
        self._channels = weight.shape[1] * groups
        self._bent = None if bend is None else snake(*bend)
        ours = cpu_sound.usable(weight.device)
        self._dense = cpu_sound.causal(weight, bias_C, dilation, bend) if ours and groups == 1 else None
        alone = ours and bend is None and groups == len(weight) and weight.shape[1] == dilation == 1
        self._alone = cpu_sound.depthwise(weight, bias_C) if alone else None

    def fresh(self) -> torch.Tensor:
        """What is kept before the beginning, [C, P]."""
        return self._weight.new_zeros(self._channels, self._kept)

    def __call__(
        self, x_RCT: torch.Tensor, kept_RCP: torch.Tensor, into: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """y_RCT, added to `into` in place if that is given, and what to keep."""
        if self._dense is not None:
            return self._dense(x_RCT, 0, x_RCT.shape[-1], into, kept_RCP), _last(x_RCT, kept_RCP)
        long_RCT = torch.cat([kept_RCP, x_RCT], -1)
        if self._alone is not None:
            y_RCT = self._alone(long_RCT)
        else:
            bent_RCT = long_RCT if self._bent is None else self._bent(long_RCT)
            y_RCT = F.conv1d(bent_RCT, self._weight, self._bias_C, dilation=self._dilation, groups=self._groups)
        return y_RCT if into is None else into.add_(y_RCT), _last(x_RCT, kept_RCP)


class CausalUpsample:
    """A transposed convolution of stride r and kernel r or 2r.

    With kernel 2r input t adds to the blocks of r samples t and t + 1, so a block is whole when the next input is there. The last
    input is kept. The first block has no input before it, and is not part of the answer: from n inputs come (n - 1)·r samples,
    and from then on r for each. The makers cut both ends of their one call the same way.
    """

    def __init__(self, weight: torch.Tensor, bias_C: torch.Tensor, rate: int, bend: Bend | None = None) -> None:
        self._weight, self._bias_C, self._rate = weight, bias_C, rate
        self._kept = weight.shape[2] // rate - 1
        assert weight.shape[2] in (rate, 2 * rate), f"a kernel of {weight.shape[2]} for a stride of {rate}"
        self._bent = None if bend is None else snake(*bend)
        self._ours = cpu_sound.causal_grow(weight, bias_C, rate, bend) if cpu_sound.usable(weight.device) else None

    def fresh(self) -> torch.Tensor:
        """What is kept before the beginning, [C, P]."""
        return self._weight.new_zeros(self._weight.shape[0], self._kept)

    def __call__(self, x_RCT: torch.Tensor, kept_RCP: torch.Tensor, begins: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """y_RCT, and what to keep."""
        first, count = self._kept * self._rate if begins else 0, x_RCT.shape[-1]
        if self._ours is not None:
            return self._ours(x_RCT, first, count * self._rate, kept=kept_RCP), _last(x_RCT, kept_RCP)
        long_RCT = torch.cat([kept_RCP, x_RCT], -1)
        bent_RCT = long_RCT if self._bent is None else self._bent(long_RCT)
        y_RCT = F.conv_transpose1d(bent_RCT, self._weight, self._bias_C, stride=self._rate)
        past = self._kept * self._rate
        return y_RCT[..., past + first : past + count * self._rate], _last(x_RCT, kept_RCP)


def _last(x_RCT: torch.Tensor, kept_RCP: torch.Tensor) -> torch.Tensor:
    """As many positions as were kept, from the end of both: a copy, for x may be added to in place."""
    count, kept = x_RCT.shape[-1], kept_RCP.shape[-1]
    return x_RCT[..., count - kept :].clone() if count >= kept else torch.cat([kept_RCP[..., count:], x_RCT], -1)


def snake(alpha_C: torch.Tensor, beta_C: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """x + sin²(e^α x) / (e^β + 1e-9), a channel at a time (Ziyin et al. 2020, equation 3; BigVGAN's form with two parameters)."""
    rate_C1, share_C1 = snake_of(alpha_C, beta_C)

    def run(x_RCT: torch.Tensor) -> torch.Tensor:
        wave_RCT = (x_RCT * rate_C1).sin_()
        return torch.addcmul(x_RCT, share_C1, wave_RCT.mul_(wave_RCT))  # square() is pow, and takes twice as long

    return run
