"""Requests that tiny omni models of every family are asked, and what `generate` is told for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from omni_runtime.experts.omni_prepare import build
from omni_runtime.experts.slots import Slots
from omni_runtime.messages import normal
from omni_runtime.work import CallStep, Row

RNG = np.random.default_rng(5)


def picture(high: int, wide: int, frames: int | None = None) -> Any:
    return RNG.integers(0, 256, (*([] if frames is None else [frames]), high, wide, 3)).astype(np.uint8)


def sound(samples: int) -> Any:
    return (0.2 * RNG.standard_normal(samples)).astype(np.float32)


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


IMAGE = {"type": "image", "image": picture(17, 30)}
AUDIO = {"type": "audio", "audio": sound(13_000), "rate": 16_000}
VIDEO = {"type": "video", "video": picture(24, 17, 6), "fps": 2.0, "look_fps": 2}  # 1 s a step
SECOND = AUDIO | {"audio": sound(16_000)}  # as long as that of the clip: the reference pads, and lets it change what it hears
LOUD = VIDEO | {"audio": sound(16_000), "rate": 16_000}


class Asked(NamedTuple):
    """A request."""

    messages: Any
    think: int  # tokens
    frames: int
    speaker: str = "Ethan"
    mixed: bool = False  # clips with their sound
    stop: int | None = None  # token that ends the text; None: that of a turn


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "Be kind."}, {"role": "user", "content": list(parts)}]


ASKED = {
    "text": Asked("Hello omni", 8, 14),
    "turns": Asked(
        [
            {"role": "user", "content": "One."},
            {"role": "assistant", "content": "Two."},
            {"role": "user", "content": "And three, please?"},
        ],
        12,
        9,
        "chelsie",
    ),
    "image": Asked(user(IMAGE, say("What is it?")), 7, 10),
    "audio": Asked(user(say("Listen: "), AUDIO), 6, 11, "Chelsie"),
    "video": Asked(user(VIDEO, say("And?")), 9, 8),
    "mixed": Asked(user(say("See "), IMAGE, say(" and "), IMAGE, AUDIO, VIDEO, say("all.")), 8, 9),
    "loud": Asked(user(IMAGE, LOUD, SECOND, say("Together.")), 7, 8, mixed=True),
    "short": Asked("Say one word.", 2, 6),
}


class Answer(NamedTuple):
    """What the reference says."""

    tokens: list[int]
    codes: list[tuple[int, ...]]
    wave: Any


def prepared(asked: Asked, folder: Path) -> dict[str, Any]:
    """What op `prepare` makes of a request."""
    messages = normal(asked.messages, ["audio", "image", "video"], _refuse)
    step = CallStep(0, {"messages": (messages,)}, {}, {"use_audio_in_video": asked.mixed})
    return build({"checkpoint": str(folder)}, "cpu").ops["prepare"]([Row(1, "prepare", 1, 0, (), step)], Slots("x"))[0].items


def _refuse(*_: Any) -> Any:
    raise AssertionError("no file is named here")


def for_generate(asked: Asked, made: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Prompt and media as the reference takes them; `prefix` of the names of pixels."""
    ids = torch.tensor([made["tokens"]])
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_audio_in_video": asked.mixed}
    kinds = [
        part["type"] for turn in asked.messages if isinstance(turn, dict) for part in turn["content"] if isinstance(part, dict)
    ]
    kinds = [kind for kind in kinds if kind in ("image", "video")]
    for kind, pixels, grid in (("image", "pixel_values", "image_grid_thw"), ("video", "pixel_values_videos", "video_grid_thw")):
        mine = [torch.tensor(np.asarray(p)) for p, k in zip(made["pictures"], kinds, strict=True) if k == kind]
        if mine:
            given[prefix + pixels] = torch.cat([p.flatten(0, 2) for p in mine])
            given[grid] = torch.tensor([p.shape[:3] for p in mine])
    if "video" in kinds:
        given["video_second_per_grid"] = torch.tensor([1.0] * kinds.count("video"))
    if len(made["sounds"]):
        mels = [torch.tensor(np.asarray(mel)) for mel in made["sounds"]]
        longest = max(mel.shape[1] for mel in mels)
        given["input_features"] = torch.stack([torch.nn.functional.pad(mel, (0, longest - mel.shape[1])) for mel in mels])
        given["feature_attention_mask"] = (torch.arange(longest) < torch.tensor([m.shape[1] for m in mels])[:, None]).long()
    return given


def greedy(asked: Asked, end: int, speaker: str | None = None) -> dict[str, Any]:
    """The rest of it: nothing is drawn, and nothing penalised."""
    return {
        "speaker": speaker or asked.speaker,
        "thinker_max_new_tokens": asked.think,
        "thinker_do_sample": False,
        "thinker_eos_token_id": end if asked.stop is None else asked.stop,
        "talker_do_sample": False,
        "talker_temperature": None,
        "talker_top_k": None,
        "talker_top_p": None,
        "talker_repetition_penalty": 1.0,
    }


def wished(asked: Asked, end: int, talk: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Arguments of `submit`."""
    think = {"max_tokens": asked.think, "stop_tokens": [end if asked.stop is None else asked.stop]}
    voice = talk | {"max_frames": asked.frames, "speaker": asked.speaker}
    given: dict[str, Any] = {"messages": asked.messages, "think": think, "talk": voice, "seed": 1}
    return given | ({"use_audio_in_video": True} if asked.mixed else {}) | more
