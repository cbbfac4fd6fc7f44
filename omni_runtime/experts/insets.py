"""Where media stand in a prompt: stretches of placeholders, and what the decoder is fed in their place.

The host counts placeholders (`expand`, `insets`); who holds the tensors turns the insets of a step into what its span brings
(`given`).

Suffixes: N tokens of a step, D width, M rows of one medium, L layers that features are added after, 3 axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from omni_runtime import work
from omni_runtime.errors import RequestError
from omni_runtime.experts.decoder import Given
from omni_runtime.experts.multimodal_positions import Media, interleaved, vectors
from omni_runtime.weights.omni_parts import MediaTokens, Timing


@dataclass(frozen=True)
class Inset:
    """Tokens at .. at+count of a sequence are rows first .. of a medium. A clip mixed with its sound is several of both."""

    at: int
    count: int
    kind: str  # "image", "video" or "audio"
    item: int  # which of that kind
    first: int = 0


class Medium(NamedTuple):
    """What an encoder made of a picture, clip or sound."""

    vectors_MD: torch.Tensor
    features_LMD: torch.Tensor | None = None


def expand(
    ids: Sequence[int],
    tokens: MediaTokens,
    media: Media,
    merge: int,
    timing: Timing,
    audio_end: int,
    together: bool | Sequence[bool] = False,
) -> list[int]:
    """A prompt in which each medium has one placeholder, with as many as it has vectors.

    Args:
        ids: as the chat template gives them.
        tokens: which of them are placeholders.
        media: in the order of the prompt. The sound of a clip that is mixed with it stands among the sounds where the clip does.
        merge: patches a side that are one vector.
        timing: how positions run through clips.
        audio_end: the token that ends a sound.
        together: whether each clip is mixed with its sound, which has no placeholder of its own; one word for all, or one a clip.

    Raises:
        RequestError: more placeholders than media, or fewer.
    """
    images, clips, sounds = iter(media.images), iter(media.clips), iter(media.sounds)
    mixed = iter([together] * len(media.clips) if isinstance(together, bool) else together)
    found: list[int] = []
    try:
        for token in ids:
            if token == tokens.image:
                found += [token] * vectors(next(images), merge)
            elif token == tokens.audio:
                found += [token] * next(sounds)
            elif token == tokens.video and next(mixed):
                order = interleaved(next(clips), next(sounds), merge, timing)
                found += [tokens.audio_start, *(tokens.video if one else tokens.audio for one in order), audio_end]
            elif token == tokens.video:
                found += [token] * vectors(next(clips).grid, merge)
            else:
                found.append(token)
    except StopIteration:
        raise RequestError(f"messages: more placeholders than media; one of {len(found)} tokens has none") from None
    if left := [*images, *clips, *sounds]:
        raise RequestError(
            f"messages: {len(left)} media have no placeholder: the folder's chat template leaves them out; "
            "take the template of the model's makers"
        )
    return found


def insets(ids: Sequence[int], tokens: MediaTokens, media: Media, merge: int) -> list[Inset]:
    """The stretches of placeholders of an expanded prompt, in its order. `place` has checked that they fit."""
    sizes = {
        "image": [vectors(grid, merge) for grid in media.images],
        "video": [vectors(clip.grid, merge) for clip in media.clips],
        "audio": list(media.sounds),
    }
    kinds = {tokens.image: "image", tokens.video: "video", tokens.audio: "audio"}
    item, used = dict.fromkeys(sizes, 0), dict.fromkeys(sizes, 0)
    found: list[Inset] = []
    for at, token in enumerate(ids):
        kind = kinds.get(token)
        if kind is None:
            continue
        while used[kind] == sizes[kind][item[kind]]:
            item[kind], used[kind] = item[kind] + 1, 0
        last = found[-1] if found else None
        if last and last.at + last.count == at and (last.kind, last.item) == (kind, item[kind]):
            found[-1] = Inset(last.at, last.count + 1, kind, last.item, last.first)
        else:
            found.append(Inset(at, 1, kind, item[kind], used[kind]))
        used[kind] += 1
    return found


def given(
    embedding_ND: torch.Tensor, start: int, own: Sequence[tuple[Inset | work.Inset, Medium]], positions_3N: torch.Tensor | None
) -> Given:
    """What a span brings for tokens start .. start+N.

    Args:
        embedding_ND: of all its tokens; those of placeholders are not used.
        start: of the span in the sequence.
        own: insets that overlap it, in order, with what they stand for.
        positions_3N: of its tokens.
    """
    stop, fed_ND = start + len(embedding_ND), embedding_ND.clone() if own else embedding_ND
    rows: list[int] = []
    parts: list[torch.Tensor] = []
    for inset, medium in own:
        low, high = max(inset.at, start), min(inset.at + inset.count, stop)
        theirs = slice(inset.first + low - inset.at, inset.first + high - inset.at)
        fed_ND[low - start : high - start] = medium.vectors_MD[theirs]
        if medium.features_LMD is not None and len(medium.features_LMD):
            rows += range(low - start, high - start)
            parts.append(medium.features_LMD[:, theirs])
    return Given(fed_ND, positions_3N, tuple(rows), torch.cat(parts, 1) if parts else None)


def positions(start: int, count: int, told: Any, shift: float) -> torch.Tensor | None:
    """Where the tokens of a step stand, position_3N; None: where they are in the sequence.

    Raises:
        RequestError: positions are not as many as tokens.
    """
    if told is None:
        return (torch.arange(start, start + count, dtype=torch.float32) + shift).expand(3, -1) if shift else None
    found = np.array(told, np.float32)
    if found.shape != (3, count):
        raise RequestError(f"positions: shape {found.shape} for {count} tokens, (3, {count}) is needed")
    return torch.from_numpy(found)


def overlapping(all_of: Sequence[Inset], start: int, stop: int) -> Iterator[Inset]:
    """Those that have a token in start .. stop."""
    return (inset for inset in all_of if inset.at < stop and start < inset.at + inset.count)
