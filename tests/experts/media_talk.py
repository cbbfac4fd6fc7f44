"""Random conversations with media, and what a family's reference makes of them: prompt, frames, patches and positions."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from omni_runtime.experts.omni_prepare import Prepare, build
from omni_runtime.experts.patches import video_patches
from omni_runtime.experts.resample import mono
from omni_runtime.experts.slots import Slots
from omni_runtime.messages import MEDIA, normal
from omni_runtime.weights.preprocessor import clip_rules
from omni_runtime.work import CallStep, Row

TEXTS = ["", "hi", "What is this?\n", "héllo 🙂 wörld", "  two  spaces ", "user assistant"]


@dataclass(frozen=True)
class Reference:
    """A family as transformers has it."""

    folder: Path
    thinker: Callable[[], Any]
    processor: Any  # its class: it cannot be built without torchvision, but its methods only need its parts
    vectors: Callable[[Any], Any]  # of so many mel frames
    spelling: Mapping[str, str]  # "image", "audio", "video", "audio_bos" and "audio_eos" tokens
    timing: Mapping[str, float]  # of clips with their sound
    extractor: Mapping[str, Any]  # settings of its feature extractor
    heard: Mapping[str, Any]  # how it is called
    shortest: float = 0.02  # seconds of a sound
    more: Mapping[str, Any] = field(default_factory=dict)  # attributes of the processor

    @cached_property
    def expert(self) -> Prepare:
        return build({"checkpoint": str(self.folder)}, "cpu")

    def prepared(self, messages: Any, **params: Any) -> dict[str, Any]:
        """Ours."""
        row = Row(1, "prepare", 1, 0, (), CallStep(0, {"messages": (normal(messages, MEDIA),)}, {}, params))
        return self.expert.prepare([row], Slots("cpu#1"))[0].items

    @cached_property
    def parts(self) -> Any:
        """What of the processor works without torchvision."""
        rules = self.expert.rules
        sizes = {"patch_size": rules.patch, "merge_size": rules.merge, "temporal_patch_size": rules.temporal}
        size = {"shortest_edge": rules.least, "longest_edge": rules.most}
        mels = self.expert.config.audio.mels
        return SimpleNamespace(
            tokenizer=transformers.AutoTokenizer.from_pretrained(self.folder),
            feature_extractor=transformers.WhisperFeatureExtractor(feature_size=mels, **self.extractor),
            image_processor=Qwen2VLImageProcessorPil(**sizes, size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3),
            video_processor=SimpleNamespace(merge_size=rules.merge, temporal_patch_size=rules.temporal),
            get_chunked_index=lambda *told: self.processor.get_chunked_index(None, *told),
            **{f"{name}_token": text for name, text in self.spelling.items()},
            **self.more,
        )


class Talk:
    """A random conversation, and what transformers makes of it."""

    def __init__(self, reference: Reference, seed: int, together: bool) -> None:
        self.reference, self.seed = reference, seed
        self.dice, self.rng, self.together = random.Random(seed), np.random.default_rng(seed), together
        self.images: list[Any] = []
        self.clips: list[tuple[Any, float]] = []
        self.sounds: list[Any] = []  # as they are heard
        self.messages: list[dict[str, Any]] = []
        if self.dice.random() < 0.5:
            self.messages.append({"role": "system", "content": self.dice.choice(TEXTS)})
        for turn in range(self.dice.randrange(1, 3)):
            if turn:
                self.messages.append({"role": "assistant", "content": self.dice.choice(TEXTS)})
            parts = [self.part() for _ in range(self.dice.randrange(1, 5))]
            self.messages.append({"role": "user", "content": parts})

    def sound(self) -> dict[str, Any]:
        rate, channels = self.dice.choice([8000, 16000, 44100, 22050]), self.dice.choice([0, 1, 2])
        count = self.dice.randrange(int(rate * self.reference.shortest), rate * 2)
        samples = 0.3 * self.rng.standard_normal((count, channels) if channels else count)
        self.sounds.append(mono(samples, rate))
        return {"audio": samples, "rate": rate}

    def part(self) -> dict[str, Any]:
        kind = self.dice.choice(["text", "image", "audio", "video"])
        if kind == "text":
            return {"type": "text", "text": self.dice.choice(TEXTS)}
        if kind == "audio":
            return {"type": "audio", **self.sound()}
        rows, columns = self.dice.randrange(9, 90), self.dice.randrange(9, 90)
        if kind == "image":
            self.images.append(self.rng.integers(0, 256, (rows, columns, 3)).astype(np.uint8))
            return {"type": "image", "image": self.images[-1]}
        frames = self.rng.integers(0, 256, (2 * self.dice.randrange(2, 4), rows, columns, 3)).astype(np.uint8)
        fps = self.dice.choice([1, 2, 0.5])
        self.clips.append((frames, fps))
        return {"type": "video", "video": frames, "fps": fps, "look_fps": fps} | (self.sound() if self.together else {})

    def expected(self) -> dict[str, Any]:
        r, p, grids = self.reference, self.reference.parts, []
        text = p.tokenizer.apply_chat_template(self.messages, add_generation_prompt=True, tokenize=False)
        found: dict[str, Any] = {"images": [], "frames": [], "mels": []}
        for image in self.images:
            made = p.image_processor(Image.fromarray(image), return_tensors="np")
            found["images"].append((made["pixel_values"], made["image_grid_thw"][0]))
        for sound in self.sounds:
            given = {"sampling_rate": 16000, "return_attention_mask": True, "return_tensors": "np"}
            made = p.feature_extractor(sound, **given, **r.heard)
            found["mels"].append(made["input_features"][0])
            found["frames"].append(int(made["attention_mask"].sum()))
        heard = {"num_audio_tokens": [r.vectors(n) for n in np.array(found["frames"])]}
        rules = clip_rules(r.expert.rules)
        for frames, _ in self.clips:
            grids.append(video_patches(frames, rules)[1])  # no reference without torchvision; held by its own tests
        found["grids"], found["seconds"] = grids, [2 / fps for _, fps in self.clips]
        shown = {"video_grid_thw": np.array(grids).reshape(-1, 3), "video_second_per_grid": found["seconds"]}
        seen = {"image_grid_thw": np.array([grid for _, grid in found["images"]]).reshape(-1, 3)}
        image, audio, video, out = 0, 0, 0, ""
        while text:
            for kind in ("image", "audio", "video"):
                if not text.startswith(r.spelling[kind]):
                    continue
                text = text.removeprefix(r.spelling[kind])
                if kind == "image":
                    out += r.processor.replace_image_token(p, seen, image)
                    image += 1
                elif kind == "audio":
                    out += r.processor.replace_audio_token(p, heard, audio)
                    audio += 1
                elif self.together:
                    out += r.processor.replace_video_with_audio_token(p, shown, video, heard, audio, **r.timing)
                    video, audio = video + 1, audio + 1
                else:
                    out += r.spelling["video"] * (int(np.prod(grids[video])) // 4)
                    video += 1
                break
            else:
                out, text = out + text[0], text[1:]
        found["ids"] = p.tokenizer(out, add_special_tokens=False)["input_ids"]
        return found

    def positions(self, ids: list[int], found: dict[str, Any], told: bool = True) -> tuple[Any, float]:
        given = torch.tensor([ids])
        images, clips = [grid for _, grid in found["images"]], found["grids"]
        positions, deltas = self.reference.thinker().get_rope_index(
            given,
            torch.tensor(np.array(images)) if images else None,
            torch.tensor(clips) if clips else None,
            torch.ones_like(given),
            self.together and told,
            torch.tensor(found["frames"]) if found["frames"] else None,
            torch.tensor(found["seconds"]) if clips else None,
        )
        return positions[:, 0], float(deltas)

    def check(self, ours: dict[str, Any], found: dict[str, Any]) -> None:
        """Whether ours has the prompt, the media and the insets of what is expected."""
        tokens = self.reference.expert.config.tokens
        ids = found["ids"]
        assert ours["tokens"] == ids, self.seed
        for sound, mel, frames in zip(ours["sounds"], found["mels"], found["frames"], strict=True):
            np.testing.assert_allclose(sound, mel[:, :frames], rtol=0, atol=2e-4)  # of an empty band theirs has noise
        stills = [p for p in ours["pictures"] if len(p) == 1]
        for picture, (patches, grid) in zip(stills, found["images"], strict=True):
            assert picture.shape[:3] == tuple(grid)
            np.testing.assert_allclose(picture.reshape(len(patches), -1), patches, rtol=0, atol=1e-6)
        # What stands where: every placeholder once, each medium's rows in order.
        assert sorted(p.shape[:3] for p in ours["pictures"] if len(p) > 1) == sorted(found["grids"])
        rows: dict[tuple[str, int], list[int]] = {}
        for at, count, kind, index, first in ours["insets"]:
            rows.setdefault((kind, index), []).extend(range(first, first + count))
            assert set(ids[at : at + count]) <= ({tokens.audio} if kind == "sound" else {tokens.image, tokens.video})
        for i, picture in enumerate(ours["pictures"]):
            assert rows["picture", i] == list(range(int(np.prod(picture.shape[:3])) // 4))
        assert len(rows) == len(ours["pictures"]) + len(ours["sounds"])

    def check_positions(self, ours: tuple[Any, float], ids: list[int], found: dict[str, Any], told: bool = True) -> None:
        """Whether [positions, shift] are those of the reference."""
        place, shift = ours
        positions, delta = self.positions(ids, found, told)
        ours_3N = np.broadcast_to(np.arange(len(ids), dtype=np.float32), (3, len(ids))) if place is None else place
        assert torch.equal(torch.tensor(ours_3N), positions.float()), self.seed
        assert abs(shift - delta) < 1e-3
