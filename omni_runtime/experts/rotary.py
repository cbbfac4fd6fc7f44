"""Rotary positions: tables of sines and cosines, and the ways to stretch them over longer contexts.

Suffixes: T tokens, S positions, E head dimension, F = E/2 frequencies, 3 axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from omni_runtime.weights.decoder_config import DecoderConfig, RopeScaling


def falling(head_dim: int, base: float) -> torch.Tensor:
    """frequency_F = base^(-2i/E), radians a position (Su et al. 2021, section 3.2.2)."""
    return 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)


def frequencies(config: DecoderConfig) -> torch.Tensor:
    """frequency_F, scaled as the config says."""
    frequency_F = falling(config.head_dim, config.rope_theta)
    return frequency_F if config.rope_scaling is None else scaled(frequency_F, config.rope_scaling)


def scaled(frequency_F: torch.Tensor, how: RopeScaling) -> torch.Tensor:
    """Frequencies after `linear` or `llama3` scaling; see `RopeScaling`."""
    if how.kind == "linear":
        return frequency_F / how.factor
    assert how.kind == "llama3", f"unknown rope scaling {how.kind!r}"
    turns_F = how.original * frequency_F / (2 * math.pi)  # within the original context
    keep_F = ((turns_F - how.low) / (how.high - how.low)).clamp(0.0, 1.0)
    return keep_F * frequency_F + (1.0 - keep_F) * frequency_F / how.factor


def axis_of(sections: tuple[int, int, int], interleaved: bool = True) -> torch.Tensor:
    """axis_F, int64: which of the three numbers of a position turns each frequency: 0 time, 1 height, 2 width.

    M-RoPE (Qwen2-VL, section 2.1): the fastest frequencies are those of time, the next of height, the rest of width. Interleaved
    (Qwen3-VL; Qwen3-Omni, section 2.4): time, height and width take turns, from the fastest frequency on, until height and width
    have had their number of frequencies; time has the rest. So each axis sees fast and slow ones.
    """
    if not interleaved:
        return torch.arange(3).repeat_interleave(torch.tensor(sections))
    axis_F = torch.zeros(sum(sections), dtype=torch.int64)
    for axis in (1, 2):
        axis_F[axis : 3 * sections[axis] : 3] = axis
    return axis_F


def turn(x_THE: torch.Tensor, cos_T1E: torch.Tensor, sin_T1E: torch.Tensor) -> torch.Tensor:
    """Each head turned by its token's angles: (a, b) becomes (a cos - b sin, b cos + a sin), a and b the halves of a head.

    The first half of the sines is negated.
    """
    return (x_THE * cos_T1E).addcmul_(x_THE.roll(x_THE.shape[-1] // 2, -1), sin_T1E)


def halves(angle_TF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos_T1E and sin_T1E, for `turn`."""
    cos_TF, sin_TF = angle_TF.cos(), angle_TF.sin()
    return torch.cat([cos_TF, cos_TF], -1)[:, None], torch.cat([-sin_TF, sin_TF], -1)[:, None]


class Rotary:
    """Tables of rotary position embedding (Su et al. 2021, equation 34), halves rather than pairs. They grow on demand."""

    def __init__(self, config: DecoderConfig, device: torch.device) -> None:
        self._device, self._limit = device, config.positions
        self._frequency = frequencies(config)
        self._axis_F = None if config.rope_sections is None else axis_of(config.rope_sections, config.rope_interleaved)
        self._grow(min(1024, self._limit))

    def tables(self, positions: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """cos_T1E and sin_T1E, the first half of the sines negated."""
        if max(positions) >= len(self._cos_S1E):
            self._grow(min(2 * max(positions) + 2, self._limit))
        index_T = torch.tensor(positions, device=self._device)
        return self._cos_S1E[index_T], self._sin_S1E[index_T]

    def turned(self, positions_3T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `tables`, of positions that have three numbers, which may be fractions."""
        assert self._axis_F is not None, "positions of three numbers, for a decoder whose positions have one"
        angle_TF = positions_3T.float().cpu()[self._axis_F].T * self._frequency
        cos_T1E, sin_T1E = halves(angle_TF)
        return cos_T1E.to(self._device), sin_T1E.to(self._device)

    def _grow(self, length: int) -> None:
        cos_S1E, sin_S1E = halves(torch.arange(length).float()[:, None] * self._frequency)
        self._cos_S1E, self._sin_S1E = cos_S1E.to(self._device), sin_S1E.to(self._device)
