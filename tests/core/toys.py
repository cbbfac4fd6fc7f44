"""Toy cards and programs: every kind of loop and hand-off, and nothing that needs a device."""

from __future__ import annotations

from omni_runtime.card import (
    ArDecode,
    AudioDecode,
    DiffusionDenoise,
    Each,
    ExpertSpec,
    FlowDecode,
    ModelCard,
    OneShot,
    OpLimits,
    Port,
    Slot,
    Talk,
)
from omni_runtime.program import Program

BUILD = "toys:none"


def _expert(kv: int = 0, place: str = "device", **ops: tuple[int, int]) -> ExpertSpec:
    sizes = {op: OpLimits(units=units, size=size) for op, (units, size) in ops.items()}
    return ExpertSpec(build=BUILD, ops=sizes, block=4, bytes_per_position=kv, place=place)


CARD = ModelCard(
    name="toy",
    experts={
        "host": _expert(place="host", tokenize=(4, 4), prepare=(4, 4)),
        "mot": _expert(1, forward=(4, 8), denoise=(3, 6), encode=(2, 2)),
        "talker": _expert(1, forward=(4, 6), talk=(4, 6), muse=(4, 6), ponder=(4, 6), recite=(4, 6)),
        "voice": _expert(decode_audio=(3, 9), decode_codes=(3, 5), decode_waves=(3, 7), utter=(2, 2), hear=(2, 2)),
        "flow": _expert(velocity=(3, 3), decode_window=(3, 9)),
    },
    loops={
        "tokenize": OneShot(
            expert="host", op="tokenize", reads={"messages": Slot(type="messages")}, ports={"tokens": Port(type="token")}
        ),
        "think": ArDecode(expert="mot", context=64, stop_tokens=(0,), defaults={"max_tokens": 8}),
        "talk": ArDecode(
            expert="talker",
            context=64,
            stop_tokens=(0,),
            reads={"prompt": Slot(type="token"), "conditioning": Slot(type="hidden", mode="stream")},
            defaults={"max_tokens": 8},
        ),
        "utter": Each(
            expert="voice",
            op="utter",
            segment="clauses",
            longest=12,
            reads={"text": Slot(type="text", mode="stream")},
            ports={"frames": Port(type="frame")},
            defaults={"speed": 1.0},
        ),
        "listen": Each(
            expert="voice", op="utter", reads={"text": Slot(type="text", mode="stream")}, ports={"frames": Port(type="frame")}
        ),
        "speak": AudioDecode(
            expert="voice",
            hop=3,
            ahead=2,
            mark=1,
            sample_rate=8000,
            state_blocks=1,
            reads={"frames": Slot(type="frame", mode="stream")},
        ),
        "chant": AudioDecode(
            expert="voice",
            op="decode_codes",
            hop=2,
            ahead=1,
            sample_rate=8000,
            state_blocks=1,
            reads={"frames": Slot(type="token", mode="stream")},
        ),
        "encode": OneShot(
            expert="mot",
            op="encode",
            reads={"messages": Slot(type="messages")},
            ports={"hidden": Port(type="hidden", device=True)},
        ),
        "paint": DiffusionDenoise(expert="mot", state_blocks=1, save_every=2, defaults={"steps": 3}),
        "image": OneShot(
            expert="mot",
            op="encode",
            reads={"latent": Slot(type="latent")},
            ports={"hidden": Port(type="hidden", device=True), "image": Port(type="image")},
        ),
        "glimpse": Each(
            expert="mot",
            op="encode",
            reads={"latent": Slot(type="latent", mode="stream")},
            ports={"hidden": Port(type="hidden", device=True), "image": Port(type="image")},
        ),
        "prepare": OneShot(
            expert="host",
            op="prepare",
            reads={"messages": Slot(type="messages")},
            ports={
                "tokens": Port(type="token"),
                "sounds": Port(type="sound"),
                "insets": Port(type="inset"),
                "positions": Port(type="positions"),
                "turns": Port(type="turns"),
            },
        ),
        "hear": Each(
            expert="voice",
            op="hear",
            reads={"sounds": Slot(type="sound", mode="stream")},
            ports={"vectors": Port(type="vectors", device=True)},
        ),
        "muse": ArDecode(
            expert="talker",
            op="muse",
            context=64,
            stop_tokens=(0,),
            reads={
                "prompt": Slot(type="token"),
                "positions": Slot(type="positions"),
                "insets": Slot(type="inset"),
                "sound": Slot(type="vectors"),
            },
            ports={
                "text": Port(type="text"),
                "spoken": Port(type="token"),
                "inner": Port(type="inner", device=True),
            },
            defaults={"max_tokens": 8},
        ),
        "tell": Talk(
            expert="talker",
            context=48,
            head=2,
            opening=(91, 92),
            text_end=93,
            text_pad=94,
            speakers=("Ann", "Bob"),
            defaults={"max_frames": 9},
        ),
        "hum": AudioDecode(
            expert="voice",
            op="decode_waves",
            hop=4,
            lag=3,
            reach=2,
            sample_rate=8000,
            state_blocks=1,
            reads={"frames": Slot(type="frame", mode="stream")},
        ),
        "ponder": ArDecode(
            expert="talker",
            op="ponder",
            context=64,
            stop_tokens=(0,),
            reads={
                "prompt": Slot(type="token"),
                "positions": Slot(type="positions"),
                "insets": Slot(type="inset"),
                "sound": Slot(type="vectors"),
            },
            ports={"text": Port(type="text"), "states": Port(type="states", device=True)},
            defaults={"max_tokens": 8},
        ),
        "recite": Talk(
            expert="talker",
            op="recite",
            context=48,
            text_end=93,
            text_pad=94,
            speakers=("Ann", "Bob"),
            reads={
                "prompt": Slot(type="token"),
                "positions": Slot(type="positions"),
                "states": Slot(type="states", mode="stream"),
            },
            defaults={"max_frames": 9},
        ),
        "flow": FlowDecode(expert="flow", repeats=2, block=4, chunks=(1, 2), state_blocks=1, defaults={"num_steps": 3}),
        "croon": AudioDecode(
            expert="flow",
            op="decode_window",
            hop=2,
            ahead=1,
            behind=2,
            sample_rate=8000,
            reads={"frames": Slot(type="mel", mode="stream")},
        ),
    },
)


