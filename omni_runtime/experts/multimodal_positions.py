"""Positions of three numbers for text with pictures, clips and sounds in it: time, height, width.

Text and sound count on, all three numbers alike. Inside a picture or clip the numbers are those of time, row and column from
where it begins, and what comes after goes on past the largest of what stood last (Qwen2.5-Omni report, section 2.2, Qwen3-Omni
report, section 2.4; transformers' `get_rope_index` decides where they are silent). A clip's time runs at so many positions a
second, which is also the pace of sound, so a clip and its sound can be interleaved by time: step by step, or by chunks of some
seconds. Positions may be fractions: 0.5 s at 13 a second is 6.5; a family may cut them.

Suffixes: N tokens, 3 axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from omni_runtime.errors import RequestError
from omni_runtime.weights.omni_parts import MediaTokens, Timing

Singles = np.ndarray[Any, np.dtype[np.float32]]
Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Clip:
    """A video: its grid of patches, and how many seconds each step of it lasts."""

    grid: Grid
    seconds: float


@dataclass(frozen=True)
class Media:
    """What a prompt's placeholders stand for, in its order."""

    images: tuple[Grid, ...] = ()
    clips: tuple[Clip, ...] = ()
    sounds: tuple[int, ...] = ()  # vectors of each sound


@dataclass(frozen=True)
class Placed:
    """Positions of a prompt, and of what comes after it."""

    position_3N: Singles
    next: float  # of the first token of the answer; each later one is 1 more


def vectors(grid: Grid, merge: int) -> int:
    """How many tokens a picture or clip takes."""
    return grid[0] * (grid[1] // merge) * (grid[2] // merge)


def interleaved(clip: Clip, sound: int, merge: int, timing: Timing) -> list[bool]:
    """For each token of a clip with its sound, whether it is the clip's: by time, the clip first where both are due."""
    step = vectors(clip.grid, merge) // clip.grid[0]
    if timing.chunk:
        seen = _chunks([at for at in _times(clip, timing) for _ in range(step)], timing.chunk)
        heard_in = _chunks(range(sound), timing.chunk)
        turns = range(max(seen[-1:] + heard_in[-1:], default=0) + 1)
        return [one for turn in turns for one in [True] * seen.count(turn) + [False] * heard_in.count(turn)]
    order, heard = [], 0
    for at in _times(clip, timing):
        while heard < sound and heard < at:
            order.append(False)
            heard += 1
        order += [True] * step
    return order + [False] * (sound - heard)


def _chunks(times: Sequence[float], size: int) -> list[int]:
    """The chunk of each token. One token begins one chunk at most, as in transformers, also where a step skips several."""
    found, chunk = [], 0
    for at in times:
        chunk += at >= (chunk + 1) * size
        found.append(chunk)
    return found


def _times(clip: Clip, timing: Timing) -> list[float]:
    steps = np.arange(clip.grid[0], dtype=np.float32) * np.float32(clip.seconds) * np.float32(timing.a_second)
    return [float(step) for step in (np.trunc(steps) if timing.whole else steps)]


def place(ids: Sequence[int], tokens: MediaTokens, media: Media, merge: int, timing: Timing, together: bool = True) -> Placed:
    """Positions of a prompt whose placeholders are filled in: as many tokens for each medium as it has vectors.

    A clip with its sound is begun by vision_start and audio_start together, and ended by two tokens.

    Args:
        ids: of the prompt.
        tokens: which of them say what.
        media: what stands behind the placeholders.
        merge: patches a side that are one vector.
        timing: how positions run through clips.
        together: False for a talker. transformers 5.24 does not tell it that sounds are inside clips, so there such a clip counts
            on like text, unless a picture follows it somewhere; codes equal the reference's only if that is done here too.

    Raises:
        RequestError: placeholders and media do not fit.
    """
    images, clips, sounds = iter(media.images), iter(media.clips), iter(media.sounds)
    pictures = len(media.images)  # still to come
    parts: list[Singles] = []
    at, now = 0, np.float32(0)

    def text(count: int) -> None:
        nonlocal now, at
        parts.append(np.broadcast_to(now + np.arange(count, dtype=np.float32), (3, count)))
        now, at = np.float32(now + count), at + count

    def marks() -> None:
        nonlocal now, at
        line_2 = now + np.minimum(np.arange(2, dtype=np.float32), np.float32(timing.marks - 1))
        parts.append(np.broadcast_to(line_2, (3, 2)))
        now, at = np.float32(now + timing.marks), at + 2

    def block(part_3N: Singles, kinds: Sequence[int]) -> None:
        nonlocal now, at
        if list(ids[at : at + len(kinds)]) != list(kinds):
            raise RequestError(f"prompt: the medium at token {at} has {len(kinds)} vectors, its placeholders are not as many")
        parts.append(part_3N)
        at += len(kinds)

    try:
        while at < len(ids):
            begins, then = ids[at], ids[at + 1] if at + 1 < len(ids) else -1
            if begins == tokens.vision_start and then == tokens.audio_start:
                clip, sound = next(clips), next(sounds)
                order = interleaved(clip, sound, merge, timing)
                if not together and not pictures:
                    text(len(order) + 4)
                    continue
                marks()
                seen_3N, heard_3N = _grid(now, clip.grid, _times(clip, timing), merge), _line(now, sound)
                mixed_3N = np.empty((3, len(order)), np.float32)
                is_clip = np.array(order)
                mixed_3N[:, is_clip], mixed_3N[:, ~is_clip] = seen_3N, heard_3N
                block(mixed_3N, [tokens.video if one else tokens.audio for one in order])
                # What ends last decides: the clip's rows and columns do not count where sound goes on after it.
                now = np.float32(mixed_3N[:, -1].max() + 1)
                marks()
            elif begins == tokens.vision_start and then == tokens.image:
                grid = next(images)
                pictures -= 1
                text(1)
                block(
                    _grid(now, grid, [float(i * timing.a_second) for i in range(grid[0])], merge),
                    [tokens.image] * vectors(grid, merge),
                )
                now = np.float32(parts[-1].max() + 1)
            elif begins == tokens.vision_start and then == tokens.video:
                clip = next(clips)
                text(1)
                block(_grid(now, clip.grid, _times(clip, timing), merge), [tokens.video] * vectors(clip.grid, merge))
                now = np.float32(parts[-1].max() + 1)
            elif begins == tokens.audio_start and then == tokens.audio:
                sound = next(sounds)
                text(1)
                block(_line(now, sound), [tokens.audio] * sound)
                now = np.float32(now + sound)
            elif begins in (tokens.image, tokens.video, tokens.audio):
                raise RequestError(f"prompt: token {at} is a placeholder that no medium belongs to")
            else:
                text(1)
    except StopIteration:
        raise RequestError(f"prompt: no medium is left for the placeholder at token {at}") from None
    if left := [*images, *clips, *sounds]:
        raise RequestError(f"prompt: {len(left)} media have no placeholder")
    whole: Singles = np.concatenate(parts, 1) if parts else np.zeros((3, 0), np.float32)
    return Placed(whole, float(whole.max() + 1) if len(ids) else 0.0)


def _line(start: np.float32, count: int) -> Singles:
    return np.broadcast_to(start + np.arange(count, dtype=np.float32), (3, count))


def _grid(start: np.float32, grid: Grid, times: Sequence[float], merge: int) -> Singles:
    rows, columns = grid[1] // merge, grid[2] // merge
    time, row, column = np.meshgrid(np.array(times, np.float32), np.arange(rows), np.arange(columns), indexing="ij")
    return np.stack([time, row, column]).reshape(3, -1).astype(np.float32) + start
