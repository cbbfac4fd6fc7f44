"""Sound of any rate and any number of channels as one channel at 16 kHz.

Suffixes: N samples, C channels, P phases, K taps.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd
from typing import Any

import numpy as np

from omni_runtime.errors import RequestError

Singles = np.ndarray[Any, np.dtype[np.float32]]
Reals = np.ndarray[Any, np.dtype[np.float64]]

LOWEST, HIGHEST = 1_000, 768_000  # Hz
ZEROS = 32  # zero crossings of the sinc on each side
ROLLOFF = 0.945  # where the filter's middle is, as a share of the lower of both Nyquist frequencies
BETA = 9.0  # of the Kaiser window: 90 dB


def mono(samples: Any, rate: int, wanted: int = 16_000) -> Singles:
    """float32 [N], the mean of all channels at the wanted rate.

    Args:
        samples: [N] or [N, C], of floats within -1..1 or of whole numbers, which are divided by their range.
        rate: Hz.
        wanted: Hz.

    Raises:
        RequestError: another shape or kind of numbers, no samples, one that is not finite, or a rate that no sound has.
    """
    if type(rate) is not int or not LOWEST <= rate <= HIGHEST:
        raise RequestError(f"audio: a rate of {rate!r} Hz, a whole number from {LOWEST} to {HIGHEST} is needed")
    given = np.asarray(samples)
    if given.ndim not in (1, 2) or 0 in given.shape or (given.ndim == 2 and given.shape[1] > given.shape[0]):
        raise RequestError(f"audio: samples of shape {given.shape}, [samples] or [samples, channels] is needed")
    if given.dtype.kind in "iu":
        info = np.iinfo(given.dtype)
        middle = 0.0 if given.dtype.kind == "i" else (info.max + 1) / 2
        values = (given.astype(np.float64) - middle) / ((float(info.max) - info.min + 1) / 2)
    elif given.dtype.kind == "f":
        values = given.astype(np.float64)
    else:
        raise RequestError(f"audio: samples of type {given.dtype}, floats or whole numbers are needed")
    one_N = values if values.ndim == 1 else values.mean(1)
    if not np.isfinite(one_N).all():
        raise RequestError(f"audio: sample {int(np.flatnonzero(~np.isfinite(one_N))[0])} is no finite number")
    return one_N.astype(np.float32) if rate == wanted else resample(one_N, rate, wanted)


def resample(samples_N: Reals, rate: int, wanted: int) -> Singles:
    """The same sound at another rate: band-limited interpolation with a windowed sinc (Smith and Gossett 1984).

    ceil(N · wanted / rate) samples; sample m is the sound at m / wanted seconds. Before and after there is silence.
    """
    common = gcd(rate, wanted)
    up, down = wanted // common, rate // common
    taps_PK, half = _taps(up, down)
    count = ceil(len(samples_N) * up / down)
    padded = np.concatenate([np.zeros(half), samples_N, np.zeros(half + down)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps_PK.shape[1])
    out = np.empty(count)
    for phase in range(min(up, count)):  # output samples m = phase, phase + up, ... share their weights
        first, fraction = divmod(phase * down, up)
        out[phase::up] = windows[first::down][: len(range(phase, count, up))] @ taps_PK[fraction]
    return out.astype(np.float32)


@lru_cache(maxsize=8)
def _taps(up: int, down: int) -> tuple[Reals, int]:
    """Weights [P, K] of the input samples around a place that is p/up of a sample past one, and how many of them lie before."""
    share = ROLLOFF * min(1.0, up / down)
    half = ceil(ZEROS / share)
    place_PK = np.arange(-half, half + 2) - np.arange(up)[:, None] / up
    inside = np.clip(1.0 - (place_PK / (half + 1)) ** 2, 0.0, None)
    weight_PK = share * np.sinc(share * place_PK) * np.i0(BETA * np.sqrt(inside)) / np.i0(BETA)
    return weight_PK / weight_PK.sum(1, keepdims=True), half
