"""What the recorder says is exact: each dispatched unit once, its moments in order, every wait with its reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from scenes import CARD, PROGRAMS, Counter, busy, device, host
from search import play
from stage import prompted
from world import World

from omni_runtime.executors.loopback import LoopbackExecutor
from omni_runtime.executors.simulated import Cost, SimulatedExecutor
from omni_runtime.observe.record import Record, UnitFact
from omni_runtime.observe.recorder import Recorder
from omni_runtime.runtime import Runtime
from omni_runtime.sim import Simulation


def consistent(record: Record) -> None:
    """What holds of every unit, whatever happened."""
    last: dict[tuple[int, str], float] = {}
    for u in record.units:
        b = u.batch
        assert b.answered is not None and b.outcome in ("done", "broken", "lost"), f"{u} is still open"
        assert u.since <= u.ready <= u.memory <= b.dispatched <= b.started <= b.answered
        assert u.lo <= u.size <= u.hi and 0 <= u.place < b.units
        assert (b.dispatched > u.memory) == bool(u.behind or u.beaten or u.full), f"not explained: {u}"
        assert u.why
        assert last.get((u.run.id, u.loop), 0.0) <= u.since, "a loop has one unit in flight, and waits for the next after it"
        last[u.run.id, u.loop] = b.answered
    for number in {u.batch.number for u in record.units}:
        mates = [u for u in record.units if u.batch.number == number]
        assert [u.place for u in mates] == sorted({u.place for u in mates})
        assert mates[0].batch.units == len(mates) and mates[0].batch.size == sum(u.size - u.copied for u in mates)
    free: dict[str, float] = {}
    for b in sorted({id(u.batch): u.batch for u in record.units}.values(), key=lambda b: (b.answered, b.number)):
        assert free.get(b.executor, 0.0) <= b.started, "an executor runs one batch at a time"
        free[b.executor] = b.answered or 0.0
    for run in record.runs:
        assert run.ended is not None and run.reason and run.arrival <= run.ended


def sent(record: Record) -> list[tuple[int, str, int]]:
    return [(u.run.id, u.loop, u.batch.number) for u in record.units]


@pytest.mark.parametrize("slots", [1, 2])
def test_every_unit_once_and_every_wait_explained(slots: int) -> None:
    recorder, counter = Recorder(), Counter()
    sim = busy(recorder, counter, slots=slots, runs=30)
    record = recorder.record()
    assert len(counter.sent) == sim.units > 100
    assert sent(record) == counter.sent
    assert [u.due for u in record.units] == counter.dues
    assert sim.core.observers == [recorder, counter]
    assert recorder.live() == []
    consistent(record)
    assert {u.blocked for u in record.units} == {"", "input", "reader"}
    assert any(u.memory > u.ready for u in record.units)
    assert any(u.behind for u in record.units) and any(u.beaten for u in record.units)
    by_loop: dict[tuple[int, str], int] = {}
    for u in record.units:
        by_loop[u.run.id, u.loop] = by_loop.get((u.run.id, u.loop), 0) + (u.outcome == "done")
    for run, handle in sim.handles.items():
        assert handle.end is not None
        assert handle.end.units == {loop: by_loop.get((run, loop), 0) for loop in handle.end.units}


def test_the_moments_of_two_requests_to_the_microsecond() -> None:
    """One executor, 10 ms a token: the second request comes at 4 ms, waits for batch 2, and then both share batches."""
    recorder = Recorder()
    ops = {("toy/mot", "forward"): Cost(0.010), ("toy/host", "tokenize"): Cost(0.001)}
    sim = Simulation(host(costs=ops), device(costs=ops, stops=0), cards=(CARD,), observers=[recorder])
    for at, label in ((0.0, "first"), (0.004, "second")):
        sim.run(until=at)
        sim.now = at
        sim.submit(PROGRAMS["text"], messages="hi", max_tokens=2, label=label, outputs="text")
    sim.run()
    told = [
        (u.run.label, u.told, u.batch.number, *(round(t * 1e3, 3) for t in (u.ready, u.batch.dispatched, u.batch.answered or 0)))
        for u in recorder.record().units
    ]
    assert told == [
        ("first", "call 0", 1, 0.0, 0.0, 1.0),
        ("first", "token 0", 2, 1.0, 1.0, 11.0),
        ("second", "call 0", 3, 4.0, 4.0, 5.0),
        ("second", "token 0", 4, 5.0, 11.0, 21.0),
        ("first", "token 1", 4, 11.0, 11.0, 21.0),
        ("second", "token 1", 5, 21.0, 21.0, 31.0),
    ]
    waited = recorder.record().units[3]
    assert (waited.behind, waited.beaten, waited.full, waited.place) == (2, 0, 0, 0)
    assert waited.why == "before, its loop waited for items of tokenize; waited for gpu#1, busy with batch 2"
    assert waited.due == pytest.approx(0.005 + 0.5)
    assert recorder.record().runs[1].first == {"text": pytest.approx(0.021)}


def test_a_full_batch_is_a_reason() -> None:
    """Four tokens fit into a batch of the toy card: of six requests two wait for the next."""
    recorder = Recorder()
    sim = Simulation(device(experts=None), cards=(CARD,), observers=[recorder])
    for seed in range(6):
        sim.submit(PROGRAMS["text"], messages="hi", max_tokens=1, seed=seed)
    sim.run()
    firsts = [u for u in recorder.record().units if u.loop == "think"]
    assert len(firsts) == 6
    assert any(u.full for u in firsts) and any("no room for it" in u.why for u in firsts)


def test_a_broken_batch_closes_and_its_members_run_alone() -> None:
    def fake(row: Any, slots: Any) -> Any:
        raise RuntimeError("bad step")

    recorder = Recorder()
    sim = Simulation(host(), device(fakes={("toy/mot", "forward"): fake}), cards=(CARD,), observers=[recorder])
    for seed in range(3):  # the first is tokenized alone, so the other two share batches
        sim.submit(PROGRAMS["text"], messages="hi", seed=seed)
    sim.run()
    record = recorder.record()
    consistent(record)
    think = [u for u in record.units if u.loop == "think"]
    assert [(u.outcome, u.alone, u.batch.units) for u in think][-2:] == [("broken", True, 1)] * 2
    assert {u.batch.units for u in think} == {1, 2}
    assert "alone, since a batch with it broke" in think[-1].why
    assert [r.reason for r in record.runs] == ["failed"] * 3
    assert "bad step" in record.runs[0].detail


def test_cancelled_and_lost_runs_close_their_bars() -> None:
    recorder = Recorder()
    sim = Simulation(host(), device(), cards=(CARD,), observers=[recorder])
    for seed in range(2):
        sim.submit(PROGRAMS["text"], messages="hi", seed=seed)
    sim.run(until=0.002)
    assert recorder.record().units[-1].outcome == "in flight"
    assert recorder.live()[0].loops[1].state == "runs"
    sim.cancel(1)
    sim.run(until=0.006)
    record = recorder.record()
    assert "discarded" in {u.outcome for u in record.units if u.run.id == 1}
    assert record.runs[0].reason == "cancelled"
    sim.down("gpu#1")
    record = recorder.record()
    consistent(record)
    assert record.units[-1].outcome == "lost"
    assert record.runs[1].reason == "lost"
    assert recorder._flying == {} and recorder._runs == {}


def test_a_refused_request_is_told_of() -> None:
    recorder = Recorder()
    sim = Simulation(host(), device(blocks=1), cards=(CARD,), observers=[recorder])
    sim.submit(PROGRAMS["diamond"], messages="hi", label="too big")
    sim.run()
    assert [(r.label, r.reason) for r in recorder.record().runs] == [("too big", "too_large")]


def test_memory_is_bounded_and_says_what_was_dropped() -> None:
    recorder, counter = Recorder(units=40), Counter()
    busy(recorder, counter)
    record = recorder.record()
    assert len(record.units) == 40
    assert record.dropped == len(counter.sent) - 40
    assert sent(record) == counter.sent[-40:]
    assert recorder._flying == {} and recorder._runs == {}


class Watched(World):
    """A random world with a recorder."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.recorder, self.counter = Recorder(), Counter()
        self.core.observers += [self.recorder, self.counter]
        self.counter.core = self.core


