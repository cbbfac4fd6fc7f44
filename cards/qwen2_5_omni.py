"""Qwen2.5-Omni (Xu et al. 2025): text, pictures, clips and sounds in, text and speech out, from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_runtime.cards.omni_parts import SAMPLE_RATE, expert, kv_bytes, listeners, listening

from omni_runtime.card import AudioDecode, ExpertSpec, FlowDecode, ModelCard, OpCost, OpLimits, Port, Slot, Talk
from omni_runtime.errors import CheckpointError
from omni_runtime.weights.generation import read_generation, read_talker
from omni_runtime.weights.omni_parts import PARTS
from omni_runtime.weights.qwen2_5_omni_config import read_qwen25_config
from omni_runtime.weights.qwen2_5_omni_parts import Qwen25Config
from omni_runtime.weights.speaker_names import read_speaker_names

# What the makers draw codes with, and how many: 82 seconds of sound.
SPEAK = {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "repetition_penalty": 1.05, "max_frames": 4096}
FIRST = "chelsie"  # who speaks where nobody is named

# Sizes of Qwen2.5-Omni-7B, to draw and simulate it without a checkpoint.
THINKER_KV, TALKER_KV = 4 * 28 * 2 * 4 * 128, 4 * 24 * 2 * 4 * 64
THINK: dict[str, Any] = {"context": 32_768, "vocabulary": 152_064, "stop_tokens": (151_645,)}
TALK: dict[str, Any] = {"context": 32_768, "text_end": 151_861, "text_pad": 151_859, "speakers": ("Chelsie", "Ethan")}
FLOW: dict[str, Any] = {"repeats": 2, "block": 24}
HOP, REACH = 240, (34, 34)

# Assumed as in `omni_parts`: the talker has 1.4e9 parameters; a velocity of a block is 48 frames through 0.33e9.
TALKING = OpCost(batch=3e-3, unit=2e-4, work=2e-5, reach=1e-9)
VELOCITY = OpCost(batch=2e-3, unit=1e-4, work=4e-4, reach=0.0)  # work counts blocks
DECODE = OpCost(batch=3e-3, unit=1e-3, work=3e-5, reach=0.0)


def qwen2_5_omni(checkpoint: str | None = None) -> ModelCard:
    """Loops: `prepare` (messages to a prompt and media), `hear`, `see`, `think`, and, where the folder has a voice, `talk` (a
    code is 20 ms), `flow` (mel frames of 10 ms, along an ODE) and `speak`.

    Args:
        checkpoint: folder that holds config.json. Without one the card has the sizes of the published 7B and cannot be loaded.

    Raises:
        CheckpointError: the folder is none of a Qwen2.5-Omni.
    """
    config = None if checkpoint is None else read_qwen25_config(Path(checkpoint))
    voiced = config is None or config.talker is not None
    think, kv = THINK, THINKER_KV
    if config is not None:
        told = read_generation(Path(checkpoint or ""), config.stop, config.thinker.vocab, PARTS)
        if not told.stop_tokens:
            raise CheckpointError(f"{checkpoint}: no eos_token_id in generation_config.json or config.json: no answer would end")
        think = {"context": config.thinker.positions, "vocabulary": config.thinker.vocab}
        think |= {"stop_tokens": told.stop_tokens, "defaults": told.defaults}
        kv = kv_bytes(config.thinker)
    states = {"states": Port(type="states", device=True)} if voiced else {}
    experts = listeners(checkpoint, "omni_runtime.experts.qwen25_thinker:build", kv)
    loops = listening(think, states, turns=False, features=False)
    if voiced:
        experts |= _voice_experts(checkpoint, config)
        loops |= _voice_loops(checkpoint, config)
    return ModelCard(
        name="qwen2_5_omni",
        description="Qwen2.5-Omni, float32" + ("" if voiced else ", without a voice"),
        experts=experts,
        loops=loops,
    )


def _voice_experts(checkpoint: str | None, config: Qwen25Config | None) -> dict[str, ExpertSpec]:
    kv = TALKER_KV if config is None or config.talker is None else kv_bytes(config.talker.decoder)
    talk = OpLimits(units=64, size=512, chunk=128, cost=TALKING)
    velocity = OpLimits(units=16, size=16, cost=VELOCITY)
    decode = OpLimits(units=8, size=512, cost=DECODE)
    return {
        "talker": expert("omni_runtime.experts.qwen25_voice:build", checkpoint, ops={"talk": talk}, bytes_per_position=kv),
        "flow": expert(
            "omni_runtime.experts.qwen25_voice:build_flow",
            checkpoint,
            ops={"velocity": velocity},
        ),
        "vocoder": expert("omni_runtime.experts.qwen25_voice:build_vocoder", checkpoint, ops={"decode_audio": decode}),
    }


def _voice_loops(checkpoint: str | None, config: Qwen25Config | None) -> dict[str, Any]:
    talk, flow, hop, (behind, ahead), defaults = TALK, FLOW, HOP, REACH, dict[str, Any](SPEAK)
    if config is not None:
        c, folder = config, Path(checkpoint or "")
        if c.talker is None or c.flow is None or c.waves is None:
            raise CheckpointError("talker_config, token2wav_config: both are needed for a voice")
        names = read_speaker_names(folder)
        talk = {"context": c.talker.decoder.positions, "text_end": c.talker.text_eos, "text_pad": c.talker.text_pad}
        talk["speakers"] = tuple(sorted(names, key=lambda name: name.lower() != FIRST))
        defaults, _ = read_talker(folder, SPEAK, [c.talker.pad, c.talker.eos], unsaid=0)
        flow = {"repeats": c.flow.repeats, "block": c.flow.block}
        hop, (behind, ahead) = c.waves.hop, c.waves.reach
    read = {"prompt": Slot(type="token"), "positions": Slot(type="positions"), "states": Slot(type="states", mode="stream")}
    mel = {"frames": Slot(type="mel", mode="stream")}
    return {
        "talk": Talk(expert="talker", reads=read, defaults=defaults, **talk),
        "flow": FlowDecode(expert="flow", state_blocks=1, **flow),
        "speak": AudioDecode(expert="vocoder", sample_rate=SAMPLE_RATE, hop=hop, behind=behind, ahead=ahead, reads=mel),
    }
