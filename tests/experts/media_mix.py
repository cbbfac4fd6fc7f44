"""Random prompts with media, and where their tokens stand."""

from __future__ import annotations

import random
from typing import Any

import torch
from media_request import Family

from omni_runtime.experts.multimodal_positions import Clip, Grid, Media, Placed, interleaved, place, vectors

SECONDS = [2.0, 1.0, 0.5, 2 / 3, 0.08, 5.0]  # of a step of a clip


class Mix:
    """A random prompt, and what its placeholders stand for."""

    def __init__(self, seed: int, with_sound: bool, family: Family) -> None:
        t, ends = family.tokens, (family.tokens.audio_start + 1, family.tokens.vision_start + 1)
        rng = random.Random(seed)
        self.ids: list[int] = []
        self.short: list[int] = []  # with one placeholder a medium, as a chat template has it
        self.frames: list[int] = []  # of mel, by sound
        images: list[Grid] = []
        clips: list[Clip] = []
        for _ in range(rng.randrange(1, 6)):
            text = [rng.randrange(256) for _ in range(rng.choice([0, 0, 1, 5]))]
            self.ids += text
            self.short += text
            kind = rng.choice(["image", "video", "audio"])
            grid = (rng.randrange(1, 5) if kind == "video" else 1, 2 * rng.randrange(1, 5), 2 * rng.randrange(1, 5))
            if kind == "audio":
                self.frames.append(rng.randrange(family.least, 400))
                self.ids += [t.audio_start, *[t.audio] * family.audio_tokens(self.frames[-1]), ends[0]]
                self.short += [t.audio_start, t.audio, ends[0]]
            elif kind == "image":
                images.append(grid)
                self.ids += [t.vision_start, *[t.image] * vectors(grid, 2), ends[1]]
                self.short += [t.vision_start, t.image, ends[1]]
            elif with_sound:
                clips.append(Clip(grid, rng.choice(SECONDS)))
                self.frames.append(rng.randrange(family.least, 900))
                order = interleaved(clips[-1], family.audio_tokens(self.frames[-1]), 2, family.timing)
                self.ids += [
                    t.vision_start,
                    t.audio_start,
                    *[t.video if one else t.audio for one in order],
                    ends[0],
                    ends[1],
                ]
            else:
                clips.append(Clip(grid, rng.choice(SECONDS)))
                self.ids += [t.vision_start, *[t.video] * vectors(grid, 2), ends[1]]
            self.short += [t.vision_start, t.video, ends[1]] * (kind == "video")
        text = [rng.randrange(256) for _ in range(rng.choice([0, 1, 4]))]
        self.ids += text
        self.short += text
        self.media = Media(tuple(images), tuple(clips), tuple(map(family.audio_tokens, self.frames)))
        self.with_sound, self.family = with_sound, family

    def ours(self, told: bool = True) -> Placed:
        """By our rules."""
        return place(self.ids, self.family.tokens, self.media, 2, self.family.timing, told)

    def theirs(self, model: Any, told: bool = True) -> tuple[torch.Tensor, float]:
        """Of the reference's thinker."""
        ids = torch.tensor([self.ids])
        positions, deltas = model.thinker.get_rope_index(
            ids,
            torch.tensor(self.media.images) if self.media.images else None,
            torch.tensor([clip.grid for clip in self.media.clips]) if self.media.clips else None,
            torch.ones_like(ids),
            self.with_sound and told,
            torch.tensor(self.frames) if self.frames else None,
            torch.tensor([clip.seconds for clip in self.media.clips]) if self.media.clips else None,
        )
        return positions[:, 0], float(deltas) + len(self.ids)
