"""Noise by position: any stretch of it can be made alone and is the same whoever asks, in whatever pieces.

Philox 4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") turns (key, counter) into four random words.
Box and Muller (1958) turn one word, as two uniform halves u and v, into a complex normal: sqrt(-2 ln u) * exp(2 pi i v).
numpy promises the words of its Philox for ever, but not what its `standard_normal` makes of them: so only the words are its.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

HALF = 2.0**-32


def complex_noise(seed: int, first: int, count: int, width: int) -> npt.NDArray[np.complex64]:
    """Rows first .. first+count of an endless table of complex normals, real and imaginary part each of variance 1.

    Args:
        seed: 0 .. 2**128 - 1, the key.
        first: number of the first row, at least 0.
        width: entries in a row; a row takes ceil(width / 4) counters.

    Returns:
        complex64 [count, width].
    """
    counters = -(-width // 4)
    words = np.random.Philox(key=seed, counter=first * counters).random_raw(count * counters * 4)
    halves = words.view(np.uint32).reshape(count, counters * 4, 2)[:, :width].astype(np.float32)
    radius = np.sqrt(-2.0 * np.log((halves[..., 0] + np.float32(0.5)) * np.float32(HALF)))
    angle = halves[..., 1] * np.float32(2.0 * np.pi * HALF)
    noise = np.empty((count, width), np.complex64)
    np.multiply(radius, np.cos(angle), out=noise.real)
    np.multiply(radius, np.sin(angle), out=noise.imag)
    return noise


def normal_noise(seed: int, node: int, count: int) -> npt.NDArray[np.float32]:
    """Elements 0 .. count of an endless row of standard normals, float32 [count]: what a denoise loop starts from.

    Key = (seed, node), counter = element index / 8 (a counter makes eight). So an element depends on nothing else, and the same
    request makes the same picture whatever is made beside it.
    """
    rows = -(-count // 8)
    return complex_noise(seed | node << 64, 0, rows, 4).view(np.float32).reshape(-1)[:count]


def frame_noise(seed: int, node: int, first: int, count: int, width: int) -> npt.NDArray[np.float32]:
    """Rows first .. first+count of an endless table of standard normals, float32 [count, width]: the noise of mel frames.

    Key = (seed, node). A frame's noise is the same in whatever chunk it is made.
    """
    made = complex_noise(seed | node << 64, first, count, -(-width // 2))
    return made.view(np.float32).reshape(count, -1)[:, :width]
