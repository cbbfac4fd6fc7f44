"""Memory by need: who is senior grows, who is junior gives, and nobody gives for nothing."""

from __future__ import annotations

from typing import Any

import pytest
from stage import CARDS, PROGRAMS
from watch import Watch, say

from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.orders import Evict, Parked, Submitted
from omni_runtime.scheduler.book import ExecBook, Offer, RunBook, Tenant
from omni_runtime.scheduler.memory import Memory
from omni_runtime.sim import Simulation
from omni_runtime.work import ExecutorDown, ExecutorUp, Preempt, UnitKind, WorkUnit


class Ear:
    """What the scheduler orders."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def see(self, now: float, inputs: Any, said: Any, commands: Any) -> None:
        self.said += said

    def evicted(self) -> list[int]:
        return [order.run for order in self.said if isinstance(order, Evict)]

    def parked(self) -> list[int]:
        return [order.run for order in self.said if isinstance(order, Parked)]


def watched(blocks: int, **more: Any) -> tuple[Watch, Ear]:
    sim, ear = Watch(blocks=blocks, stops=0, **more), Ear()
    sim.core.observers.append(ear)
    return sim, ear


def holds(sim: Watch, run: int) -> int:
    ledger = sim.core.scheduler.executors["x"].ledgers["toy/mot"]
    return sum(len(blocks) for (other, _), blocks in ledger.held.items() if other == run)


def test_requests_without_a_limit_share_a_pool() -> None:
    """Each may use 16 blocks, there are 16: both run at once all the same, until they need more than there is."""
    sim, ear = watched(16)
    first, second = say(sim, prompt=4, tokens=None), say(sim, prompt=4, tokens=None)
    sim.step(10)
    assert sim.where(first.run) and sim.where(second.run)
    sim.finish_all()
    assert [first.end.reason, second.end.reason] == ["done", "done"]
    assert len(first.text()) and first.end.rebuilt == 0, "nobody takes from the senior"
    assert set(ear.evicted()) == {second.run}


def test_the_most_junior_gives_and_comes_back() -> None:
    sim, ear = watched(9)
    handles = [say(sim, prompt=4, tokens=20) for _ in range(3)]  # 6 blocks each in the end
    sim.finish_all()
    assert handles[0].end.rebuilt == 0
    assert ear.evicted()[0] == handles[2].run, "the most junior first"
    assert [h.end.reason for h in handles] == ["done"] * 3
    solo = Watch(blocks=9, stops=0)
    alone = say(solo, prompt=4, tokens=20)
    solo.finish_all()
    assert {h.text() for h in handles} == {alone.text()}


def test_a_run_comes_in_with_all_that_it_knows() -> None:
    """What was sent away comes back when its 5 blocks are there, not one by one: it would be sent away again at once."""
    sim, ear = watched(9)
    senior, junior = say(sim, prompt=4, tokens=32), say(sim, prompt=16, tokens=16)
    while not ear.evicted() and sim.busy:
        sim.step()
    assert ear.evicted() == [junior.run]
    while senior.end is None and sim.busy:
        assert holds(sim, junior.run) == 0
        sim.step()
    sim.finish_all()
    assert ear.evicted() == [junior.run], "once"


def test_nobody_gives_for_nothing() -> None:
    """The junior holds one block and two are missing: it keeps it, and the needy one waits for the senior to end."""
    sim, ear = watched(12)
    say(sim, prompt=4, tokens=28)  # 8 blocks in the end
    middle = say(sim, prompt=12, tokens=9)
    sim.finish_all()
    late = [run for run in ear.evicted() if run != middle.run]
    assert late == []
    sim, ear = watched(6)
    holder = say(sim, prompt=12, tokens=9)  # 3 blocks, 6 in the end
    small = say(sim, prompt=1, tokens=2)
    big = say(sim, prompt=20, tokens=2)  # 5 at once: even without the small one there are not enough
    sim.step(2)
    assert ear.evicted() == []
    sim.finish_all()
    assert [h.end.reason for h in (holder, small, big)] == ["done"] * 3


def test_a_victim_in_flight_leaves_when_it_is_back_and_no_junior_takes_what_is_claimed() -> None:
    """Two batches of different groups: while the painter is in flight its block is claimed by the senior text."""
    sim, ear = watched(5, slots=2)
    text = say(sim, prompt=15, tokens=6)  # 4 blocks, then 6 would be too many: 5 is what fits
    picture = sim.submit(PROGRAMS["paint"], messages="m", outputs=("image",), paint={"steps": 6})
    sim.run()
    assert [text.end.reason, picture.end.reason] == ["done", "done"]
    assert set(ear.evicted()) <= {picture.run}
    assert text.end.rebuilt == 0
    sim.finish_all()


def test_a_unit_takes_what_is_free_before_anybody_is_sent_away_for_it() -> None:
    """A prompt of 20 whose blocks are all there is granted whole; decodes beside it keep theirs."""
    sim, ear = watched(12)
    say(sim, prompt=4, tokens=8)
    sim.step(2)
    say(sim, prompt=20, tokens=2)
    sim.finish_all()
    assert ear.evicted() == []


def test_waiting_for_blocks_is_told() -> None:
    sim, _ = watched(6)
    first, second = say(sim, prompt=4, tokens=20), say(sim, prompt=4, tokens=20)
    told = []
    while first.end is None and sim.busy:
        sim.step()
        told += sim.core.story(second.run)
    assert any("gave its memory to a senior: begins again with think" in line for line in told)
    assert any("waits at the door for" in line for line in told)
    sim.finish_all()


@pytest.mark.parametrize("times", [1, 3])
def test_preempted_by_hand_it_comes_in_again_at_once(times: int) -> None:
    sim, ear = watched(12)
    handle = say(sim, prompt=4, tokens=12)
    sim.step(5)
    for _ in range(times):
        sim.feed(Preempt(handle.run))
        sim.step()
    sim.finish_all()
    assert ear.evicted() == [handle.run] * times
    assert handle.end.rebuilt == times


def test_a_tenants_urgent_request_takes_from_its_own_only() -> None:
    """At the door priorities count within a tenant: what another one holds is not taken for them."""
    sim, ear = watched(6)
    mine = say(sim, prompt=12, tokens=8, tenant="a", priority="low")
    other = say(sim, prompt=8, tokens=8, tenant="b", priority="low")
    sim.step(2)
    urgent = say(sim, prompt=12, tokens=4, tenant="a", priority="high")
    sim.step(2)
    assert ear.evicted()[:1] == [mine.run]
    sim.finish_all()
    assert [h.end.reason for h in (mine, other, urgent)] == ["done"] * 3


def test_who_is_sent_away_keeps_his_turn() -> None:
    """Two tenants take turns; one of them is sent away again and again, and comes in at the cost of no further turn."""
    sim, ear = watched(12)
    first = say(sim, prompt=4, tokens=40, tenant="a")
    second = say(sim, prompt=4, tokens=40, tenant="b")
    while sim.busy and second.end is None:
        sim.step()
    tenants = sim.core.scheduler.tenants
    assert second.run in ear.evicted()
    assert tenants["a"].turn == tenants["b"].turn == 1.0
    sim.finish_all()
    assert first.end.reason == second.end.reason == "done"


def test_who_waits_for_an_executor_gives_first() -> None:
    """A talker is gone with its executor; its thinker holds blocks that a junior needs, and gives them."""
    x = SimulatedExecutor("x", *CARDS, experts=("toy/host", "toy/mot"), blocks=5, stops=0)
    y = SimulatedExecutor("y#1", *CARDS, experts=("toy/talker", "toy/voice"), blocks=40, stops=0)
    sim = Simulation(x, y, cards=CARDS)
    speech = sim.submit(PROGRAMS["cascade1"], messages="m", outputs=("audio",), think={"max_tokens": 12}, talk={"max_tokens": 12})
    while not sim.core.scheduler.executors["x"].ledgers["toy/mot"].held:
        sim.complete(sim.busy[0])
    while "y#1" not in sim.busy:
        sim.complete(sim.busy[0])
    late = sim.mail.pop("y#1")
    del sim.executors["y#1"], sim.finish["y#1"]
    assert late
    sim.feed(ExecutorDown("y#1", "smoke", True))
    text = say(sim, prompt=16, tokens=2)  # type: ignore[arg-type]
    sim.run()
    assert text.end is not None and text.end.reason == "done", sim.core.story(text.run)
    assert speech.end is None
    sim.up(SimulatedExecutor("y#2", *CARDS, experts=("toy/talker", "toy/voice"), blocks=40, stops=0))
    sim.run()
    assert speech.end is not None and speech.end.reason == "done"
    sim.core.check_idle()


class Books:
    """Three runs of falling seniority and a pool, without anything around them."""

    def __init__(self, total: int) -> None:
        self.runs: dict[int, RunBook] = {}
        self.gone: list[int] = []
        self.memory = Memory(self.runs, self.evict)
        self.ex = ExecBook(ExecutorUp("x", ("e",), {"e": total}))
        self.ledger = self.ex.ledgers["e"]
        for run in (1, 2, 3):
            self.runs[run] = RunBook(Submitted(run, float(run), 1, (("e",),)), Tenant("", 1.0))

    def evict(self, run: RunBook, why: str, out: list[Any]) -> None:
        self.gone.append(run.id)
        self.memory.forget(run)
        if self.ledger.drop(run.id, "l"):
            self.memory.moved.add(("x", "e"))

    def grow(self, run: int, positions: int, cached: int = 0) -> bool:
        unit = WorkUnit(run, "l", UnitKind("e", "op", block=1), positions, positions, cached)
        book = self.runs[run]
        offer = book.offers.setdefault("l", Offer(book, unit))
        offer.unit, offer.live = unit, True
        return self.memory.grow(self.ex, offer, [], [])

    def spare(self, run: int) -> int:
        return self.memory.spare(("x", "e"), self.ledger, self.runs[run])


def test_no_junior_takes_what_is_claimed() -> None:
    books = Books(3)
    assert books.grow(2, 3)
    books.runs[2].flying["l"] = 7
    assert not books.grow(1, 2), "the victim is in flight"
    assert books.runs[2].leaving == "memory" and books.gone == []
    assert not books.runs[2].offers["l"].live
    del books.runs[2].flying["l"]
    books.evict(books.runs[2], "memory", [])
    assert (books.spare(1), books.spare(3)) == (3, 1)
    assert not books.grow(3, 2), "two of three are claimed"
    assert [offer.run.id for offer in books.memory.wake()] == [1, 3]
    assert books.grow(1, 2)
    assert books.grow(3, 1), "what is met claims nothing any more"


def test_who_is_gone_claims_nothing() -> None:
    books = Books(2)
    assert books.grow(1, 2)
    assert not books.grow(2, 1)
    assert not books.grow(3, 1)
    assert books.spare(3) == -1
    books.memory.forget(books.runs[2])
    assert books.spare(3) == 0
    assert books.memory.moved == {("x", "e")}, "the others look again"
    assert [offer.run.id for offer in books.memory.wake()] == [3]


def test_what_was_promised_is_not_taken() -> None:
    books = Books(4)
    books.ledger.reserve(3, "l", 3)
    books.runs[3].reserved = True
    assert books.grow(3, 1)
    assert not books.grow(1, 2), "one is free, and two more are promised to a junior"
    assert books.gone == []
    assert books.grow(3, 3, cached=0)
    books.runs[3].reserved = False
    assert books.grow(1, 2)
    assert books.gone == [3]


def test_nobody_is_sent_away_where_that_is_not_enough() -> None:
    books = Books(5)
    assert books.grow(1, 3) and books.grow(3, 1)
    assert not books.grow(2, 3), "one is free, one is a junior's, three are needed"
    assert books.gone == []
    assert books.grow(2, 2)
    assert books.gone == [3]