def test_random_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures, cancels, losses, late and wrong answers: the facts stay exact, and looking on changes nothing."""
    units = 0
    for seed in range(25):
        monkeypatch.setattr("search.World", World)
        plain = [repr(commands) for _, _, commands in play(seed, longest=40).history]
        monkeypatch.setattr("search.World", Watched)
        world: Any = play(seed, longest=40)
        assert [repr(commands) for _, _, commands in world.history] == plain, f"seed {seed}: an observer changed the schedule"
        assert len(world.core.observers) == 2, world.core.story(0)
        record = world.recorder.record()
        assert sent(record) == world.counter.sent
        if world.core.scheduler.policy.name == "deadline":  # others rank by something else, and the wish is told
            assert [u.due for u in record.units] == world.counter.dues
        consistent(record)
        units += len(record.units)
    assert units > 1000


class Rude:
    """Raises at its third call."""

    calls = 0

    def see(self, *args: Any) -> None:
        self.calls += 1
        if self.calls == 3:
            raise ValueError("no more")


def test_an_observer_that_raises_hurts_nobody() -> None:
    rude, recorder = Rude(), Recorder()
    executor = SimulatedExecutor("sim#1", CARD, blocks=4000)
    with Runtime([CARD], executors=[LoopbackExecutor(executor)], observers=[rude, recorder]) as runtime:
        handle = runtime.submit(PROGRAMS["cascade2"], messages="hi", seed=1, label="mine")
        result = handle.result(10)
        assert any("Rude raised ValueError('no more')" in line for line in runtime.story(handle))
    assert rude.calls == 3
    record = recorder.record()
    assert sum(result.units.values()) == len(record.units)
    assert record.runs[0].label == "mine" and record.runs[0].rates == {"audio": 8000}
    assert record.runs[0].items["audio"] == len(result.audio)
    consistent(record)


def test_without_observers_nothing_is_gathered() -> None:
    sim = Simulation(host(), device(), cards=(CARD,))
    sim.submit(PROGRAMS["cascade1"], messages="hi")
    sim.core.flow._blocked = None  # type: ignore[assignment,method-assign]  # calling it would raise
    sim.run()
    end = sim.handles[1].end
    assert end is not None and end.reason == "done"


def test_steps_are_named_by_what_they_are() -> None:
    recorder = Recorder()
    busy(recorder)
    told = {u.loop: u.told for u in recorder.record().units}
    assert told["paint"] == "step 3 of 3"
    assert told["tokenize"] == "call 0"
    assert told["chant"].startswith("frames ")
    assert told["think"].startswith("token ")
    assert isinstance(recorder.record().units[0], UnitFact)


def test_samples_are_loops_of_their_own() -> None:
    recorder, counter = Recorder(), Counter()
    sim = Simulation(host(), device(reuse=True), cards=(CARD,), observers=[recorder, counter])
    counter.core = sim.core
    for _ in range(2):
        sim.submit(prompted(), prompt=list(range(20)), n=3, outputs="text")
        sim.run()
    record = recorder.record()
    consistent(record)
    assert sent(record) == counter.sent
    assert {u.loop for u in record.units} == {"think", "think#1", "think#2"}
    assert set(record.runs[0].first) == {"text", "text#1", "text#2"}
    assert any(u.copied and u.told.endswith("positions copied") for u in record.units)
