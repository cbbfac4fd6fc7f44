"""A wrong program is refused when it is built, and a right one can be pruned, drawn and written as data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stage import DUO
from stage import PROGRAMS as WORLD
from toys import CARD, PROGRAMS, cascade

from omni_runtime.card import ModelCard
from omni_runtime.errors import ProgramError
from omni_runtime.program import PortRef, Program

TWIN = CARD.model_copy(update={"name": "twin"})


def program(*cards: ModelCard) -> Program:
    return Program("p", *(cards or [CARD]))


def think(p: Program) -> Any:
    return p.loop("think", prompt=p.input("x"))


def twice(p: Program) -> None:
    think(p)
    think(p)


def two_outputs(p: Program) -> None:
    ports = think(p)
    p.output("t", ports.text)
    p.output("t", ports.tokens)


def two_types(p: Program) -> None:
    think(p)
    p.output("t", p.loop("talk", prompt=p.call("tokenize", p.input("x")), conditioning=p.input("h")).text)
    p.check()


BUILDING: list[tuple[Callable[[Program], Any], str]] = [
    (lambda p: p.loop("thnk", prompt=p.input("x")), "unknown loop 'thnk', known: chant, .* did you mean 'think'?"),
    (lambda p: p.loop("tyo/think", prompt=p.input("x")), "unknown loop 'tyo/think'"),
    (lambda p: p.loop("think", promt=p.input("x")), "node 'think': unknown slot 'promt', .* did you mean 'prompt'?"),
    (lambda p: p.loop("think"), r"node 'think': slot 'prompt' \(token\) is not wired; give prompt=..."),
    (lambda p: p.loop("think", prompt="x"), "port: Input should be .* not 'x'"),
    (lambda p: think(p).txt, "node 'think': unknown port 'txt', .* did you mean 'text'?"),
    (lambda p: p.output("t", think(p).hidden), "output 't': think.hidden stays on its device; decode it with a loop"),
    (lambda p: p.output("t", p.input("x")), "output 't': input x is made by nobody; show a port of a node"),
    (lambda p: p.output("t", PortRef(node="zz", port="y")), "output 't': unknown node 'zz', known: none"),
    (lambda p: p.loop("think", prompt=PortRef(node="zz", port="y")), "slot 'prompt': unknown node 'zz'"),
    (two_outputs, "output 't' is made twice"),
    (twice, "node 'think' is made twice; give one of them another name with as_="),
    (lambda p: p.loop("think", as_="a.b", prompt=p.input("x")), "'a.b' cannot name a node"),
    (lambda p: p.loop("think", as_="input", prompt=p.input("x")), "'input' cannot name a node"),
    (lambda p: p.loop("chant", frames=think(p).text), "slot 'frames' reads 'token', but think.text gives 'text'"),
    (lambda p: p.loop("think", as_="c", prompt=p.handoff(think(p).tokens)), "slot 'prompt' reads the whole of its input"),
    (lambda p: p.handoff(p.input("x"), mode="steam"), "mode: Input should be 'full' or 'stream', not 'steam'"),
    (lambda p: p.handoff(p.input("x"), capacity=0), "capacity: Input should be greater than or equal to 1, not 0"),
    (lambda p: p.loop("chant", frames=p.handoff(think(p).tokens, mode="full", capacity=2)), "so it cannot have a capacity"),
    (lambda p: p.call("think", p.input("x")), r"call\('think'\): only a one_shot loop with one port can be called; use loop"),
    (lambda p: p.call("tokenize", p.input("x"), p.input("y")), r"takes 1 inputs \(messages\), not 2"),
    (two_types, "input 'x' is read as 'token' and as 'messages'; give each its own"),
    (lambda p: p.check(), "has no output; name one with output"),
    (lambda p: Program("q"), "program 'q': give at least one card"),
    (lambda p: Program("q", CARD, CARD), "two cards have the same name"),
    (lambda p: Program("q", CARD, TWIN).loop("think"), r"loop 'think' is on \['toy', 'twin'\]; write 'card/think'"),
]


@pytest.mark.parametrize(("build", "told"), BUILDING, ids=[told[:40] for _, told in BUILDING])
def test_a_mistake_is_told_where_it_is_made(build: Callable[[Program], Any], told: str) -> None:
    with pytest.raises(ProgramError, match=told.replace("?", r"\?")):
        build(program())


GOOD = {"loop": "think", "reads": {"prompt": "input.x"}}
DATA: list[tuple[Any, Any, str]] = [
    (
        {"a": {"loop": "think", "reads": {"prompt": "b.tokens"}}, "b": {"loop": "think", "reads": {"prompt": "a.tokens"}}},
        "a",
        "a circle: a -> b -> a",
    ),
    ({"a": {"loop": "think", "reads": {"prompt": "a.tokens"}}}, "a", "in a circle: a -> a"),
    ({"a": {"loop": "think", "reads": {"prompt": "zz.x"}}}, "a", "node 'a', slot 'prompt': unknown node 'zz'"),
    ({"a": {"loop": "think", "reads": {"prompt": "x"}}}, "a", "a port is written 'node.port' or 'input.name', not 'x'"),
    ({"a": {"loop": "think", "reads": {"prompt": 5}}}, "a", "a hand-off is .* not 5"),
    ({"a": {"loop": "think", "reads": {"prompt": {"mode": "full"}}}}, "a", "a mapping with a port"),
    ({"a": {"loop": "think", "reads": {"prompt": {"port": "input.x", "mod": "full"}}}}, "a", "unknown field 'mod', .* 'mode'"),
    ({"a": {"loop": "think", "read": {}}}, "a", "node 'a': unknown key 'read', .* did you mean 'reads'"),
    ({"a": {"loop": "think", "reads": [1]}}, "a", "node 'a': is a mapping"),
    ({"a": [1]}, "a", "node 'a': is a mapping"),
    ({"a": {"loop": 5}}, "a", "unknown loop '5'"),
    ({"a": GOOD}, "b", "output 't': unknown node 'b'"),
]


@pytest.mark.parametrize(("nodes", "shown", "told"), DATA, ids=[told[:40] for *_, told in DATA])
def test_wrong_data_is_refused(nodes: Any, shown: str, told: str) -> None:
    with pytest.raises(ProgramError, match=told):
        Program.from_dict("d", (CARD,), nodes, {"t": f"{shown}.text"})


def test_a_mistake_leaves_no_trace() -> None:
    p = program()
    with pytest.raises(ProgramError):
        p.loop("think", promt=p.input("x"))
    p.output("text", think(p).text)
    p.check()


def test_a_program_from_data_is_the_program() -> None:
    made = Program.from_dict(
        "cascade2",
        (CARD,),
        {
            "tokenize": {"reads": {"messages": "input.messages"}},
            "think": {"reads": {"prompt": "tokenize.tokens"}},
            "talk": {"loop": "toy/talk", "reads": {"prompt": "tokenize.tokens", "conditioning": _stream("think.hidden")}},
            "chant": {"reads": {"frames": _stream("talk.tokens")}},
        },
        {"text": "think.text", "audio": "chant.samples"},
    )
    assert made.plan() == cascade().plan()
    assert str(made) == str(cascade())


def _stream(port: str) -> dict[str, Any]:
    return {"port": port, "mode": "stream", "capacity": 2}


def test_pruning_goes_from_the_outputs_back() -> None:
    plan = PROGRAMS["cascade2"].plan(("text",))
    assert [(step.name, step.number, step.wants) for step in plan.steps] == [
        ("tokenize", 0, ("tokens",)),
        ("think", 1, ("text",)),
    ]
    assert plan.together == (("toy/host",), ("toy/mot",))
    whole = PROGRAMS["cascade2"].plan(("audio",))
    assert {step.name: step.wants for step in whole.steps}["think"] == ("hidden",), "nobody asked for its text"
    assert whole.together == (("toy/host",), ("toy/mot", "toy/talker"), ("toy/voice",)), "hidden rows bind their experts"
    assert [step.number for step in WORLD["twins"].plan(("high",)).steps] == [0, 1, 3], "draws do not depend on what is pruned"


@pytest.mark.parametrize("outputs", [(), ("text", "text"), ("txt",)])
def test_a_choice_of_outputs(outputs: tuple[str, ...]) -> None:
    with pytest.raises(ProgramError):
        PROGRAMS["text"].plan(outputs)


def test_a_change_is_seen_by_the_next_plan() -> None:
    p = program()
    ports = think(p)
    p.output("text", ports.text)
    assert p.plan().outputs == ("text",)
    p.output("tokens", ports.tokens)
    assert p.plan().outputs == ("text", "tokens")


def test_loops_of_two_cards() -> None:
    p = Program("q", CARD, TWIN, DUO)
    p.output("text", p.loop("twin/think", prompt=p.input("x")).text)
    assert [step.expert for step in p.plan().steps] == ["twin/mot"]


def test_it_can_be_drawn() -> None:
    lines = str(PROGRAMS["diamond"]).splitlines()
    assert lines[0] == "program diamond  (cards: toy)"
    assert any("talk " in line and "prompt <- mid.tokens, conditioning <~[1] think.hidden" in line for line in lines)
    assert "  output audio = chant.samples" in lines
    chart = PROGRAMS["diamond"].to_mermaid().splitlines()
    assert chart[0] == "flowchart LR"
    for line in (
        "  think ==>|hidden| talk",
        "  mid -->|tokens| talk",
        "  chant -->|samples| out_audio",
        "  in_messages -->|messages| tokenize",
    ):
        assert line in chart
