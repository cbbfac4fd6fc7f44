"""Who hears a sound output: when he runs dry, and how much of a chunk he asks for; and the leads of what is on the way to him."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_runtime.card import OpCost
from omni_runtime.scheduler.cost import OpModel
from omni_runtime.scheduler.goal import HEADS, NEVER, Goal, Leg, Listener, Whole, asked
from omni_runtime.scheduler.pace import Pace
from omni_runtime.scheduler.rank import LAG, PATIENCE, due, sooner

FRAME = 0.02  # seconds of sound


def leg(goal: Goal, readers: list[Leg] | None = None, seconds: float = 0.01, **pace: float) -> Leg:
    """A loop whose batches take so long, and whose pace is known."""
    known = Pace()
    known.learn(**pace)
    model = OpModel(OpCost(batch=seconds, unit=0.0, work=0.0, reach=0.0))
    made = Leg(goal, SimpleNamespace(units=0, unit=None, busy=False), ("e", "op"), model, known, readers or [])
    goal.legs.append(made)
    return made


def test_a_listener_plays_from_the_first_delivery_on() -> None:
    listener = Listener(8000, 0.5, promised=False)
    assert listener.by == 0.5, "until then the first is wanted"
    listener.hear(1.0, 2.0)
    assert listener.by == 3.0
    listener.hear(2.0, 0.5)
    assert listener.by == 3.5
    assert listener.silence == 0.0
    assert listener.buffered(2.0) == 1.5


def test_silence_is_what_there_was_nothing_to_play_in() -> None:
    listener = Listener(8000, 0.5, promised=False)
    listener.hear(1.0, 1.0)
    listener.hear(2.5, 1.0)
    assert listener.silence == 0.5
    assert listener.by == 3.5, "it goes on from there, not from where it ran dry"
    assert listener.buffered(9.0) == 0.0
    listener.end()
    assert listener.by == NEVER


def test_who_tells_what_he_has_played_is_believed() -> None:
    listener = Listener(8000, 0.5, promised=False)
    listener.played(0.1, 3.0)
    assert listener.by == 0.5, "nothing was delivered: nothing can have been played"
    listener.hear(1.0, 10.0)
    listener.played(2.0, 0.0)  # paused: all of it is still there
    assert listener.by == 12.0
    listener.played(3.0, 99.0)  # more than there is
    assert listener.by == 3.0
    listener.end()
    listener.played(4.0, 1.0)
    assert listener.by == NEVER


@given(st.floats(1e-4, 0.5), st.floats(0.0, 0.05), st.floats(0.0, 0.008), st.floats(0.0, 0.5), st.floats(0.0, 5.0))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_chunk_plays_twice_as_long_as_the_next_one_takes(
    batch: float, unit: float, work: float, beside: float, buffered: float
) -> None:
    """The least chunk: fewer frames would not, so many do; a fuller buffer takes what it holds; never more than there is."""
    listener = Listener(8000, 0.0, promised=False)
    own = leg(listener)
    own.model.theta = (batch, unit, work, 0.0)
    listener.hear(0.0, buffered)
    size = asked(listener, own, 0.0, FRAME, 1.0, beside, 10**9)

    def takes(frames: int) -> float:
        return batch + unit + work * frames + beside

    assert size * FRAME >= 2.0 * takes(size) - 1e-9
    assert size * FRAME >= buffered - 1e-9
    if size > 1 and (size - 1) * FRAME > buffered + 1e-9:
        assert (size - 1) * FRAME <= 2.0 * takes(size - 1) + 1e-9, "a smaller one would have done"
    assert asked(listener, own, 0.0, FRAME, 1.0, beside, 3) == min(3, size)


def test_chunks_double_while_the_buffer_fills() -> None:
    """The first is small; each next one is what the buffer holds by then: about twice the one before."""
    listener = Listener(8000, 0.0, promised=False)
    own = leg(listener, seconds=0.005)
    own.model.theta = (0.005, 0.0, 0.0, 0.0)
    sizes, now = [], 0.0
    for _ in range(6):
        size = asked(listener, own, now, FRAME, 1.0, 0.0, 1000)
        sizes.append(size)
        now += 0.005
        listener.hear(now, size * FRAME)
    assert sizes[0] <= 2
    assert all(before < after <= 2 * before + 2 for before, after in itertools.pairwise(sizes)), sizes
    assert asked(listener, own, 0.0, FRAME, 1.0, 0.0, 10**6) > sizes[-1]


def test_an_op_that_is_slower_than_its_sound_takes_all_there_is() -> None:
    """Small chunks would only make it later."""
    listener = Listener(8000, 0.0, promised=False)
    own = leg(listener)
    own.model.theta = (0.005, 0.0, 0.011, 0.0)  # 11 ms for 20 ms of sound: twice is more than it plays
    assert asked(listener, own, 0.0, FRAME, 1.0, 0.0, 64) == 64


def test_leads_add_up_along_the_way() -> None:
    """A token of the thinker is worth a clause in sixteen; the clause takes one batch, its decoding another."""
    listener = Listener(8000, 1.0, promised=False)
    decode = leg(listener, seconds=0.01)
    clause = leg(listener, [decode], seconds=0.1, next=1.0)
    think = leg(listener, [clause], seconds=0.02, next=16.0)
    listener.refresh()
    assert decode.lead == pytest.approx(0.01)
    assert clause.lead == pytest.approx(0.11)
    assert think.lead == pytest.approx(0.11 + 16 * 0.02)


def test_the_lead_to_the_end_shrinks_with_what_is_done() -> None:
    whole = Whole(10.0, begun=True)
    last = leg(whole, seconds=0.5, units=4.0)
    first = leg(whole, [last], seconds=0.1, units=20.0)
    whole.refresh()
    assert first.lead == pytest.approx(4 * 0.5 + 20 * 0.1)
    first.node.units, last.node.units = 15, 2
    whole.refresh()
    assert first.lead == pytest.approx(2 * 0.5 + 5 * 0.1)
    first.node.units = 99
    whole.refresh()
    assert first.lead == pytest.approx(2 * 0.5 + 0.1), "it has a step to do, whatever was usual"


def test_a_unit_is_due_when_its_listener_needs_it() -> None:
    listener = Listener(8000, 1.0, promised=False)
    own = leg(listener)
    own.lead = 0.3
    patient = due(0.0, 1)
    assert patient == PATIENCE[1]
    assert sooner(0.0, patient, [own]) == PATIENCE[1], "0.7 is later than its patience"
    listener.by = 0.6
    assert sooner(0.0, patient, [own]) == pytest.approx(0.3)
    assert sooner(0.0, patient, []) == patient


@pytest.mark.parametrize(("promised", "head"), [(False, HEADS[1]), (True, HEADS[2])])
def test_how_late_somebody_is_does_not_count(promised: bool, head: float) -> None:
    """Whoever is nearest to a piece goes first, and the goal's head says how far it may pass others."""
    patience = PATIENCE[1]
    for late in (1.0, 100.0):
        listener = Listener(8000, -late, promised)
        near, far = leg(listener), leg(listener)
        near.lead, far.lead = 0.01, 50.0
        assert sooner(0.0, patience, [near]) == pytest.approx(0.01), "it has not begun: it passes nobody"
        listener.hear(-late - 2.0, 2.0)
        assert sooner(0.0, patience, [near]) == pytest.approx(0.01 - head * patience)
        assert sooner(0.0, patience, [far]) == pytest.approx(0.5 * patience - head * patience)


