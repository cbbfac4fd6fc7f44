"""Saturation stories. Random worlds find what is unsafe; what is unfair shows only when everybody always wants to run.

The toy model's forward takes 4 units and 8 tokens in a batch, its denoise 3 units; a batch takes 10 ms here.
"""

from __future__ import annotations

import itertools

import pytest
from stage import PROGRAMS
from watch import Watch, say

from omni_runtime.card import OpLimits
from omni_runtime.executors.simulated import Cost
from omni_runtime.orders import Admitted, BatchDone, Grant, Submitted, UnitReady
from omni_runtime.scheduler.rank import PATIENCE
from omni_runtime.scheduler.scheduler import Scheduler
from omni_runtime.work import ExecutorUp, UnitKind, WorkUnit

BATCH = 0.01
COSTS = {("toy/mot", op): Cost(fixed=BATCH) for op in ("forward", "denoise", "encode")}


def saturated(**options: object) -> Watch:
    return Watch(costs=COSTS, stops=0, **options)


def served(sim: Watch, runs: range, since: int = 0) -> list[int]:
    """Units of every run from a batch on."""
    return [sum(at >= since for at in sim.where(run)) for run in runs]


@pytest.mark.parametrize("priority", ["high", "normal", "low"])
def test_equals_are_served_equally(priority: str) -> None:
    """Twelve on four places: nobody is ever more than a unit ahead of anybody."""
    sim = saturated()
    for _ in range(12):
        say(sim, priority=priority)
    for _ in range(50):
        sim.step()
        counts = served(sim, range(1, 13))
        assert max(counts) - min(counts) <= 1, counts
    sim.finish_all()


def test_a_newcomer_neither_starves_nor_jumps() -> None:
    """It is in the third batch at the latest (nine want four places), and never makes up for time before it came."""
    sim = saturated()
    for _ in range(8):
        say(sim, tokens=60)
    sim.step(40)
    newcomer = say(sim, tokens=60)
    came = len(sim.batches)
    for _ in range(40):
        sim.step()
        assert len(sim.batches) - came < 3 or sim.where(newcomer.run), "starves"
        counts = served(sim, range(1, 10), since=came)
        assert max(counts) - min(counts) <= 1, counts
    sim.finish_all()


def test_low_priority_waits_its_patience_and_no_longer() -> None:
    """High-priority work is endless. A low unit outranks whatever became ready PATIENCE[low] - PATIENCE[high] after it."""
    sim = saturated()
    high = [say(sim, tokens=None, priority="high") for _ in range(8)]
    sim.step(10)
    low = say(sim, tokens=3, priority="low")
    ready, waits = sim.now, []
    while low.end is None and sim.now < 7:
        before = len(sim.where(low.run))
        sim.step()
        if len(sim.where(low.run)) > before:
            waits.append(sim.times[sim.where(low.run)[-1]] - ready)
            ready = sim.now + BATCH
        high = [say(sim, tokens=None, priority="high") if h.end is not None else h for h in high]
    assert low.end is not None, "starves"
    bound = PATIENCE[2] - PATIENCE[0]
    assert len(waits) == 3
    assert max(waits) <= bound + 4 * BATCH, waits
    assert min(waits) >= bound / 2, f"priority means nothing: {waits}"


def test_age_counts_from_the_unit_and_not_from_the_request() -> None:
    """An old request with a long answer does not outrank a young one."""
    sim = saturated()
    old = [say(sim, tokens=62) for _ in range(4)]
    sim.step(30)
    young = [say(sim, tokens=20) for _ in range(4)]
    came = len(sim.batches)
    sim.step(20)
    counts = served(sim, range(1, 9), since=came)
    assert max(counts) - min(counts) <= 1, counts
    assert old[0].end is None
    assert young[0].end is None


def admitted(sim: Watch) -> list[int]:
    return [item.run for _, item in sim.core._log if isinstance(item, Admitted)]


def test_small_requests_do_not_pass_a_waiting_big_one() -> None:
    sim = saturated(blocks=10)
    say(sim, prompt=20, tokens=20)  # comes in with 5 blocks
    say(sim, prompt=32, tokens=4)  # would with 8: waits
    for _ in range(5):
        say(sim, prompt=1, tokens=3)  # one block each: four would fit beside the first
    sim.step(3)
    assert admitted(sim) == [1]
    sim.finish_all()
    assert admitted(sim) == [1, 2, 3, 4, 5, 6, 7]


def test_priority_is_worth_seconds_of_seniority_at_admission() -> None:
    """High passes normal that came less than its credit before it, and not what waits longer."""
    sim = saturated(blocks=6)
    say(sim, prompt=20, tokens=4)
    say(sim, prompt=20, tokens=4)
    sim.now += 1.0
    say(sim, prompt=20, tokens=4, priority="high")
    sim.now += 10.0
    say(sim, prompt=20, tokens=4, priority="high")
    sim.finish_all()
    assert admitted(sim) == [1, 3, 1, 2, 4], "it takes what the first one holds, which comes in again after it"


