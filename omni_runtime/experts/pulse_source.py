"""A train of pulses that follows a pitch curve, and its short-time spectra, as a stream.

Formulas of hibari-tts 0.2.1 (its `dsp`): with phase t = 2 pi * (sum of f over samples) / rate and H = floor(11 kHz / f),

    cos t + ... + cos Ht = sin((H + 1/2) t) / (2 sin(t / 2)) - 1/2      (Dirichlet's kernel)

f is the pitch of the frames, linearly interpolated between their middles; where it is at most 40 Hz there is no pulse.

T frames, H = 300 samples a frame, B = 601 bins, N samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

HOP = 300
RATE = 24_000
WINDOW = 4 * HOP
VOICED = 40.0  # Hz
HIGHEST = 11_000.0  # Hz: no harmonic above
SINGULAR = 2e-3  # below this |2 sin(t / 2)| the kernel is at its limit H + 1/2


def hann(device: str) -> Tensor:
    """Periodic Hann window, float32 [1200]; made in float64, since windows differ by ulps between devices."""
    n = torch.arange(WINDOW, dtype=torch.float64)
    return (0.5 - 0.5 * torch.cos(2 * math.pi * n / WINDOW)).float().to(device)


@dataclass(frozen=True)
class Source:
    """What earlier frames of a segment left."""

    hz_T: Tensor  # pitch of the frame before the next pulse frame, and of those after it
    phase: Tensor  # float64 []: sum of f over all samples made, Hz
    wave_N: Tensor  # pulses that later spectra look at; the first of them 600 samples before the middle of the next spectrum
    started: bool  # the reflected samples before the first frame are in place


def fresh_source(first_hz: Tensor) -> Source:
    """Before its first frame, pitch [] in Hz: the pitch stays as it begins."""
    empty = first_hz.new_empty(0)
    return Source(first_hz.reshape(1), torch.zeros((), dtype=torch.float64, device=first_hz.device), empty, False)


def advance_source(source: Source, hz_T: Tensor, ends: bool, count: int, window_N: Tensor) -> tuple[Source, Tensor]:
    """Takes frames of pitch, gives the next `count` spectra, complex64 [count, B], of the pulses under the window.

    The spectrum of frame k is centred at sample 300 k and needs the pitch of frame k + 2, or the end. At both ends of a segment
    the pulses are mirrored. `window_N` is a Hann window over 300, so that a unit cosine has height 1 in its bin.
    """
    hz_T = torch.cat([source.hz_T, hz_T])
    if ends:
        hz_T = torch.cat([hz_T, hz_T[-1:]])
    pulses_N, phase = _pulses(hz_T, source.phase)
    wave_N = torch.cat([source.wave_N, pulses_N])
    started = source.started
    before = 0 if started or not count else WINDOW // 2
    if before or ends:
        wave_N = _mirrored(wave_N, before, HOP if ends else 0)
        started = True
    if not count:
        return Source(hz_T[-2:].clone(), phase, wave_N, started), window_N.new_empty((0, WINDOW // 2 + 1), dtype=torch.complex64)
    spectra_TB = torch.fft.rfft(wave_N.unfold(0, WINDOW, HOP)[:count] * window_N, dim=1)
    return Source(hz_T[-2:].clone(), phase, wave_N[count * HOP :].clone(), started), spectra_TB


def _pulses(hz_T: Tensor, phase: Tensor) -> tuple[Tensor, Tensor]:
    """Pulses of all frames that have a neighbour on both sides, [N], and the phase after them."""
    count = max(len(hz_T) - 2, 0)
    if not count:
        return hz_T.new_empty(0), phase
    half = HOP // 2
    u_H = (((torch.arange(HOP, device=hz_T.device, dtype=torch.float64) + 0.5) / HOP - 0.5) % 1.0).float()
    v_H = 1.0 - u_H
    left_T1, here_T1, right_T1 = hz_T[:-2, None], hz_T[1:-1, None], hz_T[2:, None]
    first_TH = left_T1 * v_H[:half] + here_T1 * u_H[:half]
    second_TH = here_T1 * v_H[half:] + right_T1 * u_H[half:]
    f_N = torch.cat([first_TH, second_TH], 1).reshape(-1)
    voiced_N = f_N > VOICED
    f_N = f_N.clamp(min=VOICED)
    sums_N = torch.cumsum(torch.cat([phase[None], f_N.double()]), 0)[1:]
    t_N = ((sums_N / RATE).frac() * (2 * math.pi)).float()
    top_N = torch.floor(HIGHEST / f_N) + 0.5
    below_N = 2 * torch.sin(t_N * 0.5)
    singular_N = below_N.abs() <= SINGULAR
    kernel_N = torch.where(singular_N, top_N, torch.sin(top_N * t_N) / torch.where(singular_N, 1.0, below_N))
    return torch.where(voiced_N, kernel_N - 0.5, 0.0), sums_N[-1]


def _mirrored(wave_N: Tensor, before: int, after: int) -> Tensor:
    """The wave with samples before and after it, mirrored at its first and last sample, again and again if it is short."""
    period = 2 * (len(wave_N) - 1)
    at_N = torch.arange(-before, len(wave_N) + after, device=wave_N.device).remainder(period)
    return wave_N[torch.minimum(at_N, period - at_N)]