@given(
    st.sampled_from((0, 1, 2)),
    st.lists(
        st.tuples(st.sampled_from(("first", "heard", "promised", "whole")), st.floats(-1e6, 1e6), st.floats(0, 1e4)), max_size=4
    ),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_no_deadline_jumps_further_than_its_lag(priority: int, goals: list[tuple[str, float, float]]) -> None:
    """Whatever is wanted by when: from LAG before a unit is ready to its patience after it."""
    legs = []
    for kind, by, lead in goals:
        goal = Whole(by, begun=True) if kind == "whole" else Listener(8000, by, kind == "promised")
        if isinstance(goal, Listener) and kind != "first":
            goal.hear(by - 1.0, 1.0)
        legs.append(leg(goal))
        legs[-1].lead = lead
    found = sooner(7.0, due(7.0, priority), legs)
    assert 7.0 - LAG <= found <= 7.0 + PATIENCE[priority]


class Reading:
    """A reader of a channel with items that it has not taken."""

    def __init__(self, waiting: int, unit: Any, busy: bool = False) -> None:
        self.channel = SimpleNamespace(items=[0] * (waiting + 2))
        self.cursor = 2
        self.node = SimpleNamespace(unit=unit, busy=busy)


@pytest.mark.parametrize(("unit", "busy", "counts"), [("a step", False, True), (None, True, True), (None, False, False)])
def test_what_lies_on_the_way_is_heard_first(unit: Any, busy: bool, counts: bool) -> None:
    """A unit is needed later by the sound that lies in the channels in front of it, unless their reader has no step to do: half a
    clause is no sound."""
    listener = Listener(8000, 0.1, promised=False)
    own = leg(listener)
    own.pending = [(Reading(10, unit, busy), FRAME)]
    assert own.waiting() == (10 * FRAME if counts else 0.0)
    assert sooner(0.0, 5.0, [own]) == pytest.approx(0.1 + 10 * FRAME if counts else 0.1), "a first piece lies ready, or not"
    listener.hear(-0.9, 1.0)
    assert sooner(0.0, 5.0, [own]) == pytest.approx(0.1 + 10 * FRAME if counts else 0.1)
