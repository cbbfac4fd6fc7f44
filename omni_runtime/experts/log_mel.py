"""Log-mel frames of speech as Whisper's encoders take them: 100 a second, of sound at 16 kHz.

Suffixes: N samples, T frames, F frequencies of the transform, B bins.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from omni_runtime.errors import RequestError

Reals = np.ndarray[Any, np.dtype[np.float64]]
Singles = np.ndarray[Any, np.dtype[np.float32]]

RATE = 16_000
WINDOW = 400  # samples, 25 ms
HOP = 160  # 10 ms
FLOOR = 1e-10  # power that counts as silence
BLOCK = 6000  # frames at once: 40 MB on the way, where an hour would take 4 GB
RANGE = 8.0  # decades below the loudest bin; what is quieter counts as that


def log_mel(samples_N: Singles, bins: int = 128, silence: bool = False) -> Singles:
    """float32 [B, T], T = N // 160, roughly within -1..1 (Radford et al. 2022, section 2.2).

    With P the power of a Hann window every 10 ms, the sound mirrored at both ends, and M the mel weights:
    L = log10(max(M P, 1e-10)), and then (max(L, max L - 8) + 4) / 4. With `silence`, that is what follows the sound, not its
    mirror, and a frame that has begun is one: T = N / 160 rounded up.

    Raises:
        RequestError: no sound, less than a frame of it, or a sample that is no number.
    """
    if samples_N.ndim != 1 or len(samples_N) < HOP:
        raise RequestError(f"audio: {samples_N.shape} samples at 16 kHz, at least one frame of {HOP} is needed")
    if not np.isfinite(samples_N).all():
        raise RequestError(f"audio: sample {int(np.flatnonzero(~np.isfinite(samples_N))[0])} is no finite number")
    frames = len(samples_N) // HOP
    if silence:
        frames = -(-len(samples_N) // HOP)
        # Two frames after the last one still see the sound, and count for the loudest bin.
        samples_N = np.pad(samples_N, (0, (frames + 2) * HOP - len(samples_N)))
    padded = np.pad(samples_N.astype(np.float64), WINDOW // 2, "reflect")
    frames_TN = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][: len(samples_N) // HOP]
    hann_N = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    parts = []
    for at in range(0, len(frames_TN), BLOCK):
        power_TF = np.abs(np.fft.rfft(frames_TN[at : at + BLOCK] * hann_N)) ** 2
        parts.append(np.log10(np.maximum(mel_weights(bins) @ power_TF.T, FLOOR)))
    log_BT = np.concatenate(parts, 1)
    scaled: Singles = ((np.maximum(log_BT[:, :frames], log_BT.max() - RANGE) + 4.0) / 4.0).astype(np.float32)
    return scaled


@lru_cache
def mel_weights(bins: int) -> Reals:
    """weight_BF: triangles between neighbouring centres, each of area 1 (Slaney's Auditory Toolbox, 1998)."""
    top = _mel(np.array(RATE / 2))
    edge = _hertz(np.linspace(0.0, float(top), bins + 2))
    hertz_F = np.linspace(0.0, RATE / 2, WINDOW // 2 + 1)
    rising_BF = (hertz_F - edge[:-2, None]) / np.diff(edge)[:-1, None]
    falling_BF = (edge[2:, None] - hertz_F) / np.diff(edge)[1:, None]
    weight_BF: Reals = np.maximum(0.0, np.minimum(rising_BF, falling_BF)) * (2.0 / (edge[2:] - edge[:-2]))[:, None]
    weight_BF.flags.writeable = False
    return weight_BF


# Slaney's scale: linear, 200/3 Hz a mel, up to 1 kHz, then 27 mel for each factor of 6.4.
_KINK, _PER_FACTOR = 15.0, 27.0 / np.log(6.4)


def _mel(hertz: Reals) -> Reals:
    mel: Reals = np.where(hertz < 1000, 3 * hertz / 200, _KINK + _PER_FACTOR * np.log(np.maximum(hertz, 1000) / 1000))
    return mel


def _hertz(mel: Reals) -> Reals:
    hertz: Reals = np.where(mel < _KINK, 200 * mel / 3, 1000 * np.exp((np.maximum(mel, _KINK) - _KINK) / _PER_FACTOR))
    return hertz
