"""A card that contradicts itself is refused when it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from toys import CARD

from omni_runtime.card import (
    ArDecode,
    AudioDecode,
    DiffusionDenoise,
    Each,
    ExpertSpec,
    FlowDecode,
    LoopSpec,
    ModelCard,
    OneShot,
    OpLimits,
    Slot,
    Talk,
)
from omni_runtime.errors import CardError

EXPERT = ExpertSpec(build="a.b:c", ops={"forward": OpLimits(), "denoise": OpLimits(size=1)})

SLOT = Slot(type="t")


def card(loop: LoopSpec, **more: Any) -> ModelCard:
    return ModelCard(**{"name": "x", "experts": {"m": EXPERT}, "loops": {"l": loop}, **more})


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: card(ArDecode(expert="n", context=4)), "loops.l.expert: unknown expert 'n', known: m"),
    (
        lambda: card(ArDecode(expert="m", op="forwrd", context=4)),
        "loops.l.op: unknown op of expert 'm' 'forwrd', .* mean 'forward'",
    ),
    (lambda: card(ArDecode(expert="m", ports={}, context=4)), "loops.l.ports: a loop that gives nothing can never be read"),
    (lambda: card(AudioDecode(expert="m", sample_rate=8, hop=2, lag=3)), "lag: 3 samples are more than the 2 of a frame"),
    (
        lambda: card(Talk(expert="m", op="forward", context=4, text_end=1, text_pad=2, reads={"text": Slot(type="token")})),
        r"reads: \['prompt', 'turns'\]: a talker reads 'prompt' and either 'turns' and 'text'",
    ),
    (
        lambda: Talk(
            expert="m", context=4, text_end=1, text_pad=2, reads=dict.fromkeys(("prompt", "states", "text"), Slot(type="t"))
        ),
        r"reads: \['text'\]: a talker reads",
    ),
    (
        lambda: card(FlowDecode(expert="m", op="forward", block=4, reads={"codes": Slot(type="frame", mode="stream")})),
        "loops.l.reads: kind 'flow_decode' needs slot 'speaker'",
    ),
    (lambda: FlowDecode(expert="m", block=5, repeats=2), "block: 5 frames are no whole number of codes of 2 frames"),
    (lambda: FlowDecode(expert="m", block=4, chunks=(2, 0)), "chunks: each has at least one block"),
    (lambda: AudioDecode(expert="m", sample_rate=8, hop=2, behind=1, state_blocks=1), "behind: who is given frames again keeps"),
    (lambda: card(DiffusionDenoise(expert="m")), "loops.l.branches: a unit has 2 rows, op 'denoise' takes 1"),
    (lambda: card(ArDecode(expert="m", context=4), name="x y"), "name: .* not 'x y'"),
    (lambda: card(ArDecode(expert="m", context=4), experts={}), "experts: .* at least 1 item"),
    (lambda: card(ArDecode(expert="m", context=4), loops={}), "loops: .* at least 1 item"),
    (lambda: card(ArDecode(expert="m", context=4), expert=3), "unknown field 'expert', .* did you mean 'experts'"),
    (lambda: ArDecode(expert="m", context=0), "context: .* not 0"),
    (lambda: ArDecode(expert="m", context=4, state_blocks=-1), "state_blocks: .* not -1"),
    (lambda: ArDecode(expert="m"), "context: is required"),
    (lambda: AudioDecode(expert="m", sample_rate=1, hop=0), "hop: .* not 0"),
    (lambda: Each(expert="m", op="f", reads={"a": Slot(type="t")}), "an `each` loop reads exactly one slot of mode 'stream'"),
    (lambda: Each(expert="m", op="f", longest=3, reads={"a": Slot(type="t", mode="stream")}), "longest: .* not 3"),
    (lambda: OneShot(expert="m", op="f", reads={"a": Slot(type="t", mode="stream")}), r"use `each` for \['a'\]"),
    (lambda: ExpertSpec(build="ab", ops={"f": OpLimits()}), "build: .* not 'ab'"),
    (lambda: ExpertSpec(build="a:b", ops={}), "ops: .* at least 1 item"),
    (lambda: ExpertSpec(build="a:b", ops={"f": OpLimits()}, blok=3), "blok: unknown field 'blok', .* did you mean 'block'"),
    (lambda: ExpertSpec(build="a:b", ops={"f": OpLimits()}, place="gpu"), "place: .* not 'gpu'"),
    (lambda: OpLimits(units=0), "units: .* not 0"),
    (lambda: OpLimits(size=True), "size: .* not True"),
    (lambda: OpLimits(size=2.0), "size: .* not 2.0"),
    (lambda: Slot(type="t", mode="steam"), "mode: .* not 'steam'"),
]


@pytest.mark.parametrize(("make", "told"), WRONG, ids=[told[:40] for _, told in WRONG])
def test_a_contradiction_is_told(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(CardError, match=told):
        make()


def test_several_mistakes_are_told_together() -> None:
    with pytest.raises(CardError, match=r"units: .*; size: "):
        OpLimits(units=0, size=0)


def test_a_card_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        CARD.name = "y"  # type: ignore[misc]


def test_what_grows() -> None:
    assert {name for name, loop in CARD.loops.items() if loop.grows} == {"think", "talk", "muse", "tell", "ponder", "recite"}
