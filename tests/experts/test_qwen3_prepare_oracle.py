"""`prepare` against transformers' processor, template and positions, on random mixed conversations."""

from __future__ import annotations

import random
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

from tiny_qwen3 import folder, reference  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil  # noqa: E402
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import Qwen3OmniMoeProcessor  # noqa: E402

from omni_runtime.experts.omni_prepare import Prepare, build  # noqa: E402
from omni_runtime.experts.patches import video_patches  # noqa: E402
from omni_runtime.experts.qwen3_talker import user_turns  # noqa: E402
from omni_runtime.experts.resample import mono  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.messages import MEDIA, normal  # noqa: E402
from omni_runtime.weights.preprocessor import clip_rules, read_patch_rules  # noqa: E402
from omni_runtime.work import CallStep, Row  # noqa: E402

torch.set_num_threads(1)
TEXTS = ["", "hi", "What is this?\n", "héllo 🙂 wörld", "  two  spaces ", "user assistant"]


@lru_cache
def expert() -> Prepare:
    return build({"checkpoint": str(folder().folder)}, "cpu")


def prepared(messages: Any, **params: Any) -> dict[str, Any]:
    row = Row(1, "prepare", 1, 0, (), CallStep(0, {"messages": (normal(messages, MEDIA),)}, {}, params))
    return expert().prepare([row], Slots("cpu#1"))[0].items


@lru_cache
def theirs() -> Any:
    """What of the processor works without torchvision: it cannot be built, but its methods only need its parts."""
    rules = read_patch_rules(folder().folder, folder().config)
    sizes = {"patch_size": rules.patch, "merge_size": rules.merge, "temporal_patch_size": rules.temporal}
    images = Qwen2VLImageProcessorPil(
        **sizes, size={"shortest_edge": rules.least, "longest_edge": rules.most}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    special = {"image_token": "<|image_pad|>", "audio_token": "<|audio_pad|>", "video_token": "<|video_pad|>"}
    special |= {"audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>"}
    return SimpleNamespace(
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder().folder),
        feature_extractor=transformers.WhisperFeatureExtractor(feature_size=folder().config.audio.mels),
        image_processor=images,
        video_processor=SimpleNamespace(merge_size=rules.merge, temporal_patch_size=rules.temporal),
        n_window=50,
        **special,
    )


