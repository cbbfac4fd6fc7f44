"""Who plays in the random worlds: the toys, and programs that are hard on a scheduler."""

from __future__ import annotations

import toys

from omni_runtime.card import Each, ExpertSpec, ModelCard, OpLimits, Port, Slot, batch_limits
from omni_runtime.program import Program

DUO = ModelCard(
    name="duo",
    experts={"pair": ExpertSpec(build="toys:none", ops={"split": OpLimits(units=2, size=2)})},
    loops={
        "split": Each(
            expert="pair",
            op="split",
            reads={"text": Slot(type="text", mode="stream")},
            ports={"left": Port(type="token"), "right": Port(type="token")},
        )
    },
)
CARDS = (toys.CARD, DUO)
LIMITS = batch_limits(*CARDS)


def prompted() -> Program:
    """A prompt that the caller has tokenized: of any length, too long for the context included."""
    p = Program("prompted", toys.CARD)
    p.output("text", p.loop("think", prompt=p.input("prompt")).text)
    return p


def twins() -> Program:
    """Two read ports on one node: the order in which their readers are woken must not depend on a hash."""
    p = Program("twins", *CARDS)
    split = p.loop("split", text=p.loop("think", prompt=p.input("prompt")).text)
    p.output("low", p.loop("chant", as_="low", frames=p.handoff(split.left, capacity=2)).samples)
    p.output("high", p.loop("chant", as_="high", frames=p.handoff(split.right)).samples)
    return p


def late() -> Program:
    """Two loops that hold memory are ready at once, and a reader that can begin only when one of them has ended: by then the
    other has run far ahead, and what it offers must be withdrawn."""
    p = Program("late", toys.CARD)
    prompt = p.input("prompt")
    ahead = p.loop("think", as_="ahead", prompt=prompt)
    script = p.loop("think", as_="script", prompt=prompt)
    talk = p.loop("talk", prompt=p.handoff(script.tokens, mode="full"), conditioning=p.handoff(ahead.hidden, capacity=1))
    p.output("text", ahead.text)
    p.output("more", talk.text)
    return p


PROGRAMS = toys.PROGRAMS | {p.name: p for p in (prompted(), twins(), late())}
CHOICES = [*toys.CHOICES, ("prompted", ("text",)), ("twins", ("low", "high")), ("late", ("text", "more"))]
CHOICES += [("paint", ("preview", "image", "progress"))]
CHOICES += [("omni", ("text", "audio")), ("omni1", ("audio",)), ("tale", ("text", "audio")), ("tale1", ("audio",))]
HOSTS: tuple[tuple[str, ...] | None, ...] = (
    None,  # all
    ("toy/host", "toy/mot"),
    ("toy/talker", "toy/voice"),
    ("toy/mot", "toy/talker"),
    ("toy/voice", "toy/host", "duo/pair"),
)
