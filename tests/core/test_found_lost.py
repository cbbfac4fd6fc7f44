"""Faults of preemption and loss that worlds and reviewers found, each as it was found."""

from __future__ import annotations

from house import House
from search import play
from stage import CARDS, PROGRAMS
from watch import Watch, say

from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.sim import Simulation
from omni_runtime.work import ExecutorDown


def test_who_is_not_in_front_at_the_door_claims_nothing() -> None:
    """World 6473: the first at the door claimed blocks, another tenant's turn came, and both waited for each other."""
    play(6473)


def test_turns_that_moved_are_looked_at_again() -> None:
    """World 1767: whoever was let in moved the turns, and who was in front then was not looked at before the next event."""
    play(1767)


def test_a_run_that_waits_for_an_executor_keeps_nobody_out() -> None:
    """World 102188: it was first at the door with more than there was, and the next one would have fitted."""
    play(102188)


def test_cancel_and_loss_in_one_burst() -> None:
    """World 107669: a loop of it was in flight elsewhere, and its book said for good that the flow had not heard of the loss."""
    play(107669)


def test_a_run_that_waits_for_an_executor_may_keep_a_promise_waiting() -> None:
    """World 1855."""
    play(1855)


def test_a_promise_that_waits_for_an_executor_keeps_nobody_out() -> None:
    """World 200199: what was promised to those who could not go on was kept from those who could."""
    play(200199)


def test_who_comes_in_elsewhere_is_captured_no_longer() -> None:
    """World 303053: policy `requests` kept a loop in the batch of an executor that its run had left."""
    play(303053)
    play(303079)


def test_who_was_told_to_fail_begins_nothing() -> None:
    """Its `Closed` is on the way; until then an offer that was made before is void."""
    house = House({"op": (1, 1)})
    house.feed(*house.come())
    house.feed(*house.done(0.1, again=lambda caller: False))
    house.scheduler.runs[1].doomed = True
    assert house.feed(*house.offer(house.callers[1])) == []


def test_another_executors_death_takes_no_promise_away() -> None:
    """The tokenizer's executor dies: what was reserved on a healthy one stays reserved."""
    host = SimulatedExecutor("h#1", *CARDS, experts=("toy/host",))
    rest = SimulatedExecutor("x", *CARDS, experts=("toy/mot", "toy/talker", "toy/voice"), blocks=40, stops=0)
    sim = Simulation(host, rest, cards=CARDS)
    sim.submit(PROGRAMS["cascade2"], messages="m", outputs=("audio",), guarantee="no-underrun")
    while not sim.core.scheduler.runs[1].reserved:
        sim.complete(sim.busy[0])
    del sim.executors["h#1"], sim.mail["h#1"]
    sim.feed(ExecutorDown("h#1", "smoke", True))
    assert sim.core.scheduler.runs[1].reserved
    sim.run()
    assert sim.handles[1].end.reason == "done"


def test_samples_have_equal_room() -> None:
    """Three samples in a pool of ten blocks: 20, 8 and 8 tokens, though each was asked for 20."""
    sim = Watch(blocks=10, stops=0)
    handle = sim.submit(PROGRAMS["prompted"], prompt=[1, 2, 3], outputs=("text",), n=3, think={"max_tokens": 20})
    sim.finish_all()
    lengths = [handle.end.usage[name]["completion_tokens"] for name in ("think", "think#1", "think#2")]
    assert max(lengths) - min(lengths) <= 4, lengths


def test_a_least_that_cannot_fit_is_refused() -> None:
    """min_tokens=50 in a pool of four blocks gave 13 tokens and said nothing."""
    sim = Watch(blocks=4, stops=0)
    handle = say(sim, prompt=3, tokens=60, think={"min_tokens": 50})
    assert handle.end.reason == "too_large"
    assert "needs at least 14 KV blocks" in handle.end.detail