class Talk:
    """A random conversation, and what transformers makes of it."""

    def __init__(self, seed: int, together: bool) -> None:
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
        count = self.dice.randrange(rate // 50, rate * 2)
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
        p, grids = theirs(), []
        text = p.tokenizer.apply_chat_template(self.messages, add_generation_prompt=True, tokenize=False)
        found: dict[str, Any] = {"images": [], "frames": [], "mels": []}
        for image in self.images:
            made = p.image_processor(Image.fromarray(image), return_tensors="np")
            found["images"].append((made["pixel_values"], made["image_grid_thw"][0]))
        for sound in self.sounds:
            given = {"sampling_rate": 16000, "padding": True, "truncation": False, "return_attention_mask": True}
            made = p.feature_extractor(sound, return_tensors="np", **given)
            found["mels"].append(made["input_features"][0])
            found["frames"].append(int(made["attention_mask"].sum()))
        counted = {"feature_attention_mask": np.array(found["frames"])}
        from transformers.models.qwen3_omni_moe import processing_qwen3_omni_moe as module

        heard = {"num_audio_tokens": [module._get_feat_extract_output_lengths(n) for n in counted["feature_attention_mask"]]}
        rules = clip_rules(expert().rules)
        for frames, _ in self.clips:
            grids.append(video_patches(frames, rules)[1])  # no reference without torchvision; held by its own tests
        found["grids"], found["seconds"] = grids, [2 / fps for _, fps in self.clips]
        shown = {"video_grid_thw": np.array(grids).reshape(-1, 3), "video_second_per_grid": found["seconds"]}
        seen = {"image_grid_thw": np.array([grid for _, grid in found["images"]]).reshape(-1, 3)}
        image, audio, video, out = 0, 0, 0, ""
        while text:
            for token in ("<|image_pad|>", "<|audio_pad|>", "<|video_pad|>"):
                if not text.startswith(token):
                    continue
                text = text.removeprefix(token)
                if token == "<|image_pad|>":
                    out += Qwen3OmniMoeProcessor.replace_image_token(p, seen, image)
                    image += 1
                elif token == "<|audio_pad|>":
                    out += Qwen3OmniMoeProcessor.replace_audio_token(p, heard, audio)
                    audio += 1
                elif self.together:
                    given = {"position_id_per_seconds": 13.0}
                    out += Qwen3OmniMoeProcessor.replace_video_with_audio_token(p, shown, video, heard, audio, **given)
                    video, audio = video + 1, audio + 1
                else:
                    out += "<|video_pad|>" * (int(np.prod(grids[video])) // 4)
                    video += 1
                break
            else:
                out, text = out + text[0], text[1:]
        found["ids"] = p.tokenizer(out, add_special_tokens=False)["input_ids"]
        return found

    def positions(self, ids: list[int], found: dict[str, Any], told: bool) -> tuple[Any, float]:
        given = torch.tensor([ids])
        images, clips = [grid for _, grid in found["images"]], found["grids"]
        positions, deltas = reference().thinker.get_rope_index(
            given,
            torch.tensor(np.array(images)) if images else None,
            torch.tensor(clips) if clips else None,
            torch.ones_like(given),
            self.together and told,
            torch.tensor(found["frames"]) if found["frames"] else None,
            torch.tensor(found["seconds"]) if clips else None,
        )
        return positions[:, 0], float(deltas)


@pytest.mark.parametrize("together", [False, True])
def test_random_conversations(together: bool) -> None:
    kinds = 0
    for seed in range(30):
        talk = Talk(seed, together)
        found, ours = talk.expected(), prepared(talk.messages, use_audio_in_video=together)
        ids = found["ids"]
        assert ours["tokens"] == ids, seed
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
            tokens = folder().config.tokens
            assert set(ids[at : at + count]) <= ({tokens.audio} if kind == "sound" else {tokens.image, tokens.video})
        for i, picture in enumerate(ours["pictures"]):
            assert rows["picture", i] == list(range(int(np.prod(picture.shape[:3])) // 4))
        assert len(rows) == len(ours["pictures"]) + len(ours["sounds"])
        own = [ids[i] for i in user_turns(ids, folder().config.tokens)]
        ((parts, talker_positions, talker_shift),) = ours["turns"]
        for place, shift, told, those in ((*ours["positions"][0], True, ids), (talker_positions, talker_shift, False, own)):
            positions, delta = talk.positions(those, found, told)
            ours_3N = np.broadcast_to(np.arange(len(those), dtype=np.float32), (3, len(those))) if place is None else place
            assert torch.equal(torch.tensor(ours_3N), positions.float()), seed
            assert shift == pytest.approx(delta, abs=1e-3)
        spelt: list[int] = []
        for piece in parts:
            at, count = ours["insets"][piece][:2] if isinstance(piece, int) else (0, 0)
            spelt += ids[at : at + count] if isinstance(piece, int) else piece
        assert spelt == own
        kinds += bool(talk.images) and bool(talk.clips) and bool(talk.sounds)
    assert kinds >= 3


def test_text_has_the_prompt_it_had() -> None:
    for messages in ("hi", [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]):
        found = prepared(messages)
        expected = theirs().tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)
        assert found["tokens"] == expected["input_ids"]
        assert found["positions"] == [[None, 0.0]] and not found["insets"] and not found["sounds"] and not found["pictures"]
        assert found["turns"] == [[[expected["input_ids"][:-3]], None, 0.0]]


def test_positions_of_sound_only_count() -> None:
    """So a prompt with nothing but sounds takes the decoder's path of text."""
    found = prepared([{"role": "user", "content": [{"type": "audio", "audio": np.ones(9000, np.float32), "rate": 16000}]}])
    ids = torch.tensor([found["tokens"]])
    frames = torch.tensor([found["sounds"][0].shape[1]])
    positions, delta = reference().thinker.get_rope_index(ids, None, None, torch.ones_like(ids), False, frames, None)
    assert torch.equal(positions[:, 0].float(), torch.arange(ids.shape[1]).expand(3, -1).float()) and not float(delta)
    assert found["positions"] == [[None, 0.0]] and found["turns"][0][1:] == [None, 0.0] and len(found["insets"]) == 1