def text() -> Program:
    p = Program("text", CARD)
    thought = p.loop("think", prompt=p.call("tokenize", p.input("messages")))
    p.output("text", thought.text)
    p.output("tokens", thought.tokens)
    return p


def cascade(capacity: int | None = 2) -> Program:
    """Thinker, talker on its hidden rows, vocoder on the talker's codes."""
    p = Program(f"cascade{capacity}", CARD)
    prompt = p.call("tokenize", p.input("messages"))
    thought = p.loop("think", prompt=prompt)
    p.output("text", thought.text)
    talk = p.loop("talk", prompt=prompt, conditioning=p.handoff(thought.hidden, capacity=capacity))
    p.output("audio", p.loop("chant", frames=p.handoff(talk.tokens, capacity=capacity)).samples)
    return p


def clauses(capacity: int | None = 3) -> Program:
    """Speech clause by clause, as the demo does it."""
    p = Program(f"clauses{capacity}", CARD)
    thought = p.loop("think", prompt=p.call("tokenize", p.input("messages")))
    p.output("text", thought.text)
    utter = p.loop("utter", text=p.handoff(thought.text, capacity=None))
    p.output("audio", p.loop("speak", frames=p.handoff(utter.frames, capacity=capacity)).samples)
    return p


def paint() -> Program:
    p = Program("paint", CARD)
    latent = p.loop("paint", conditioning=p.loop("encode", messages=p.input("messages")).hidden)
    p.output("image", p.loop("image", latent=latent.latent).image)
    p.output("progress", latent.progress)
    p.output("preview", p.loop("glimpse", latent=latent.preview).image)
    return p


def diamond(capacity: int = 1) -> Program:
    """The four loops that a careless throttle deadlocks: `talk` streams from `think` and needs all of `late`, which needs all
    of `mid`, which streams from `think`. `think` must not wait for `talk`, which waits for it."""
    p = Program("diamond", CARD)
    prompt = p.call("tokenize", p.input("messages"))
    think = p.loop("think", prompt=prompt)
    mid = p.loop("think", as_="mid", prompt=p.handoff(think.tokens, mode="full"))
    talk = p.loop("talk", prompt=p.handoff(mid.tokens, mode="full"), conditioning=p.handoff(think.hidden, capacity=capacity))
    p.output("audio", p.loop("chant", frames=p.handoff(talk.tokens, capacity=capacity)).samples)
    p.output("text", think.text)
    return p


def omni(capacity: int | None = None) -> Program:
    """Sounds in, text and speech out: the talker hears the thinker's tokens, and its states where there was sound."""
    p = Program(f"omni{capacity or ''}", CARD)
    asked = p.loop("prepare", messages=p.input("messages"))
    heard = p.loop("hear", sounds=asked.sounds)
    thought = p.loop("muse", prompt=asked.tokens, positions=asked.positions, insets=asked.insets, sound=heard.vectors)
    p.output("text", thought.text)
    told = p.loop(
        "tell",
        prompt=asked.tokens,
        turns=asked.turns,
        insets=asked.insets,
        inner=p.handoff(thought.inner, capacity=capacity),
        text=p.handoff(thought.spoken, capacity=capacity),
    )
    p.output("audio", p.loop("hum", frames=p.handoff(told.codes, capacity=capacity)).samples)
    return p


def tale(capacity: int | None = None) -> Program:
    """Sounds in, text and speech out: the talker is fed the thinker's states, and its codes become sound along a flow."""
    p = Program(f"tale{capacity or ''}", CARD)
    asked = p.loop("prepare", messages=p.input("messages"))
    heard = p.loop("hear", sounds=asked.sounds)
    thought = p.loop("ponder", prompt=asked.tokens, positions=asked.positions, insets=asked.insets, sound=heard.vectors)
    p.output("text", thought.text)
    states = p.handoff(thought.states, capacity=capacity)
    told = p.loop("recite", prompt=asked.tokens, positions=asked.positions, states=states)
    flow = p.loop("flow", codes=p.handoff(told.codes, capacity=capacity), speaker=told.speaker)
    p.output("audio", p.loop("croon", frames=p.handoff(flow.mel, capacity=capacity)).samples)
    p.output("codes", told.codes)
    return p


PROGRAMS = {p.name: p for p in (text(), cascade(), cascade(1), clauses(), clauses(1), paint(), diamond())}
PROGRAMS |= {p.name: p for p in (omni(), omni(1), tale(), tale(1))}
CHOICES: list[tuple[str, tuple[str, ...]]] = [
    ("text", ("text",)),
    ("text", ("text", "tokens")),
    ("cascade2", ("text",)),
    ("cascade2", ("text", "audio")),
    ("cascade1", ("audio",)),
    ("clauses3", ("text", "audio")),
    ("clauses1", ("audio",)),
    ("paint", ("image",)),
    ("paint", ("progress", "image")),
    ("diamond", ("text", "audio")),
]
