"""Qwen3-Omni (Xu et al. 2025): text, pictures, clips and sounds in, text and streamed speech out, from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_runtime.card import (
    ArDecode,
    AudioDecode,
    Each,
    ExpertSpec,
    ModelCard,
    OneShot,
    OpCost,
    OpLimits,
    Port,
    Slot,
    Talk,
)
from omni_runtime.errors import CheckpointError
from omni_runtime.weights.decoder_config import DecoderConfig
from omni_runtime.weights.generation import read_generation, read_talker
from omni_runtime.weights.omni_parts import PARTS
from omni_runtime.weights.qwen3_omni_config import read_omni_config
from omni_runtime.weights.qwen3_omni_parts import OmniConfig

SAMPLE_RATE = 24_000
# What the makers draw first codes with, and how many: five and a half minutes of sound.
SPEAK = {"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.05, "max_frames": 4095}

# Sizes of Qwen3-Omni-30B-A3B, to draw and simulate it without a checkpoint.
PUBLISHED = {"thinker": 48 * 2 * 4 * 128, "talker": 20 * 2 * 2 * 128}
CONTEXT, VOCABULARY, END_OF_TURN = 65_536, 152_064, 151_645
TTS_PAD, TTS_BOS, TTS_EOS = 151_671, 151_672, 151_673
HOP, LAG, REACH = 1920, 555, 578
SPEAKERS = ("Ethan", "Chelsie", "Aiden")

# Nobody measured the published model: assumed from its active parameters (3.3e9 a token, talker and predictor 1.2e9 a frame) at
# 300 TFLOP/s and 3 TB/s.
FORWARD = OpCost(batch=8e-3, unit=1e-4, work=3e-5, reach=1e-9)
TALK = OpCost(batch=1.2e-2, unit=2e-4, work=2e-5, reach=1e-9)
DECODE = OpCost(batch=4e-3, unit=2e-4, work=2e-4, reach=0.0)
ENCODE = OpCost(batch=4e-3, unit=4e-3, work=1e-3, reach=0.0)
PREPARE = OpCost(batch=1e-3, unit=5e-3, work=1e-6, reach=0.0)


def qwen3_omni(checkpoint: str | None = None) -> ModelCard:
    """Loops: `prepare` (messages to a prompt and media), `hear`, `see`, `think`, and, where the folder has a voice, `talk` and
    `speak`.

    Args:
        checkpoint: folder that holds config.json. Without one the card has the sizes of the published model and cannot be loaded.

    Raises:
        CheckpointError: the folder is none of a Qwen3-Omni.
    """
    config = None if checkpoint is None else read_omni_config(Path(checkpoint))
    voiced = config is None or config.talker is not None
    experts = _experts(checkpoint or "", config)
    loops = _loops(checkpoint, config)
    if voiced:
        experts |= _voice_experts(checkpoint or "", config)
        loops |= _voice_loops(checkpoint, config)
    return ModelCard(
        name="qwen3_omni",
        description="Qwen3-Omni, float32" + ("" if voiced else ", without a voice"),
        experts=experts,
        loops=loops,
    )


def _expert(part: str, checkpoint: str, **more: Any) -> ExpertSpec:
    return ExpertSpec(build=f"omni_runtime.experts.{part}", options={"checkpoint": checkpoint}, **more)


def _kv(decoder: DecoderConfig) -> int:
    return decoder.layers * 2 * decoder.kv_heads * decoder.head_dim * 4


def _experts(checkpoint: str, config: OmniConfig | None) -> dict[str, ExpertSpec]:
    once = OpLimits(units=16, size=16, cost=ENCODE)
    return {
        "prepare": _expert(
            "omni_prepare:build", checkpoint, ops={"prepare": OpLimits(units=4, size=4, cost=PREPARE)}, place="host"
        ),
        "hearing": _expert("omni_encoders:build_hearing", checkpoint, ops={"hear": once}),
        "seeing": _expert("omni_encoders:build_seeing", checkpoint, ops={"see": once}),
        "thinker": _expert(
            "qwen3_thinker:build",
            checkpoint,
            ops={"forward": OpLimits(units=128, size=1024, chunk=128, cost=FORWARD)},
            bytes_per_position=4 * PUBLISHED["thinker"] if config is None else _kv(config.thinker),
        ),
    }


def _loops(checkpoint: str | None, config: OmniConfig | None) -> dict[str, Any]:
    context, vocabulary, defaults = CONTEXT, VOCABULARY, dict[str, Any]()
    stop: tuple[int, ...] = (END_OF_TURN,)
    if config is not None:
        told = read_generation(Path(checkpoint or ""), (config.tokens.im_end,), config.thinker.vocab, PARTS)
        context, vocabulary = config.thinker.positions, config.thinker.vocab
        stop, defaults = told.stop_tokens, told.defaults
    voiced = config is None or config.talker is not None
    ports = {"text": Port(type="text"), "tokens": Port(type="token"), "logprobs": Port(type="logprob")}
    if voiced:
        ports |= {"spoken": Port(type="token"), "inner": Port(type="inner", device=True)}
    return {
        "prepare": OneShot(
            expert="prepare",
            op="prepare",
            reads={"messages": Slot(type="messages", media=("image", "audio", "video"))},
            ports={
                "tokens": Port(type="token"),
                "sounds": Port(type="sound"),
                "pictures": Port(type="picture"),
                "insets": Port(type="inset"),
                "positions": Port(type="positions"),
                "turns": Port(type="turns"),
            },
            defaults={"use_audio_in_video": False},
        ),
        "hear": Each(
            expert="hearing",
            op="hear",
            reads={"sounds": Slot(type="sound", mode="stream")},
            ports={"vectors": Port(type="vectors", device=True)},
        ),
        "see": Each(
            expert="seeing",
            op="see",
            reads={"pictures": Slot(type="picture", mode="stream")},
            ports={"vectors": Port(type="vectors", device=True), "features": Port(type="features", device=True)},
        ),
        "think": ArDecode(
            expert="thinker",
            context=context,
            stop_tokens=stop,
            vocabulary=vocabulary,
            defaults=defaults,
            reads={
                "prompt": Slot(type="token"),
                "positions": Slot(type="positions"),
                "insets": Slot(type="inset"),
                "sound": Slot(type="vectors"),
                "picture": Slot(type="vectors"),
                "features": Slot(type="features"),
            },
            ports=ports,
        ),
    }


def _voice_experts(checkpoint: str, config: OmniConfig | None) -> dict[str, ExpertSpec]:
    kv = 4 * PUBLISHED["talker"] if config is None or config.talker is None else _kv(config.talker.decoder)
    return {
        "talker": _expert(
            "qwen3_voice:build",
            checkpoint,
            ops={"talk": OpLimits(units=64, size=512, chunk=128, cost=TALK)},
            bytes_per_position=kv,
        ),
        "vocoder": _expert(
            "qwen3_vocoder:build", checkpoint, ops={"decode_audio": OpLimits(units=16, size=256, chunk=50, cost=DECODE)}
        ),
    }


def _voice_loops(checkpoint: str | None, config: OmniConfig | None) -> dict[str, Any]:
    pad, begin, end = TTS_PAD, TTS_BOS, TTS_EOS
    context, hop, lag, reach = CONTEXT, HOP, LAG, REACH
    speakers: tuple[str, ...] = SPEAKERS
    defaults: dict[str, Any] = SPEAK
    if config is not None:
        if config.talker is None or config.vocoder is None:
            raise CheckpointError("talker_config, code2wav_config: both are needed for a voice")
        pad, begin, end = config.tokens.tts_pad, config.tokens.tts_bos, config.tokens.tts_eos
        context = config.talker.decoder.positions
        speakers = tuple(sorted(config.talker.speakers, key=lambda name: name.lower() != "ethan"))  # whom the makers take
        defaults, _ = read_talker(Path(checkpoint or ""), SPEAK, [config.talker.eos])
        hop, lag, reach = config.vocoder.hop, config.vocoder.lag, config.vocoder.reach
    return {
        "talk": Talk(
            expert="talker",
            context=context,
            opening=(pad, pad, pad, pad, begin),
            text_end=end,
            text_pad=pad,
            speakers=speakers,
            defaults=defaults,
        ),
        "speak": AudioDecode(expert="vocoder", sample_rate=SAMPLE_RATE, hop=hop, lag=lag, reach=reach, state_blocks=1),
    }
