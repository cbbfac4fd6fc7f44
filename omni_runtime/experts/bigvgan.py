"""BigVGAN (Lee et al. 2023): mel frames to sound, by itself or in pieces.

Each rate upsamples, and then averages residual blocks of dilated convolutions. Their Snake activations run at twice the rate,
between a filter that upsamples and one that goes back, so that what they add above the highest frequency is not folded down.

It looks ahead as well as back, but not far: the sound of mel frames a .. b depends on frames a - back .. b + ahead only
(`reach`: 34 and 34 for the published rates). So a stream keeps nothing: each piece is decoded with so much around it and cut, and
pieces of any size give the sound of one call.

Suffixes: R rows, C channels, T positions, M mels, S samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from omni_runtime.experts.causal import snake
from omni_runtime.experts.encoder_layers import Parts, Tensors
from omni_runtime.weights.qwen2_5_omni_parts import NEAR, WavesConfig

TAPS = 12  # of both filters
TILE = 32  # positions that are filtered by one product
QUIET, LOUD = -115.0, 20.0  # dB: the floor of a mel spectrogram, and what its top stands above 0

Act = Callable[[torch.Tensor], torch.Tensor]


class _Residual(NamedTuple):
    before: Act
    dilated: tuple[torch.Tensor, torch.Tensor, int]
    between: Act
    plain: tuple[torch.Tensor, torch.Tensor, int]


class _Rate(NamedTuple):
    weight: torch.Tensor
    bias: torch.Tensor
    rate: int
    blocks: tuple[tuple[_Residual, ...], ...]


class BigVGAN:
    """Resident weights, float32; `weights` by the names of the checkpoint below `token2wav.code2wav_bigvgan_model.`."""

    def __init__(self, config: WavesConfig, weights: Tensors, device: str = "cpu") -> None:
        self.config, self.device = config, torch.device(device)
        self.back, self.ahead = config.reach
        parts = Parts(weights, self.device, "plain")
        self._up, self._down = (band.to(self.device) for band in bands())

        def conv(at: str, dilation: int = 1) -> tuple[torch.Tensor, torch.Tensor, int]:
            return parts.take(f"{at}.weight"), parts.take(f"{at}.bias"), dilation

        def act(at: str) -> Act:
            bent = snake(parts.take(f"{at}.act.alpha"), parts.take(f"{at}.act.beta"))
            return lambda x_RCT: self._smooth(bent, x_RCT)

        with torch.inference_mode():
            self._first, self._rates = conv("conv_pre"), []
            for i, rate in enumerate(config.rates):
                blocks = []
                for j, dilations in enumerate(config.dilations):
                    at = f"resblocks.{i * len(config.dilations) + j}"
                    blocks.append(
                        tuple(
                            _Residual(
                                act(f"{at}.activations.{2 * k}"),
                                conv(f"{at}.convs1.{k}", dilation),
                                act(f"{at}.activations.{2 * k + 1}"),
                                conv(f"{at}.convs2.{k}"),
                            )
                            for k, dilation in enumerate(dilations)
                        )
                    )
                self._rates.append(_Rate(parts.take(f"ups.{i}.0.weight"), parts.take(f"ups.{i}.0.bias"), rate, tuple(blocks)))
            self._act, self._last = act("activation_post"), parts.take("conv_post.weight")

    @torch.inference_mode()
    def decode(self, mel_RTM: torch.Tensor) -> torch.Tensor:
        """wave_RS within -1..1: hop samples a frame. What is around the frames counts as silence."""
        decibel_RMT = (mel_RTM.to(self.device, torch.float32).transpose(1, 2) * (20 / math.log(10))).clamp(min=QUIET) - LOUD
        x_RCT = _same((1 - 2 * decibel_RMT / QUIET).clamp(-1, 1), self._first)
        for weight, bias, rate, blocks in self._rates:
            x_RCT = F.conv_transpose1d(x_RCT, weight, bias, stride=rate, padding=(weight.shape[2] - rate) // 2)
            total: torch.Tensor | None = None
            for block in blocks:
                y_RCT = x_RCT
                for before, dilated, between, plain in block:
                    y_RCT = y_RCT + _same(between(_same(before(y_RCT), dilated)), plain)
                total = y_RCT if total is None else total + y_RCT
            assert total is not None
            x_RCT = total / len(blocks)
        wave_R1S = F.conv1d(self._act(x_RCT), self._last, padding=self._last.shape[2] // 2)
        return wave_R1S[:, 0].clamp(-1.0, 1.0)

    def piece(self, first: int, frames_TM: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """The sound of frames start .. stop of a stream, of which frames from `first` on are given.

        To be that of one call over all of it, there must be `back` frames before `start`, or the stream's first one, and `ahead`
        after `stop`, or its last.
        """
        low, high = max(first, start - self.back), min(first + len(frames_TM), stop + self.ahead)
        wave_S = self.decode(frames_TM[None, low - first : high - first])[0]
        return wave_S[(start - low) * self.config.hop : (stop - low) * self.config.hop].clone()

    def _smooth(self, bent: Act, x_RCT: torch.Tensor) -> torch.Tensor:
        """An activation at twice the rate. Both filters see the outermost values go on for ever."""
        rows, channels, count = x_RCT.shape
        twice_NT = _banded(x_RCT.flatten(0, 1), self._up, NEAR, NEAR, TILE, 2 * count)
        twice_NT = bent(twice_NT.view(rows, channels, -1)).flatten(0, 1)
        return _banded(twice_NT, self._down, TAPS // 2 - 1, TAPS // 2, 2 * TILE, count).view(rows, channels, count)


def bands() -> tuple[torch.Tensor, torch.Tensor]:
    """Both filters as products of tiles, [TILE + 6, 2 TILE] and [2 TILE + 10, TILE]: a banded matrix, mostly zeros.

    On a CPU they take a fourth to a fifth of the time of convolutions with one channel: the first one 0.8 ms for 64 channels of
    7,200 positions, where the convolution takes 4.6.
    """
    filter_K = half_band()
    up, down = torch.zeros(TILE + 2 * NEAR, 2 * TILE), torch.zeros(2 * TILE + TAPS - 2, TILE)
    for i in range(TILE):
        # Outputs 2i and 2i + 1 of the first are sums over inputs i - 3 .. i + 2 and i - 2 .. i + 3.
        up[i : i + 2 * NEAR, 2 * i] = 2 * filter_K[1::2].flip(0)
        up[i + 1 : i + 1 + 2 * NEAR, 2 * i + 1] = 2 * filter_K[0::2].flip(0)
        down[2 * i : 2 * i + TAPS, i] = filter_K
    return up, down


def _banded(x_NT: torch.Tensor, band_KJ: torch.Tensor, left: int, right: int, step: int, count: int) -> torch.Tensor:
    """`count` outputs a row, those of tile t from inputs t · step on; so many inputs are put before and after those there are."""
    size, out = band_KJ.shape
    tiles, there = -(-count // out), left + x_NT.shape[1]
    padded_NT = x_NT.new_zeros(len(x_NT), (tiles - 1) * step + size)
    padded_NT[:, :left], padded_NT[:, left:there], padded_NT[:, there : there + right] = x_NT[:, :1], x_NT, x_NT[:, -1:]
    return (padded_NT.unfold(1, size, step) @ band_KJ).flatten(1)[:, :count].contiguous()


def half_band() -> torch.Tensor:
    """filter_K: a sinc that cuts at half of the band, under a Kaiser window, with sum 1 (Kaiser 1974's rule for its shape)."""
    cut, width = 0.25, 0.3  # of the sampling rate: where it cuts, and half of how wide the flank is
    decibel = 2.285 * (TAPS // 2 - 1) * math.pi * 4 * width + 7.95
    beta = 0.1102 * (decibel - 8.7)  # above 50 dB, and these are 51
    place_K = torch.arange(TAPS) - (TAPS - 1) / 2
    filter_K = torch.kaiser_window(TAPS, periodic=False, beta=beta) * torch.sinc(2 * cut * place_K)
    return filter_K / filter_K.sum()


def _same(x_RCT: torch.Tensor, conv: tuple[torch.Tensor, torch.Tensor, int]) -> torch.Tensor:
    weight, bias, dilation = conv
    return F.conv1d(x_RCT, weight, bias, padding=(weight.shape[2] - 1) // 2 * dilation, dilation=dilation)
