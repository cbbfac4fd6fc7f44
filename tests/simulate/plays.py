"""A small card with every kind of loop, and programs over it."""

from __future__ import annotations

from omni_runtime.card import (
    ArDecode,
    AudioDecode,
    DiffusionDenoise,
    Each,
    ExpertSpec,
    ModelCard,
    OneShot,
    OpCost,
    OpLimits,
    Port,
    Raster,
    Slot,
)
from omni_runtime.program import Program

FORWARD = OpCost(batch=0.010, unit=0.001, work=0.0005, reach=0.0)
DECODE = OpCost(batch=0.004, unit=0.0, work=0.0001, reach=0.0)
PAINT = OpCost(batch=0.0, unit=0.0, work=0.001, reach=0.0)
HOP, RATE = 100, 8000


def _expert(cost: OpCost, *ops: str, place: str = "device", kv: int = 0) -> ExpertSpec:
    made = {op: OpLimits(units=16, size=64, cost=cost) for op in ops}
    return ExpertSpec(build="nothing:none", ops=made, place=place, bytes_per_position=kv, block=4)


CARD = ModelCard(
    name="play",
    experts={
        "host": _expert(OpCost(batch=0.0005, unit=0.0, work=0.0, reach=0.0), "tokenize", place="host"),
        "llm": _expert(FORWARD, "forward", kv=1),
        "voice": _expert(DECODE, "utter", "decode_audio"),
        "brush": _expert(PAINT, "denoise", "decode"),
    },
    loops={
        "tokenize": OneShot(
            expert="host", op="tokenize", reads={"messages": Slot(type="messages")}, ports={"tokens": Port(type="token")}
        ),
        "think": ArDecode(expert="llm", context=512, stop_tokens=(0,)),
        "talk": ArDecode(
            expert="llm", context=512, reads={"prompt": Slot(type="token"), "conditioning": Slot(type="hidden", mode="stream")}
        ),
        "utter": Each(
            expert="voice",
            op="utter",
            segment="clauses",
            reads={"text": Slot(type="text", mode="stream")},
            ports={"frames": Port(type="frame")},
        ),
        "speak": AudioDecode(
            expert="voice",
            hop=HOP,
            sample_rate=RATE,
            ahead=3,
            mark=2,
            state_blocks=1,
            reads={"frames": Slot(type="frame", mode="stream")},
        ),
        "chant": AudioDecode(
            expert="voice", hop=HOP, sample_rate=RATE, state_blocks=1, reads={"frames": Slot(type="token", mode="stream")}
        ),
        "paint": DiffusionDenoise(
            expert="brush",
            op="denoise",
            reads={},
            state_blocks=1,
            defaults={"steps": 4},
            raster=Raster(channels=3, factor=8, patch=2, width=32, height=32, largest=64),
        ),
        "develop": OneShot(
            expert="brush", op="decode", reads={"latent": Slot(type="latent")}, ports={"image": Port(type="image")}
        ),
    },
)


def talk() -> Program:
    """Text and speech, clause by clause."""
    p = Program("talk", CARD)
    thought = p.loop("think", prompt=p.call("tokenize", p.input("messages")))
    p.output("text", thought.text)
    frames = p.loop("utter", text=p.handoff(thought.text)).frames
    p.output("audio", p.loop("speak", frames=p.handoff(frames, capacity=40)).samples)
    return p


def chant() -> Program:
    """Thinker, talker on its hidden rows, vocoder on the talker's codes; the caller sends token ids."""
    p = Program("chant", CARD)
    prompt = p.input("prompt")
    thought = p.loop("think", prompt=prompt)
    spoken = p.loop("talk", prompt=prompt, conditioning=p.handoff(thought.hidden, capacity=4))
    p.output("text", thought.text)
    p.output("audio", p.loop("chant", frames=p.handoff(spoken.tokens, capacity=4)).samples)
    return p


def picture() -> Program:
    """A picture of nothing."""
    p = Program("picture", CARD)
    latent = p.loop("paint")
    p.output("image", p.loop("develop", latent=latent.latent).image)
    p.output("progress", latent.progress)
    return p
