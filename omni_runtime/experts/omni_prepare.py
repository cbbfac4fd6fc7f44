"""The host side of a request to an omni model: op `prepare` turns messages with media into a prompt and what its encoders take.

`designs/0022-messages.md` has the table of its ports. It keeps no state, and its results are numbers, lists and arrays, so they
are the same after a way through a process. Which family it is, the folder tells (`omni_families`).

Suffixes: B bins, T frames, S frames of a clip, X numbers of a patch, 3 axes, N tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from omni_runtime.errors import CheckpointError, RequestError
from omni_runtime.experts import media_decode
from omni_runtime.experts.base import Op
from omni_runtime.experts.insets import Inset, expand, insets
from omni_runtime.experts.log_mel import log_mel
from omni_runtime.experts.multimodal_positions import Clip, Grid, Media, place
from omni_runtime.experts.omni_family import OmniFamily
from omni_runtime.experts.omni_options import read_options
from omni_runtime.experts.patches import chosen_frames, fitting, image_patches, video_patches
from omni_runtime.experts.resample import mono
from omni_runtime.experts.slots import Slots
from omni_runtime.messages import MEDIA
from omni_runtime.weights.omni_parts import OmniShape
from omni_runtime.weights.preprocessor import PatchRules, clip_rules, read_patch_rules
from omni_runtime.weights.tokenizer import ChatTokenizer
from omni_runtime.work import CallStep, Row, StepResult

AT_ONCE = 16  # frames of a clip that are cut into patches together: 300 MB on the way where a step has most vectors

Array = np.ndarray[Any, Any]


@dataclass
class _Gathered:
    """Media of a conversation, in its order."""

    images: list[Grid] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    mixed: list[bool] = field(default_factory=list)  # by clip: whether its sound is heard with it
    sounds: list[Array] = field(default_factory=list)  # [B, T]
    pictures: list[Array] = field(default_factory=list)  # [steps, rows, columns, X]
    where: dict[tuple[str, int], int] = field(default_factory=dict)  # (image or video, number) -> number among pictures
    tokens: int = 0


class Prepare:
    """Family, tokenizer, template and rules of one folder."""

    def __init__(self, family: OmniFamily, tokenizer: ChatTokenizer, config: OmniShape, rules: PatchRules) -> None:
        self.family, self.tokenizer, self.config = family, tokenizer, config
        self.rules, self.clips = rules, clip_rules(rules)
        ends = tokenizer.encode(family.audio_end, control=True)
        if len(ends) != 1:
            raise CheckpointError(f"tokenizer.json: {family.audio_end!r} is no token there; fetch the folder again")
        self._audio_end = ends[0]
        self.ops: Mapping[str, Op] = {"prepare": self.prepare}

    def prepare(self, rows: Sequence[Row], slots: Slots) -> list[StepResult]:
        """Per row, from inputs {"messages": (messages,)} as `messages.normal` makes them: items by port.

        Raises:
            RequestError: messages of another shape, media that cannot be decoded, or more of them than the model can read.
            MissingExtra: what decodes them is not installed.
        """
        return [StepResult(items=self._one(row)) for row in rows]

    def _one(self, row: Row) -> dict[str, Any]:
        step = row.payload
        if not isinstance(step, CallStep) or set(step.inputs) != {"messages"} or len(step.inputs["messages"]) != 1:
            raise RequestError(f"loop {row.loop!r}: op 'prepare' needs a CallStep with one item of 'messages'")
        messages = step.inputs["messages"][0]
        short = self.tokenizer.encode_chat(messages, MEDIA)
        found = self._gathered(messages, bool(step.params.get("use_audio_in_video", False)))
        if not found.pictures and not found.sounds:
            self._check_length(len(short))
            return self._items(short, [], found, None)
        c = self.config
        sounds = tuple(self.family.audio_tokens(mel.shape[1]) for mel in found.sounds)
        media = Media(tuple(found.images), tuple(found.clips), sounds)
        ids = expand(short, c.tokens, media, c.vision.merge, c.timing, self._audio_end, found.mixed)
        self._check_length(len(ids))
        return self._items(ids, insets(ids, c.tokens, media, c.vision.merge), found, media)

    def _items(self, ids: list[int], stretches: list[Inset], found: _Gathered, media: Media | None) -> dict[str, Any]:
        items = {
            "tokens": ids,
            "sounds": found.sounds,
            "pictures": found.pictures,
            "insets": [self._inset(inset, found) for inset in stretches],
            "positions": [self._placed(ids, media, True)],
        }
        if self.family.user_turns is not None:
            heard = self.family.user_turns(ids, self.config.tokens)
            own = [ids[i] for i in heard]
            items["turns"] = [[_parts(ids, heard, stretches), *self._placed(own, media, False)]]
        return items

    @staticmethod
    def _inset(inset: Inset, found: _Gathered) -> list[Any]:
        if inset.kind == "audio":
            return [inset.at, inset.count, "sound", inset.item, inset.first]
        return [inset.at, inset.count, "picture", found.where[inset.kind, inset.item], inset.first]

    def _placed(self, ids: Sequence[int], media: Media | None, together: bool) -> list[Any]:
        """Positions [3, N] and by how much those after them are shifted; None where they count."""
        if media is None:
            return [None, 0.0]
        c = self.config
        placed = place(ids, c.tokens, media, c.vision.merge, c.timing, together)
        shift = placed.next - len(ids)
        if not shift and (placed.position_3N == np.arange(len(ids), dtype=np.float32)).all():  # sound counts on like text
            return [None, 0.0]
        return [placed.position_3N, shift]

    def _check_length(self, tokens: int, where: str = "messages: ") -> None:
        most = self.config.thinker.positions
        if tokens >= most:
            remedy = "send less, smaller pictures, or a lower 'look_fps'"
            raise RequestError(f"{where}a prompt of {tokens} tokens or more; the model reads {most}, answer included: {remedy}")

    # -- Media

    def _gathered(self, messages: Any, together: bool) -> _Gathered:
        found = _Gathered()
        for at, turn in enumerate(() if isinstance(messages, str) else messages):
            for i, part in enumerate(() if isinstance(turn["content"], str) else turn["content"]):
                try:
                    if part["type"] == "image":
                        self._image(part, found)
                    elif part["type"] == "audio":
                        self._sound(media_decode.sound(part), found)
                    elif part["type"] == "video":
                        self._clip(part, found, together)
                except RequestError as error:
                    raise RequestError(f"messages[{at}].content[{i}]: {error}") from None
        return found

    def _image(self, part: Mapping[str, Any], found: _Gathered) -> None:
        pixels = media_decode.picture(part)
        rows, columns = fitting(pixels.shape[0], pixels.shape[1], self.rules)
        self._count(found, rows * columns // self.rules.factor**2)
        patches, grid = image_patches(pixels, self.rules)
        found.where["image", len(found.images)] = len(found.pictures)
        found.images.append(grid)
        found.pictures.append(patches.reshape(*grid, -1))

    def _sound(self, sound: media_decode.Sound, found: _Gathered) -> None:
        mel = log_mel(mono(sound.samples, sound.rate), self.config.audio.mels, self.family.silence)
        frames, least = mel.shape[1], self.family.least
        if frames < least:
            why = f"{frames} frames of 10 ms, and what has less than {least} is not heard by this model"
            raise RequestError(f"audio: {why}; send a longer sound, or none")
        self._count(found, self.family.audio_tokens(frames))
        found.sounds.append(mel)

    def _clip(self, part: Mapping[str, Any], found: _Gathered, together: bool) -> None:
        rules = self.clips
        wanted = float(part["look_fps"])
        clip = media_decode.clip(part, lambda total, fps: chosen_frames(total, fps, wanted, rules), together)
        frames = clip.frames_SHWC
        rows, columns = fitting(frames.shape[1], frames.shape[2], rules)
        self._count(found, rows * columns // rules.factor**2 * (len(frames) // rules.temporal))
        cut = [video_patches(frames[at : at + AT_ONCE], rules) for at in range(0, len(frames), AT_ONCE)]
        grid = (sum(steps for _, (steps, _, _) in cut), *cut[0][1][1:])
        found.where["video", len(found.clips)] = len(found.pictures)
        found.clips.append(Clip(grid, clip.seconds * rules.temporal))
        found.mixed.append(clip.sound is not None)
        found.pictures.append(np.concatenate([patches for patches, _ in cut]).reshape(*grid, -1))
        if clip.sound is not None:
            self._sound(clip.sound, found)

    def _count(self, found: _Gathered, tokens: int) -> None:
        """Refused before the work of cutting is done."""
        found.tokens += tokens
        self._check_length(found.tokens, "")


def _parts(ids: Sequence[int], heard: Sequence[int], stretches: Sequence[Inset]) -> list[Any]:
    """The places that the talker hears: lists of ids, and in place of media the number of their inset."""
    inset_at = {inset.at: number for number, inset in enumerate(stretches)}
    inside = {i for inset in stretches for i in range(inset.at, inset.at + inset.count)}
    parts: list[Any] = []
    for i in heard:
        if i in inset_at:
            parts.append(inset_at[i])
        elif i not in inside:
            if parts and isinstance(parts[-1], list):
                parts[-1].append(ids[i])
            else:
                parts.append([ids[i]])
    return parts


def build(options: Mapping[str, Any], device: str) -> Prepare:
    """The expert that a card names `omni_runtime.experts.omni_prepare:build`. Reads the small files of the folder only.

    Options: `checkpoint`, a folder; `family`, where it is none of ours.

    Raises:
        CardError: an unknown option, or one of the wrong type.
        CheckpointError: the folder is of no known family, lacks a file, or its files contradict each other.
    """
    from omni_runtime.experts.omni_families import family_of
    from omni_runtime.weights.folder_tokenizer import folder_tokenizer

    asked = read_options(options, "prepare")
    folder, family = asked.folder, family_of(asked)
    config = family.read(folder)
    return Prepare(family, folder_tokenizer(folder, config.thinker.vocab), config, read_patch_rules(folder, config))
