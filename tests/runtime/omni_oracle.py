"""Requests to a tiny Qwen3-Omni, and what transformers' `generate` answers to the same prompts: text, codes and wave."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from omni_runtime.cards.qwen3_omni import qwen3_omni
from omni_runtime.programs.omni import omni

sys.path.append(str(Path(__file__).resolve().parents[1] / "experts"))
from tiny_qwen3 import folder, reference

from omni_runtime.experts.omni_prepare import build
from omni_runtime.experts.slots import Slots
from omni_runtime.messages import normal
from omni_runtime.work import CallStep, Row

CARD = qwen3_omni(str(folder().folder))
PROGRAM = omni(CARD)
GREEDY = {"talk": {"temperature": 0.0, "repetition_penalty": 1.0, "predict": {"temperature": 0.0}}}
TOKENS = folder().config.tokens
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
    stop: int = TOKENS.im_end


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


# Asked for by tests that need them only: they take the reference long, or are odd.
RARE = {
    "long": ASKED["mixed"]._replace(think=700, frames=900),  # 601 frames until the talker ends it
    **{f"words{n}": ASKED["turns"]._replace(stop=stop, frames=4) for n, stop in ((1, 122), (2, 23), (3, 250))},
}


@lru_cache
def prepared(name: str) -> dict[str, Any]:
    asked = (ASKED | RARE)[name]
    messages = normal(asked.messages, ["audio", "image", "video"], _refuse)
    step = CallStep(0, {"messages": (messages,)}, {}, {"use_audio_in_video": asked.mixed})
    expert = build({"checkpoint": str(folder().folder)}, "cpu")
    return expert.ops["prepare"]([Row(1, "prepare", 1, 0, (), step)], Slots("x"))[0].items


def _refuse(*_: Any) -> Any:
    raise AssertionError("no file is named here")


@lru_cache
def answer(name: str) -> Answer:
    """Of `generate`, greedy."""
    asked, made = (ASKED | RARE)[name], prepared(name)
    ids = torch.tensor([made["tokens"]])
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_audio_in_video": asked.mixed}
    kinds = [
        part["type"] for turn in asked.messages if isinstance(turn, dict) for part in turn["content"] if isinstance(part, dict)
    ]
    kinds = [kind for kind in kinds if kind in ("image", "video")]
    for kind, pixels, grid in (("image", "pixel_values", "image_grid_thw"), ("video", "pixel_values_videos", "video_grid_thw")):
        mine = [torch.tensor(np.asarray(p)) for p, k in zip(made["pictures"], kinds, strict=True) if k == kind]
        if mine:
            given[pixels] = torch.cat([p.flatten(0, 2) for p in mine])
            given[grid] = torch.tensor([p.shape[:3] for p in mine])
    if "video" in kinds:
        given["video_second_per_grid"] = torch.tensor([1.0] * kinds.count("video"))
    if len(made["sounds"]):
        mels = [torch.tensor(np.asarray(mel)) for mel in made["sounds"]]
        longest = max(mel.shape[1] for mel in mels)
        given["input_features"] = torch.stack([torch.nn.functional.pad(mel, (0, longest - mel.shape[1])) for mel in mels])
        given["feature_attention_mask"] = (torch.arange(longest) < torch.tensor([m.shape[1] for m in mels])[:, None]).long()
    seen: list[Any] = []
    model = reference()
    whole = model.code2wav.chunked_decode
    # Its decode in chunks of 300 frames loses `lag` samples after each (page 0020): all of it in one call is right.
    model.code2wav.chunked_decode = lambda codes, **_: (seen.append(codes), model.code2wav(codes))[1]
    try:
        sequence, wave = model.generate(
            **given,
            speaker=asked.speaker,
            thinker_max_new_tokens=asked.think,
            thinker_do_sample=False,
            thinker_eos_token_id=asked.stop,
            talker_max_new_tokens=asked.frames + 1,
            talker_do_sample=False,
            talker_temperature=None,
            talker_top_k=None,
            talker_top_p=None,
            talker_repetition_penalty=1.0,
            return_audio=True,
        )
    finally:
        model.code2wav.chunked_decode = whole
    codes = [tuple(frame) for frame in seen[0][0].T.tolist()]
    return Answer(sequence[0, ids.shape[1] :].tolist(), codes, wave[0, 0].numpy())


def wish(name: str, **more: Any) -> dict[str, Any]:
    """Arguments of `submit` for a request."""
    asked = (ASKED | RARE)[name]
    talk = GREEDY["talk"] | {"max_frames": asked.frames, "speaker": asked.speaker}
    think = {"max_tokens": asked.think, "stop_tokens": [asked.stop]}
    given: dict[str, Any] = {"messages": asked.messages, "think": think, "talk": talk, "seed": 1}
    return given | ({"use_audio_in_video": True} if asked.mixed else {}) | more


def same(result: Any, name: str) -> None:
    """Whether a result is the reference's answer."""
    want = answer(name)
    assert list(result.outputs["tokens"]) == want.tokens, name
    assert [tuple(frame) for frame in result.outputs["codes"]] == want.codes, name
    np.testing.assert_allclose(result.audio, want.wave, rtol=0, atol=1e-4)
