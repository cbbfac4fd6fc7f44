"""Prompts with media, as a family's experts and as its reference take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omni_runtime.experts.decoder import DecoderLM, Span
from omni_runtime.experts.insets import Medium, expand, given, insets, overlapping
from omni_runtime.experts.log_mel import log_mel
from omni_runtime.experts.multimodal_positions import Clip, Media, place
from omni_runtime.experts.patches import PatchRules, image_patches, video_patches
from omni_runtime.weights.omni_parts import MediaTokens, Timing

RULES = PatchRules(patch=4, merge=2, least=64, most=2048)


@dataclass(frozen=True)
class Family:
    """What differs between families. The tokens that end a sound and a picture follow those that begin them."""

    tokens: MediaTokens
    timing: Timing
    turn: Mapping[str, int]  # im_start, im_end and the roles
    audio_tokens: Callable[[int], int]
    least: int = 1  # mel frames of a sound that has a vector


class Request:
    """A prompt with so many random media."""

    def __init__(self, family: Family, images: int, clips: int, sounds: int, sound_of_clip: bool, seconds: float = 2.0) -> None:
        rng = np.random.default_rng(images + 10 * clips + 100 * sounds)
        picture = lambda *size: rng.integers(0, 256, (*size, 3)).astype(np.uint8)  # noqa: E731
        self.images = [image_patches(picture(17 + 8 * i, 30), RULES) for i in range(images)]
        self.clips = [video_patches(picture(5 + i, 24, 17), RULES) for i in range(clips)]
        mels = [log_mel((0.2 * rng.standard_normal(4000 + 9000 * i)).astype(np.float32)) for i in range(sounds)]
        self.mels = [torch.from_numpy(mel) for mel in mels]
        self.seconds = [seconds] * clips
        self.media = Media(
            tuple(grid for _, grid in self.images),
            tuple(Clip(grid, s) for (_, grid), s in zip(self.clips, self.seconds, strict=True)),
            tuple(family.audio_tokens(mel.shape[1]) for mel in self.mels),
        )
        self.family, self.sound_of_clip = family, sound_of_clip
        t, turn = family.tokens, family.turn
        end_seen, end_heard = t.vision_start + 1, t.audio_start + 1
        ids = [turn["im_start"], turn["system"], 10, *b"Be kind.", turn["im_end"], 10]
        ids += [turn["im_start"], turn["user"], 10, *b"See "]
        ids += [t.vision_start, t.image, end_seen, *b" and "] * images
        ids += [t.vision_start, t.video, end_seen] * clips
        ids += [t.audio_start, t.audio, end_heard] * (sounds - clips * sound_of_clip)
        ids += [*b" what?", turn["im_end"], 10, turn["im_start"], turn["assistant"], 10]
        self.ids = expand(ids, t, self.media, 2, family.timing, end_heard, sound_of_clip)

    def for_generate(self, prefix: str = "") -> dict[str, Any]:
        """`prefix` of the names of pixels."""
        ids = torch.tensor([self.ids])
        told: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "use_audio_in_video": self.sound_of_clip,
        }
        if self.images:
            told[f"{prefix}pixel_values"] = torch.cat([torch.from_numpy(patches) for patches, _ in self.images])
            told["image_grid_thw"] = torch.tensor(self.media.images)
        if self.clips:
            told[f"{prefix}pixel_values_videos"] = torch.cat([torch.from_numpy(patches) for patches, _ in self.clips])
            told["video_grid_thw"] = torch.tensor([clip.grid for clip in self.media.clips])
            told["video_second_per_grid"] = torch.tensor(self.seconds)
        if self.mels:
            longest = max(mel.shape[1] for mel in self.mels)
            told["input_features"] = torch.stack([torch.nn.functional.pad(m, (0, longest - m.shape[1])) for m in self.mels])
            lengths = torch.tensor([mel.shape[1] for mel in self.mels])
            told["feature_attention_mask"] = (torch.arange(longest) < lengths[:, None]).long()
        return told


class Heard:
    """Our prefill of a request: vectors, positions and features of its prompt. What is seen comes as tuples of tensors."""

    def __init__(self, request: Request, model: DecoderLM, see: Callable[[Any], Any], hear: Callable[[Any], Any]) -> None:
        pictures = [(torch.from_numpy(patches), grid) for patches, grid in (*request.images, *request.clips)]
        seen = see(pictures) if pictures else []
        heard = hear(request.mels) if request.mels else []
        stills = len(request.images)
        self.made = {("image", i) if i < stills else ("video", i - stills): Medium(*one) for i, one in enumerate(seen)}
        self.made |= {("audio", i): Medium(vectors_ND) for i, vectors_ND in enumerate(heard)}
        self.request, self.model = request, model
        self.insets = insets(request.ids, request.family.tokens, request.media, 2)
        self.placed = place(request.ids, request.family.tokens, request.media, 2, request.family.timing)

    def span(self, cache: Any, start: int, stop: int, draw: bool) -> Span:
        """Tokens start .. stop of the prompt."""
        own = [(inset, self.made[inset.kind, inset.item]) for inset in overlapping(self.insets, start, stop)]
        positions_3N = torch.from_numpy(self.placed.position_3N[:, start:stop].copy())
        fed_ND = self.model.embed(self.request.ids[start:stop])
        return Span(cache, start, (), draw, given(fed_ND, start, own, positions_3N))
