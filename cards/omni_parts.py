"""What cards of omni models have in common: the loops that read messages, hear, see and think."""

from __future__ import annotations

from typing import Any

from omni_runtime.card import ArDecode, Each, ExpertSpec, OneShot, OpCost, OpLimits, Port, Slot
from omni_runtime.weights.decoder_config import DecoderConfig

SAMPLE_RATE = 24_000

# Nobody measured the published models: assumed from their active parameters at 300 TFLOP/s and 3 TB/s.
FORWARD = OpCost(batch=8e-3, unit=1e-4, work=3e-5, reach=1e-9)
ENCODE = OpCost(batch=4e-3, unit=4e-3, work=1e-3, reach=0.0)
PREPARE = OpCost(batch=1e-3, unit=5e-3, work=1e-6, reach=0.0)


def expert(build: str, checkpoint: str | None, family: str = "", **more: Any) -> ExpertSpec:
    """An expert of a checkpoint."""
    options = {"checkpoint": checkpoint or ""} | ({"family": family} if family else {})
    return ExpertSpec(build=build, options=options, **more)


def kv_bytes(decoder: DecoderConfig) -> int:
    """Bytes of a position, float32."""
    return decoder.layers * 2 * decoder.kv_heads * decoder.head_dim * 4


def listeners(checkpoint: str | None, thinker: str, kv: int, family: str = "") -> dict[str, ExpertSpec]:
    """Experts `prepare`, `hearing`, `seeing` and `thinker`.

    Args:
        checkpoint: a folder.
        thinker: "module:builder".
        kv: bytes of a position of the thinker.
        family: "module:NAME" of an `OmniFamily` that is none of ours.
    """
    once = OpLimits(units=16, size=16, cost=ENCODE)
    read = {"prepare": OpLimits(units=4, size=4, cost=PREPARE)}
    forward = {"forward": OpLimits(units=128, size=1024, chunk=128, cost=FORWARD)}
    return {
        "prepare": expert("omni_runtime.experts.omni_prepare:build", checkpoint, family, ops=read, place="host"),
        "hearing": expert("omni_runtime.experts.omni_encoders:build_hearing", checkpoint, family, ops={"hear": once}),
        "seeing": expert("omni_runtime.experts.omni_encoders:build_seeing", checkpoint, family, ops={"see": once}),
        "thinker": expert(thinker, checkpoint, ops=forward, bytes_per_position=kv),
    }


def listening(think: dict[str, Any], ports: dict[str, Port], *, turns: bool, features: bool) -> dict[str, Any]:
    """Loops `prepare` (messages to a prompt and media), `hear`, `see` and `think`.

    Args:
        think: context, stop tokens, vocabulary and defaults of the thinker.
        ports: what it gives beside text, tokens and logprobs.
        turns: `prepare` gives the user's turns to a talker.
        features: `see` gives what is added after the thinker's first layers.
    """
    asked = {"tokens": "token", "sounds": "sound", "pictures": "picture", "insets": "inset", "positions": "positions"}
    asked |= {"turns": "turns"} if turns else {}
    media = {"prompt": "token", "positions": "positions", "insets": "inset", "sound": "vectors", "picture": "vectors"}
    media |= {"features": "features"} if features else {}
    seen = {"vectors": Port(type="vectors", device=True)}
    said = {"text": Port(type="text"), "tokens": Port(type="token"), "logprobs": Port(type="logprob")}
    return {
        "prepare": OneShot(
            expert="prepare",
            op="prepare",
            reads={"messages": Slot(type="messages", media=("image", "audio", "video"))},
            ports={name: Port(type=kind) for name, kind in asked.items()},
            defaults={"use_audio_in_video": False},
        ),
        "hear": Each(expert="hearing", op="hear", reads={"sounds": Slot(type="sound", mode="stream")}, ports=seen),
        "see": Each(
            expert="seeing",
            op="see",
            reads={"pictures": Slot(type="picture", mode="stream")},
            ports=seen | ({"features": Port(type="features", device=True)} if features else {}),
        ),
        "think": ArDecode(
            expert="thinker", reads={name: Slot(type=kind) for name, kind in media.items()}, ports=said | ports, **think
        ),
    }
