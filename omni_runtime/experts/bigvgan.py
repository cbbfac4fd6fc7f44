"""BigVGAN (Lee et al. 2023): mel frames to sound, by itself or in pieces.

Each rate upsamples, and then averages residual blocks of dilated convolutions. Their Snake activations run at twice the rate,
between a filter that upsamples and one that goes back, so that what they add above the highest frequency is not folded down.

It looks ahead as well as back, but not far: the sound of mel frames a .. b depends on frames a - back .. b + ahead only
(`reach`: 34 and 34 for the published rates). So a stream keeps nothing: each piece is decoded with so much around it, and pieces
of any size give the sound of one call. What a piece needs grows narrower with every operation (`WavesConfig.needs`), and no
more of it is computed: of a piece of 14 frames the first rate computes 38 to 74, not 82, the last one 14 or 15.

Suffixes: R rows, C channels, T positions, M mels, S samples.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch

from omni_runtime.experts.encoder_layers import Parts, Tensors
from omni_runtime.kernels import cpu_sound, sound
from omni_runtime.kernels.sound import Bend, Stretch
from omni_runtime.weights.qwen2_5_omni_parts import Span, UnitNeeds, WavesConfig

QUIET, LOUD = -115.0, 20.0  # dB: the floor of a mel spectrogram, and what its top stands above 0


class _Unit(NamedTuple):
    """x + plain(bent(dilated(bent(x))))."""

    dilated: Stretch
    plain: Stretch


class _Rate(NamedTuple):
    grow: Stretch
    rate: int
    blocks: tuple[tuple[_Unit, ...], ...]


class _Held(NamedTuple):
    """Positions `span` of a row that is `length` long: all that an operation is given, and all that it is asked for."""

    x_CT: torch.Tensor
    span: Span
    length: int

    def then(self, run: Stretch, wanted: Span, into: _Held | None = None) -> _Held:
        """The answer where it is wanted and there is one, added to what `into` holds there, in place."""
        span = wanted.within(self.length)
        to = None if into is None else into.x_CT[:, span.low - into.span.low : span.high - into.span.low]
        return _Held(run(self.x_CT, span.low - self.span.low, span.high - self.span.low, to), span, self.length)


class BigVGAN:
    """Resident weights, float32; `weights` by the names of the checkpoint below `token2wav.code2wav_bigvgan_model.`.

    With a `form` of the kernels, or on a GPU, activations are the fused kernel.
    """

    def __init__(self, config: WavesConfig, weights: Tensors, device: str = "cpu", form: str | None = None) -> None:
        self.config, self.device = config, torch.device(device)
        self.back, self.ahead = config.reach
        parts = Parts(weights, self.device, "plain")
        ours = self.exact = form is None and cpu_sound.usable(self.device)
        convolve, grow = (cpu_sound.conv, cpu_sound.grow) if ours else (partial(sound.conv, form=form), sound.grow)

        def act(at: str) -> Bend:
            return parts.take(f"{at}.act.alpha"), parts.take(f"{at}.act.beta")

        def conv(at: str, dilation: int = 1, smooth: Bend | None = None) -> Stretch:
            return convolve(parts.take(f"{at}.weight"), parts.take(f"{at}.bias"), dilation, smooth)

        def unit(at: str, k: int, dilation: int) -> _Unit:
            before, between = (act(f"{at}.activations.{2 * k + i}") for i in range(2))
            return _Unit(conv(f"{at}.convs1.{k}", dilation, before), conv(f"{at}.convs2.{k}", 1, between))

        with torch.inference_mode():
            self._first, self._rates, number = conv("conv_pre"), [], 0
            for i, rate in enumerate(config.rates):
                blocks = []
                for dilations in config.dilations:
                    blocks.append(tuple(unit(f"resblocks.{number}", k, dilation) for k, dilation in enumerate(dilations)))
                    number += 1
                up = grow(parts.take(f"ups.{i}.0.weight"), parts.take(f"ups.{i}.0.bias"), rate)
                self._rates.append(_Rate(up, rate, tuple(blocks)))
            self._last = convolve(parts.take("conv_post.weight"), smooth=act("activation_post"))

    def decode(self, mel_RTM: torch.Tensor) -> torch.Tensor:
        """wave_RS within -1..1: hop samples a frame. What is around the frames counts as silence."""
        frames = mel_RTM.shape[1]
        return torch.stack([self._sound(mel_TM, 0, frames) for mel_TM in mel_RTM])

    def piece(self, first: int, frames_TM: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """The sound of frames start .. stop of a stream, of which frames from `first` on are given.

        To be that of one call over all of it, there must be `back` frames before `start`, or the stream's first one, and `ahead`
        after `stop`, or its last.
        """
        low, high = max(first, start - self.back), min(first + len(frames_TM), stop + self.ahead)
        return self._sound(frames_TM[low - first : high - first], start - low, stop - low)

    @torch.inference_mode()
    def _sound(self, mel_TM: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """wave_S of frames start .. stop, as of a stream that has these frames only."""
        needs, frames = self.config.needs(start, stop), len(mel_TM)
        span = needs.mels.within(frames)
        decibel_MT = mel_TM[span.low : span.high].to(self.device, torch.float32).T * (20 / math.log(10))
        scaled_MT = (1 - 2 * (decibel_MT.clamp(min=QUIET) - LOUD) / QUIET).clamp(-1, 1)
        held = _Held(scaled_MT, span, frames).then(self._first, needs.first)
        for (up, rate, blocks), need in zip(self._rates, needs.rates, strict=True):
            # In its answer's positions, of which the first is that of the first input.
            x = _Held(held.x_CT, Span(held.span.low * rate, held.span.high * rate), held.length * rate).then(up, need.grown)
            parts = [_block(x, block, needed) for block, needed in zip(blocks, need.blocks, strict=True)]
            total_CT = parts[0].x_CT
            for part in parts[1:]:
                total_CT += part.x_CT
            held = _Held(total_CT.div_(len(parts)), parts[0].span, x.length)
        return held.then(self._last, needs.sound).x_CT[0].clamp(-1.0, 1.0)


def _block(x: _Held, units: tuple[_Unit, ...], needs: tuple[UnitNeeds, ...]) -> _Held:
    to = x._replace(x_CT=x.x_CT.clone())  # other blocks read x
    for unit, need in zip(units, needs, strict=True):
        x = to = x.then(unit.dilated, need.dilated).then(unit.plain, need.out, to)
    return x
