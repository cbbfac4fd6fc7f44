"""Qwen3-Omni (Xu et al. 2025): text, pictures, clips and sounds in, text and streamed speech out, from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_runtime.cards.omni_parts import SAMPLE_RATE, expert, kv_bytes, listeners, listening

from omni_runtime.card import AudioDecode, ExpertSpec, ModelCard, OpCost, OpLimits, Port, Talk
from omni_runtime.errors import CheckpointError
from omni_runtime.weights.generation import read_generation, read_talker
from omni_runtime.weights.omni_parts import PARTS
from omni_runtime.weights.qwen3_omni_config import read_omni_config
from omni_runtime.weights.qwen3_omni_parts import OmniConfig

# What the makers draw first codes with, and how many: five and a half minutes of sound.
SPEAK = {"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.05, "max_frames": 4095}

# Sizes of Qwen3-Omni-30B-A3B, to draw and simulate it without a checkpoint.
THINKER_KV, TALKER_KV = 4 * 48 * 2 * 4 * 128, 4 * 20 * 2 * 2 * 128
THINK: dict[str, Any] = {"context": 65_536, "vocabulary": 152_064, "stop_tokens": (151_645,)}
TALK: dict[str, Any] = {"context": 65_536, "text_end": 151_673, "text_pad": 151_671, "speakers": ("Ethan", "Chelsie", "Aiden")}
SOUND: dict[str, Any] = {"hop": 1920, "lag": 555, "reach": 578}

# Assumed as in `omni_parts`: talker and predictor have 1.2e9 parameters a frame.
TALKING = OpCost(batch=1.2e-2, unit=2e-4, work=2e-5, reach=1e-9)
DECODE = OpCost(batch=4e-3, unit=2e-4, work=2e-4, reach=0.0)


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
    think, kv = THINK, THINKER_KV
    if config is not None:
        told = read_generation(Path(checkpoint or ""), (config.tokens.im_end,), config.thinker.vocab, PARTS)
        think = {"context": config.thinker.positions, "vocabulary": config.thinker.vocab}
        think |= {"stop_tokens": told.stop_tokens, "defaults": told.defaults}
        kv = kv_bytes(config.thinker)
    spoken = {"spoken": Port(type="token"), "inner": Port(type="inner", device=True)} if voiced else {}
    experts = listeners(checkpoint, "omni_runtime.experts.qwen3_thinker:build", kv)
    loops = listening(think, spoken, turns=True, features=True)
    if voiced:
        experts |= _voice_experts(checkpoint, config)
        loops |= _voice_loops(checkpoint, config)
    return ModelCard(
        name="qwen3_omni",
        description="Qwen3-Omni, float32" + ("" if voiced else ", without a voice"),
        experts=experts,
        loops=loops,
    )


def _voice_experts(checkpoint: str | None, config: OmniConfig | None) -> dict[str, ExpertSpec]:
    kv = TALKER_KV if config is None or config.talker is None else kv_bytes(config.talker.decoder)
    talk = OpLimits(units=64, size=512, chunk=128, cost=TALKING)
    decode = OpLimits(units=16, size=256, chunk=50, cost=DECODE)
    return {
        "talker": expert("omni_runtime.experts.qwen3_voice:build", checkpoint, ops={"talk": talk}, bytes_per_position=kv),
        "vocoder": expert("omni_runtime.experts.qwen3_vocoder:build", checkpoint, ops={"decode_audio": decode}),
    }


def _voice_loops(checkpoint: str | None, config: OmniConfig | None) -> dict[str, Any]:
    pad, begin, talk, sound, defaults = TALK["text_pad"], 151_672, TALK, SOUND, dict[str, Any](SPEAK)
    if config is not None:
        if config.talker is None or config.vocoder is None:
            raise CheckpointError("talker_config, code2wav_config: both are needed for a voice")
        pad, begin = config.tokens.tts_pad, config.tokens.tts_bos
        talk = {"context": config.talker.decoder.positions, "text_end": config.tokens.tts_eos, "text_pad": pad}
        # Whom the makers take comes first.
        talk["speakers"] = tuple(sorted(config.talker.speakers, key=lambda name: name.lower() != "ethan"))
        defaults, _ = read_talker(Path(checkpoint or ""), SPEAK, [config.talker.eos])
        sound = {"hop": config.vocoder.hop, "lag": config.vocoder.lag, "reach": config.vocoder.reach}
    return {
        "talk": Talk(expert="talker", opening=(pad, pad, pad, pad, begin), defaults=defaults, **talk),
        "speak": AudioDecode(expert="vocoder", sample_rate=SAMPLE_RATE, state_blocks=1, **sound),
    }
