"""One call per item or per clause: the same calls however the stream arrives, and items consumed when they are spoken for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import CARD

from omni_runtime.channel import Channel, Reader
from omni_runtime.loop import Context
from omni_runtime.loops.clauses import clause_end
from omni_runtime.loops.each import EachLoop
from omni_runtime.work import CallStep, Done, StepResult, Wait, WorkUnit

LOOP = EachLoop()


class Fed:
    """A loop on a channel that a test fills."""

    def __init__(self, loop: str = "utter", **spec: Any) -> None:
        self.channel = Channel()
        self.reader = Reader(self.channel)
        self.state = LOOP.init(
            Context(
                run=1,
                loop=loop,
                node=0,
                spec=CARD.loops[loop].model_copy(update=spec),
                expert="toy/voice",
                block=4,
                readers={"text": self.reader},
                params={"speed": 1.0},
                wants=frozenset({"frames"}),
                seed=0,
            )
        )
        self.said: list[str] = []
        self.pushed: list[tuple[int, int]] = []

    def push(self, *pieces: str) -> None:
        self.channel.push(self.channel.tail, pieces)

    def step(self, frames: int = 2) -> bool:
        unit = LOOP.next(self.state)
        if not isinstance(unit, WorkUnit):
            assert isinstance(unit, Done if self.channel.closed else Wait)
            return False
        assert LOOP.next(self.state) == unit, "a question may be asked any number of times"
        assert (unit.lo, unit.hi, unit.at) == (1, 1, len(self.said))
        call = LOOP.bind(self.state, 1)
        assert isinstance(call, CallStep)
        assert LOOP.bind(self.state, 1) == call, "binding consumes nothing"
        assert call.index == len(self.said)
        assert call.params == {"speed": 1.0}
        self.said += call.inputs["text"]
        for push in LOOP.advance(self.state, 1, StepResult(items={"frames": [0] * frames})):
            self.pushed.append((push.start, len(push.items)))
        return True


def whole(text: str) -> list[str]:
    start, clauses = 0, []
    while (end := clause_end(text, start, True, 12)) is not None:
        clauses.append(text[start:end])
        start = end
    return clauses


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    pieces=st.lists(st.text(st.sampled_from("ab日, .。!\n"), max_size=6), max_size=14),
    eager=st.lists(st.booleans(), min_size=14, max_size=14),
)
def test_clauses_do_not_depend_on_arrival(pieces: list[str], eager: list[bool]) -> None:
    """Pieces come in while clauses are spoken, or pile up; what is consumed has been spoken for."""
    fed = Fed()
    for piece, ask in zip(pieces, eager, strict=False):
        fed.push(piece)
        while ask and fed.step():
            pass
        consumed = sum(map(len, fed.channel.items[: fed.reader.cursor]))
        assert consumed <= sum(map(len, fed.said)), "an item goes when its last character is spoken for"
    fed.channel.close("done")
    while fed.step():
        pass
    text = "".join(pieces)
    assert fed.said == whole(text)
    assert "".join(fed.said) == text
    assert fed.state.text == text[sum(map(len, fed.channel.items[: fed.reader.cursor])) :], "the text kept is of unread items"
    assert LOOP.finalize(fed.state).usage == {"calls": len(fed.said)}


def test_text_that_comes_while_a_clause_is_out_does_not_change_it() -> None:
    fed = Fed()
    fed.push("Hello. ")
    unit = LOOP.next(fed.state)
    call = LOOP.bind(fed.state, 1)
    fed.push("You. ", "There. ")
    assert LOOP.next(fed.state) == unit
    assert LOOP.bind(fed.state, 1) == call
    assert call.inputs["text"] == ("Hello.",)


def test_items_are_taken_one_by_one() -> None:
    fed = Fed("listen")
    assert not fed.step()
    fed.push("a", "b")
    assert fed.step()
    assert fed.step()
    assert not fed.step()
    fed.push("c")
    fed.channel.close("done")
    assert fed.step()
    assert not fed.step()
    assert fed.said == ["a", "b", "c"]


@pytest.mark.parametrize("loop", ["utter", "listen"])
def test_positions_go_on_over_calls_that_give_nothing(loop: str) -> None:
    fed = Fed(loop)
    fed.push("One. ", "Two. ", "Three. ")
    for frames in (2, 0, 3):
        assert fed.step(frames)
    assert fed.pushed == [(0, 2), (2, 0), (2, 3)]


def test_only_the_first_clause_is_cut_early() -> None:
    """However the text arrives; a sentence mark before the limit still ends it."""
    words = "a few words that go on and on without any mark at all, "
    for pieces in ([words * 4], list(words * 4)):
        fed = Fed(first=20, longest=70)
        fed.push(*pieces)
        fed.channel.close("done")
        while fed.step():
            pass
        assert fed.said[0] == "a few words that go "
        assert max(map(len, fed.said[1:])) > 20
        assert "".join(fed.said) == words * 4
    fed = Fed(first=20, longest=300)
    fed.push("Yes. ", words)
    assert fed.step()
    assert fed.said == ["Yes."]
    assert fed.step(), "the second may be long"
    assert fed.said[1] == " a few words that go on and on without any mark at all,"


def test_an_item_without_text() -> None:
    fed = Fed()
    fed.push("", "Hi", "", ".", "")
    fed.channel.close("done")
    assert fed.step()
    assert not fed.step()
    assert fed.said == ["Hi."]


def test_a_port_that_the_op_did_not_give() -> None:
    fed = Fed("listen")
    fed.push("a")
    LOOP.next(fed.state)
    LOOP.bind(fed.state, 1)
    result: Any = StepResult(items={"other": []})
    with pytest.raises(KeyError, match="frames"):
        LOOP.advance(fed.state, 1, result)
