"""Pictures and clips as the flattened patches that a vision encoder takes.

Suffixes: H rows, W columns, C channels, S frames, T patches, X numbers of a patch.
"""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import Any

import numpy as np

from omni_runtime.errors import RequestError
from omni_runtime.weights.preprocessor import PatchRules

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Singles = np.ndarray[Any, np.dtype[np.float32]]

STRETCH = 200  # the longest side is at most so many times the shortest
_BITS = 22  # of a resampling weight
_ROWS = 16  # at once: the sums stay in the cache; 6000 x 6000 pixels to 3584 x 3584 take 0.9 s, and whole in int64 5.9


def fitting(rows: int, columns: int, rules: PatchRules) -> tuple[int, int]:
    """The size that a picture is brought to: sides of whole vectors, pixels within the rules, the shape nearly kept.

    As Qwen2-VL's processor: each side to the nearest multiple; where that is too much or too little, the sides are scaled first
    and then rounded down or up.

    Raises:
        RequestError: a side is 200 times the other.
    """
    if max(rows, columns) > STRETCH * min(rows, columns):
        raise RequestError(f"image: {rows} x {columns} pixels, one side may be at most {STRETCH} times the other")
    f = rules.factor
    size = round(rows / f) * f, round(columns / f) * f
    if size[0] * size[1] > rules.most:
        scale = sqrt(rows * columns / rules.most)
        return max(f, floor(rows / scale / f) * f), max(f, floor(columns / scale / f) * f)
    if size[0] * size[1] < rules.least:
        scale = sqrt(rules.least / (rows * columns))
        return ceil(rows * scale / f) * f, ceil(columns * scale / f) * f
    return size


def resize(picture_HWC: Bytes, rows: int, columns: int) -> Bytes:
    """Bicubic with a = -1/2 (Keys 1981), widened where it shrinks: to the bit what Pillow 13 gives.

    One side after the other, rounded between; which goes first is what Pillow does, found by trying 1,337 sizes. Before 13 it
    always began with the columns, which is up to 25 of 255 off for noise.
    """
    there = picture_HWC.shape
    sides = ((1, columns), (0, rows))
    for axis, size in sides[::-1] if there[0] - rows > max(2 * (there[1] - columns), 0) else sides:
        if picture_HWC.shape[axis] != size:
            picture_HWC = _resize_axis(picture_HWC, axis, size)
    return picture_HWC


def _resize_axis(picture: Bytes, axis: int, size: int) -> Bytes:
    there = picture.shape[axis]
    step = there / size
    wide = max(step, 1.0)
    centre = (np.arange(size) + 0.5) * step
    low = np.maximum(np.trunc(centre - 2 * wide + 0.5), 0).astype(np.int64)
    high = np.minimum(np.trunc(centre + 2 * wide + 0.5), there).astype(np.int64)
    place = low[:, None] + np.arange(int((high - low).max()))
    weight = np.where(place < high[:, None], _keys((place - centre[:, None] + 0.5) / wide), 0.0)
    weight /= weight.sum(1, keepdims=True)
    whole = np.trunc(weight * (1 << _BITS) + np.copysign(0.5, weight)).astype(np.int32)
    at = np.minimum(place, there - 1)
    out = np.empty([size if i == axis else n for i, n in enumerate(picture.shape)], np.uint8)
    if axis == 0:
        for begin in range(0, size, _ROWS):
            out[begin : begin + _ROWS] = _weighed(picture, at[begin : begin + _ROWS], whole[begin : begin + _ROWS])
        return out
    for begin in range(0, len(picture), _ROWS):  # columns become rows, so that what is added lies together
        turned = np.ascontiguousarray(picture[begin : begin + _ROWS].swapaxes(0, 1))
        out[begin : begin + _ROWS] = _weighed(turned, at, whole).swapaxes(0, 1)
    return out


def _weighed(picture: Bytes, at: np.ndarray[Any, Any], whole: np.ndarray[Any, Any]) -> Bytes:
    """Rows of a picture, added with weights [size, taps]. 32 bits are enough: 1.2 x 255 x 2^22, what is positive, is 1.3e9."""
    total = np.full((len(at), *picture.shape[1:]), 1 << (_BITS - 1), np.int32)
    for tap in range(at.shape[1]):
        total += picture[at[:, tap]] * whole[:, tap, None, None]
    cut: Bytes = np.clip(total >> _BITS, 0, 255).astype(np.uint8)
    return cut


def _keys(x: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    a, x = -0.5, np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def image_patches(picture_HWC: Bytes, rules: PatchRules) -> tuple[Singles, tuple[int, int, int]]:
    """Patches [T, X] of a picture, and its grid (1, rows, columns). A frame that stands still fills the steps of a patch.

    Raises:
        RequestError: it is no uint8 [H, W, 3], or too long and thin.
    """
    return video_patches(np.asarray(picture_HWC)[None], rules)


def video_patches(frames_SHWC: Bytes, rules: PatchRules) -> tuple[Singles, tuple[int, int, int]]:
    """Patches [T, X] of frames that were chosen already, and the grid (steps, rows, columns).

    Frames beyond a whole number of steps are filled up with the last one. Patches stand in the order of steps, blocks of
    merge x merge, and places inside a block; the numbers of one in that of channels, frames, rows, columns.

    Raises:
        RequestError: it is no uint8 [S, H, W, 3], or too long and thin.
    """
    frames = np.asarray(frames_SHWC)
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != len(rules.mean) or 0 in frames.shape:
        raise RequestError(f"image: {frames.dtype} of shape {frames.shape}, uint8 [rows, columns, {len(rules.mean)}] is needed")
    rows, columns = fitting(frames.shape[1], frames.shape[2], rules)
    resized = np.stack([resize(frame, rows, columns) for frame in frames])
    fill = -len(resized) % rules.temporal
    resized = np.concatenate([resized, np.repeat(resized[-1:], fill, 0)])
    level = ((np.arange(256)[:, None] / 255.0 - np.array(rules.mean)) / np.array(rules.std)).astype(np.float32)
    value = np.stack([level[resized[..., channel], channel] for channel in range(len(rules.mean))], -1)
    steps, p, m = len(resized) // rules.temporal, rules.patch, rules.merge
    grid = steps, rows // p, columns // p
    cut = value.reshape(steps, rules.temporal, grid[1] // m, m, p, grid[2] // m, m, p, len(rules.mean))
    ordered = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return ordered.reshape(steps * grid[1] * grid[2], -1), grid


def chosen_frames(total: int, rate: float, wanted: float, rules: PatchRules, least: int = 4, most: int = 768) -> list[int]:
    """Which frames of a clip are looked at: `wanted` a second, evenly, whole steps of them.

    Args:
        total: frames of the clip.
        rate: of the clip, frames a second.
        wanted: frames a second.
        rules: for the frames of a step.
        least: at least so many, where the clip has them.
        most: at most so many.

    Raises:
        RequestError: the clip has less than one step.
    """
    if total < rules.temporal or rate <= 0 or wanted <= 0:
        raise RequestError(
            f"video: {total} frames, {rate:g} a second; at least {rules.temporal} frames are needed: send it as a picture"
        )
    highest = min(most, total) // rules.temporal * rules.temporal
    count = int(min(max(total / rate * wanted, least), highest)) // rules.temporal * rules.temporal
    # Rounded to float32 before they are cut, as torch.arange does: 7 · (90 / 14) is 44.999999999999993 in float64.
    return [int(i) for i in (np.arange(count) * (total / count)).astype(np.float32)]
