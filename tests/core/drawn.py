"""Programs that nobody wrote: drawn by a number, from all kinds of loops and hand-offs that the cards of the stage allow."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from stage import CARDS, CHOICES, PROGRAMS

from omni_runtime.program import Program

FIRST = 1000  # choices from here on are drawn
CAPACITIES = (None, 1, 2, 5)


@cache
def chosen(choice: int) -> tuple[Program, tuple[str, ...]]:
    """A program, and the outputs that are asked of it."""
    if choice >= FIRST:
        return _draw(choice)
    name, outputs = CHOICES[choice]
    return PROGRAMS[name], outputs


@cache
def calls(program: Program) -> frozenset[str]:
    """Nodes of which an executor keeps nothing."""
    return frozenset(node for node in program.nodes if program.spec(node).kind in ("each", "one_shot"))


def heard(choice: int) -> bool:
    """Whether an output is sound."""
    program, outputs = chosen(choice)
    ports = (program.outputs[name] for name in outputs)
    return any(program.spec(port.node).ports[port.port].type == "samples" for port in ports)


def _draw(number: int) -> tuple[Program, tuple[str, ...]]:
    r = random.Random(f"program {number}")
    p = Program(f"drawn{number}", *CARDS)
    made: dict[str, list[Any]] = {"prompt": [p.input("prompt")], "text": [], "tokens": [], "hidden": [], "frames": []}
    shown: list[Any] = []

    def stream(kind: str) -> Any:
        port = r.choice(made[kind])
        return p.handoff(port, mode="full") if r.random() < 0.3 else p.handoff(port, capacity=r.choice(CAPACITIES))

    def think(name: str) -> Any:
        whole = made["tokens"] and r.random() < 0.2  # a prompt that is made here claims a whole context
        return p.loop("think", as_=name, prompt=p.handoff(r.choice(made["tokens"]), mode="full") if whole else made["prompt"][0])

    for i in range(r.randint(1, 6)):
        name = f"n{i}"
        can = ["think"] + ["talk"] * 2 * bool(made["hidden"]) + ["chant"] * bool(made["tokens"]) + ["paint"] * (i == 0)
        can += ["utter", "listen", "split"] * bool(made["text"]) + ["speak"] * 2 * bool(made["frames"])
        what = r.choice(can)
        if what == "think":
            node = think(name)
            shown += [node.text, node.tokens]
        elif what == "talk":
            node = p.loop("talk", as_=name, prompt=made["prompt"][0], conditioning=stream("hidden"))
            shown += [node.text]
        elif what == "chant":
            node = p.loop("chant", as_=name, frames=stream("tokens"))
            shown += [node.samples]
        elif what == "speak":
            node = p.loop("speak", as_=name, frames=stream("frames"))
            shown += [node.samples]
        elif what == "paint":
            node = p.loop("paint", as_=name, conditioning=p.loop("encode", messages=p.input("messages")).hidden)
            image = p.loop(*r.choice((("image",), ("glimpse",))), as_=f"{name}image", latent=node.latent)
            shown += [image.image, node.progress]
        else:
            node = p.loop(what, as_=name, text=p.handoff(r.choice(made["text"]), capacity=r.choice(CAPACITIES)))
        if what in ("think", "talk"):
            for kind in ("text", "tokens", "hidden"):
                made[kind].append(getattr(node, kind))
        elif what in ("utter", "listen"):
            made["frames"].append(node.frames)
        elif what == "split":
            made["tokens"] += [node.left, node.right]
    for i, port in enumerate(shown):
        p.output(f"o{i}", port)
    wanted = [f"o{i}" for i in range(len(shown)) if r.random() < 0.5] or [f"o{len(shown) - 1}"]
    return p, tuple(wanted)