def test_two_groups_on_one_executor_both_progress() -> None:
    """Between two denoise batches there are never more than three of forward (eight texts on four places), nor the reverse."""
    sim = saturated()
    for _ in range(8):
        say(sim, tokens=60)
    for seed in range(6):
        sim.submit(PROGRAMS["paint"], messages="m", seed=seed, outputs=("image",), paint={"steps": 50})
    sim.step(120)
    ops = [batch.op for batch in sim.batches[20:]]
    for op in ("forward", "denoise"):
        at = [i for i, o in enumerate(ops) if o == op]
        assert max(b - a for a, b in itertools.pairwise(at)) <= 4, f"{op} waits: {ops}"
    sim.finish_all()


@pytest.mark.parametrize(("intruders", "gap"), [(1, 1), (3, 1), (6, 2)])
def test_a_long_prefill_never_stops_the_decodes_beside_it(intruders: int, gap: int) -> None:
    """Case 3. Prompts of eight batches come in while a stream runs: it keeps its place in every batch, or every second one
    where seven want four places. And they get on as well."""
    sim = saturated()
    victim = say(sim, tokens=50)
    sim.step(10)
    came = len(sim.batches)
    others = [say(sim, prompt=60, tokens=2) for _ in range(intruders)]
    while any(other.end is None for other in others):
        sim.step()
    at = [came - 1, *(i for i in sim.where(victim.run) if i >= came)]
    gaps = [b - a for a, b in itertools.pairwise(at)]
    assert max(gaps) <= gap, gaps
    sizes = [row.size for batch in sim.batches[came:] for row in batch.rows if row.run == others[0].run]
    assert sizes[0] > 1, "the budget that the decodes leave is not used"
    assert len(sizes) < 40, sizes
    sim.finish_all()


@pytest.mark.parametrize("slots", [1, 2])
def test_slots_never_split_a_group(slots: int) -> None:
    """Four decodes fit into one batch; taken in twos, they would need twice as many."""
    sim = saturated(slots=slots)
    for _ in range(4):
        say(sim, tokens=20)
    sim.finish_all()
    assert [len(batch.rows) for batch in sim.batches] == [1] + [4] * 19 + [3]  # the first came before the others


def test_two_slots_hold_two_groups() -> None:
    """The second slot is used: while one group runs, the other already lies in the mailbox."""
    sim = saturated(slots=2)
    for _ in range(4):
        say(sim, tokens=20)
    sim.submit(PROGRAMS["paint"], messages="m", outputs=("image",), paint={"steps": 20})
    both = 0
    while sim.busy:
        both += len(sim.mail["x"]) == 2
        sim.step()
    assert both >= 15


def test_an_offer_that_grows_keeps_its_place_and_is_granted_whole() -> None:
    """The scheduler alone: frames that arrive while a vocoder waits must not send it to the end of the queue."""
    scheduler = Scheduler({("e", "op"): OpLimits(units=1, size=10)})
    kind = UnitKind("e", "op")
    scheduler.handle(0.0, [ExecutorUp("x", ("e",)), *(Submitted(run, 0.0, 1, (("e",),)) for run in (1, 2, 3))])
    (first,) = scheduler.handle(0.0, [UnitReady(WorkUnit(3, "l", kind, 1, 1), 0.0)])
    assert scheduler.handle(1.0, [UnitReady(WorkUnit(1, "l", kind, 1, 1), 1.0)]) == []
    assert scheduler.handle(2.0, [UnitReady(WorkUnit(2, "l", kind, 1, 1), 2.0)]) == []
    assert scheduler.handle(3.0, [UnitReady(WorkUnit(1, "l", kind, 1, 4), 3.0)]) == []
    (second,) = scheduler.handle(4.0, [BatchDone(first.batch)])
    assert second.grants == [Grant(1, "l", 4, 0, ())]


def late(goal: dict[str, float]) -> int:
    """Twelve texts are about and one that wants something: how many of its units have run after twenty batches?"""
    sim = Watch(costs={("toy/mot", "forward"): Cost(fixed=0.05)}, stops=0)
    for _ in range(12):
        say(sim, tokens=60)
    sim.step(10)
    handle = say(sim, tokens=60, **goal)
    sim.step(20)
    found = len(sim.where(handle.run))
    for run in sim.handles:
        sim.cancel(run)
    sim.finish_all()
    return found


@pytest.mark.parametrize("field", ["deadline_s", "first_output_s"])
def test_a_near_deadline_goes_first(field: str) -> None:
    """A whole answer that is wanted at once is in every batch, and not in every third. The first piece of one is there sooner,
    and what comes after it is as urgent as anybody's."""
    plain, soon = late({}), late({field: 0.001})
    if field == "deadline_s":
        assert plain <= 8
        assert soon >= 19
    else:
        assert plain <= soon <= plain + 2
        assert first_piece({field: 0.3}) < first_piece({})


def first_piece(goal: dict[str, float]) -> float:
    """When the first text of a low-priority request is there, among twelve others."""
    sim = Watch(costs={("toy/mot", "forward"): Cost(fixed=0.05)}, stops=0)
    for _ in range(12):
        say(sim, tokens=60)
    sim.step(10)
    came = sim.now
    handle = say(sim, tokens=60, priority="low", **goal)
    while "text" not in handle.times:
        sim.step()
    return handle.times["text"][0] - came


def test_a_far_deadline_does_not_take_patience_away() -> None:
    """An answer that is wanted in an hour is served as one that nobody hurries."""
    assert abs(late({"deadline_s": 3600.0}) - late({})) <= 1
