"""Inverse short-time Fourier transform as a stream: frames of 1200 samples, 300 apart, under a Hann window.

A sample is the sum of the windowed frames over it, divided by the sum of their squared windows (Griffin and Lim 1984), and the
first 600 samples, before the middle of frame 0, are no sound: F frames give 300 F samples. A block of 300 samples is certain
after the frame two later, or at the end.

T frames, J = 4 blocks a frame, H = 300 samples a block, B = 601 bins.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

HOP = 300
OVERLAP = 4
WINDOW = OVERLAP * HOP
LEAD = 2  # blocks before the middle of frame 0
LEAST = 1e-11  # of a sum of squared windows: the very first sample of a window has none


class Overlap(NamedTuple):
    """What earlier frames left in the blocks that are not certain yet."""

    sound_JH: Tensor  # 3 blocks
    weight_JH: Tensor
    lead: int  # blocks still to be thrown away


def fresh_overlap(device: str) -> Overlap:
    """Before the first frame of a segment."""
    blank_JH = torch.zeros(OVERLAP - 1, HOP, device=device)
    return Overlap(blank_JH, blank_JH, LEAD)


def add_frames(overlap: Overlap, spectra_TB: Tensor, ends: bool, window_N: Tensor) -> tuple[Overlap, Tensor]:
    """Takes spectra, complex64 [T, B], gives the samples that are certain now, float32 [n]; all of them at the end of a segment.

    `window_N` is the plain Hann window.
    """
    count = len(spectra_TB)
    frames_TJH = (torch.fft.irfft(spectra_TB, n=WINDOW, dim=1) * window_N).reshape(-1, OVERLAP, HOP) if count else None
    square_JH = (window_N * window_N).reshape(OVERLAP, HOP)
    sound_TH = torch.cat([overlap.sound_JH, overlap.sound_JH.new_zeros(count, HOP)])
    weight_TH = torch.cat([overlap.weight_JH, overlap.weight_JH.new_zeros(count, HOP)])
    if frames_TJH is not None:
        for j in reversed(range(OVERLAP)):  # a block takes its oldest frame first, as it does when they come one by one
            sound_TH[j : j + count] += frames_TJH[:, j]
            weight_TH[j : j + count] += square_JH[j]
    certain = count + LEAD if ends else count
    lead = min(overlap.lead, certain)
    samples_N = (sound_TH[lead:certain] / weight_TH[lead:certain].clamp(min=LEAST)).reshape(-1)
    return Overlap(sound_TH[count:].clone(), weight_TH[count:].clone(), overlap.lead - lead), samples_N
