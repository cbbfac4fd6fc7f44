"""What is promised when everybody always wants to run, with its bounds. `f` is the fixed part of a batch, `c` what a unit costs.

The worlds are drawn, the scheduler is alone in them (`house.py`), and dues are whatever `rank.sooner` may give: from LAG before
an offer to the longest patience after it.
"""

from __future__ import annotations

import itertools
import os

import pytest
from house import Dues, House
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from stage import PROGRAMS
from watch import Watch

from omni_runtime.card import OpCost
from omni_runtime.orders import BatchDone, Closed, Event
from omni_runtime.scheduler.goal import Listener
from omni_runtime.scheduler.rank import LAG, PATIENCE

PHASES = tuple(p for p in Phase if p not in (Phase.shrink, Phase.explain) or os.environ.get("OMNI_SHRINK") != "0")
DRAWN = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=PHASES)
NEAR = 1e-9
DUES = st.sampled_from((-LAG, -1.0, 0.0, *PATIENCE))  # of an offer, from when it is made
WEIGHTS = st.sampled_from((0.5, 1.0, 2.0, 5.0))
SEED = OpCost(batch=4e-3, unit=1e-3, work=5e-4, reach=0.0)


def price(size: int, seed: OpCost = SEED) -> float:
    """Seconds that a unit of such a size adds to its batch."""
    return seed.unit + seed.work * size


class Ledger:
    """How much anybody gains on a tenant while something of that one is left waiting after every batch: seconds over weight."""

    def __init__(self, house: House, weights: dict[str, float]) -> None:
        self.house, self.weights = house, weights
        self.least: dict[tuple[str, str], float] = {}  # pair -> least lead of the first since the second has been left waiting
        self.worst = 0.0
        self.largest = 0.0  # batch

    def look(self) -> None:
        house = self.house
        for bill in house.ex.bills.values():
            self.largest = max(self.largest, bill.total)
        left = {caller.tenant for caller in house.waiting()}
        for pair in itertools.permutations(self.weights, 2):
            if pair[1] not in left:
                self.least.pop(pair, None)
                continue
            mine, other = (house.spent.get(name, 0.0) / self.weights[name] for name in pair)
            least = self.least[pair] = min(self.least.get(pair, mine - other), mine - other)
            self.worst = max(self.worst, mine - other - least)

    @property
    def bound(self) -> float:
        """A batch's cost over the least weight."""
        return self.largest / min(self.weights.values())


@st.composite
def houses(draw: st.DrawFn, most: int = 4) -> tuple[dict[str, float], dict[str, list[tuple[int, float]]], int]:
    """Weights of tenants, their units (size, due), and the places of a batch. Every tenant fills a batch alone."""
    names = "abcd"[: draw(st.integers(2, most))]
    places = draw(st.integers(1, 5))
    weights = {name: draw(WEIGHTS) for name in names}
    units = st.tuples(st.integers(1, 6), DUES)
    return weights, {name: draw(st.lists(units, min_size=2 * places, max_size=3 * places)) for name in names}, places


def after(seconds: float) -> Dues:
    return lambda now: now + seconds


@given(houses())
@DRAWN
def test_tenants_of_one_group_are_within_a_unit(world: tuple[dict[str, float], dict[str, list[tuple[int, float]]], int]) -> None:
    """Whoever is ahead is so by its last unit at most, and its part of the fixed cost: (c + f) / weight."""
    weights, units, places = world
    house = House({"op": (places, 64)}, weights, {"op": SEED})
    came = [house.come(name, lo=size, hi=size, due=after(due)) for name, mine in units.items() for size, due in mine]
    house.feed(*itertools.chain(*came))
    bound = {name: (max(price(size) for size, _ in units[name]) + SEED.batch) / weights[name] for name in weights}
    for _ in range(60):
        shares = {name: house.spent.get(name, 0.0) / weight for name, weight in weights.items()}
        least = min(shares.values())
        for name, share in shares.items():
            assert share - least <= bound[name] + NEAR, f"{name} is {share - least} ahead, {bound[name]} at most"
        house.feed(*house.done(0.01))


@given(st.data())
@DRAWN
def test_whoever_is_left_waiting_falls_two_batches_behind_at_most(data: st.DataObject) -> None:
    """Any number of loops, in any of three groups, that come, pause, return and go; one batch or two in the mailbox. While
    something of a tenant is left waiting after every batch, nobody gains more than two batches on it: newcomers neither starve
    nor jump, and nobody makes up for a time when it wanted less than it could have had.
    """
    draw = data.draw
    slots = draw(st.integers(1, 2))
    weights = {name: draw(WEIGHTS) for name in "abcd"}
    seeds = {"slow": OpCost(batch=1.0, unit=0.1, work=0.0), "fast": SEED, "host": OpCost(batch=1e-3, unit=1e-4, work=0.0)}
    house = House({"slow": (1, 64), "fast": (4, 64), "host": (2, 2)}, weights, seeds, slots)
    ledger = Ledger(house, weights)
    mine = {name: draw(st.lists(st.sampled_from(sorted(seeds)), min_size=1, max_size=2, unique=True)) for name in weights}
    calls = st.tuples(st.sampled_from("abcd"), st.integers(0, 1), st.integers(1, 2), DUES, st.sampled_from((1, 3, None)))
    still = draw(st.sampled_from((0.0, 0.2)))  # how often a loop pauses
    r = draw(st.randoms(use_true_random=False))

    def come(call: tuple[str, int, int, float, int | None]) -> list[Event]:
        tenant, op, size, due, units = call
        return house.come(tenant, mine[tenant][op % len(mine[tenant])], size, size, after(due), units)

    house.feed(*itertools.chain(*map(come, draw(st.lists(calls, min_size=1, max_size=30)))))
    for more in draw(st.lists(st.lists(calls, max_size=6), min_size=3, max_size=6)):
        for _ in range(40):
            ledger.look()
            if house.flying:
                house.feed(*house.done(0.01, again=lambda caller: caller.units == 0 or r.random() >= still))
        idle = [c for c in house.callers.values() if c.ready is None and c.run in house.scheduler.runs]
        busy = {grant.run for order in house.flying for grant in order.grants}
        events = [event for c in idle if c.run not in busy for event in house.offer(c)]
        house.feed(*events, *itertools.chain(*map(come, more)))
    assert ledger.worst <= 2 * ledger.bound + NEAR, f"{ledger.worst} apart, a batch is {ledger.bound}"


@given(st.fixed_dictionaries(dict.fromkeys("abc", WEIGHTS)), st.integers(1, 3), st.integers(1, 12), st.integers(1, 2))
@DRAWN
def test_riding_along_is_not_getting_ahead(weights: dict[str, float], few: int, many: int, slots: int) -> None:
    """`c` has a decode or a few, `b` has many that fit into the same batches, and `a` waits with something else. Though the batch
    runs for `c`, what `b` does in it counts: charged to nobody, it would be hours ahead one day, and then wait for hours."""
    seeds = {"slow": OpCost(batch=1.0, unit=0.0, work=0.0), "fast": OpCost(batch=16e-3, unit=5e-4, work=0.0)}
    house = House({"slow": (1, 64), "fast": (8, 64)}, weights, seeds, slots)
    ledger = Ledger(house, weights)
    came = [house.come("a", "slow") for _ in range(2)] + [house.come("c", "fast") for _ in range(few)]
    house.feed(*itertools.chain(*came, *(house.come("b", "fast") for _ in range(many))))
    for _ in range(400):
        ledger.look()
        house.feed(*house.done(0.01))
    assert ledger.worst <= 2 * ledger.bound + NEAR, f"{ledger.worst} apart, a batch is {ledger.bound}"


def test_a_second_slot_is_no_second_share() -> None:
    """Two groups take turns in two slots, a second of the one and 20 ms of the other, unless who is ahead is kept out."""
    seeds = {"slow": OpCost(batch=1.0, unit=0.0, work=0.0), "fast": OpCost(batch=16e-3, unit=5e-4, work=0.0)}
    house = House({"slow": (1, 64), "fast": (8, 64)}, None, seeds, slots=2)
    came = [house.come("a", "slow") for _ in range(4)] + [house.come("b", "fast") for _ in range(8)]
    house.feed(*itertools.chain(*came))
    both = 0
    for _ in range(400):
        both += len(house.flying) == 2
        house.feed(*house.done(0.01))
        assert abs(house.spent["a"] - house.spent.get("b", 0.0)) <= 1.0 + 0.02 + NEAR
    assert both, "the second slot is never used"


@pytest.mark.parametrize("who", ["new", "back"])
def test_a_newcomer_makes_up_for_nothing(who: str) -> None:
    """A tenant that comes late, or comes back after a long pause, gets as much as the others from then on, and no more."""
    house = House({"op": (4, 64)}, None, {"op": SEED})
    came = [house.come(tenant) for tenant in ("a", "b", "back") for _ in range(6)]
    house.feed(*itertools.chain(*came))
    for _ in range(20):
        house.feed(*house.done(0.01))
    paused = [caller for caller in house.callers.values() if caller.tenant == "back"]
    house.feed(*itertools.chain(*(house.pause(caller) for caller in paused if caller.ready is not None)))
    for _ in range(200):
        house.feed(*house.done(0.01, again=lambda caller: caller.tenant != "back"))
    had = dict(house.spent)
    comes = [house.come("new") for _ in range(6)] if who == "new" else [house.offer(caller) for caller in paused]
    house.feed(*itertools.chain(*comes))
    for _ in range(60):
        house.feed(*house.done(0.01))
        gained = {name: house.spent.get(name, 0.0) - had.get(name, 0.0) for name in ("a", "b", who)}
        assert max(gained.values()) - min(gained.values()) <= 2 * (SEED.batch + 4 * price(1)), gained


@pytest.mark.parametrize("units", [1, 2, 5])
def test_newcomers_without_end_leave_others_their_part(units: int) -> None:
    """Whenever one tenant has gone the next one comes, with a few units. The two that have been there have a third each of what
    is done, less two units."""
    house = House({"op": (1, 64)}, None, {"op": SEED})
    house.feed(*house.come("old"), *house.come("other"), *house.come("old"), *house.come("other"))
    for turn in range(1, 300):
        events = house.done(0.01)
        if not any(caller.tenant.startswith("new") for caller in house.waiting()):
            events += house.come(f"new {turn}", units=units)
        house.feed(*events)
        least = min(house.spent.get("old", 0.0), house.spent.get("other", 0.0)) / (price(1) + SEED.batch)
        assert least >= turn / 3 - 2


@pytest.mark.parametrize("stays", [True, False])
def test_what_nobody_else_wanted_is_not_held_against_anybody(stays: bool) -> None:
    """`b` has had seven times as much as `a`, who wanted no more; when `c` comes, whoever is there goes on from there."""
    house = House({"fast": (8, 64), "other": (1, 64)}, None, {"fast": SEED, "other": SEED})
    house.feed(*house.come("a", "fast"), *itertools.chain(*(house.come("b", "fast") for _ in range(7))))
    for _ in range(100):
        house.feed(*house.done(0.01))
    if not stays:
        house.callers[1].units = 0
    had = house.spent["b"]
    house.feed(*itertools.chain(*(house.come("c", "other") for _ in range(3))))
    for _ in range(40):
        house.feed(*house.done(0.01))
    assert abs(house.spent["c"] - (house.spent["b"] - had)) <= 2 * (SEED.batch + 8 * price(1))


@given(st.data())
@DRAWN
def test_every_unit_runs_within_a_number_of_rounds(data: st.DataObject) -> None:
    """Whatever deadlines, priorities and promises are about: LAG seconds after its due nothing new passes a unit. From there on
    it waits for no more batches than units are before it (each takes one of them at least), times the slots; in one group that
    nobody was promised anything in, for that many divided by the places.

    The due is PATIENCE after the unit was ready, at most. So: batches of PATIENCE + LAG seconds, and one for each live loop.
    """
    draw = data.draw
    slots = draw(st.integers(1, 2))
    ops = draw(st.sampled_from(({"fast": (4, 64)}, {"fast": (4, 64), "slow": (1, 64)})))
    house = House(ops, slots=slots)
    dry = Listener(8000, -100.0, promised=True)
    dry.begun = True
    kinds = st.tuples(st.sampled_from(sorted(ops)), DUES, st.booleans())
    callers = draw(st.lists(kinds, min_size=2, max_size=24))
    promised = draw(st.booleans())
    house.feed(
        *itertools.chain(
            *(house.come("", op, due=after(due), promised=(dry,) if promised and mine else ()) for op, due, mine in callers)
        )
    )
    bounds: dict[int, tuple[float, int]] = {}  # run -> since when it waits, and the last batch that it may be in
    seconds = draw(st.sampled_from((0.3, 0.9, 2.0)))
    for _ in range(120):
        house.feed(*house.done(seconds))
        waiting = house.waiting()
        for caller in waiting:
            if house.now < caller.dated + LAG or bounds.get(caller.run, (None, 0))[0] == caller.ready:
                continue
            before = sum(other.dated <= caller.dated for other in waiting)  # with itself
            rounds = slots * before if promised or len(ops) > 1 else slots * -(-before // 4)
            bounds[caller.run] = (caller.ready, len(house.batches) + rounds)
        for caller in waiting:
            if (found := bounds.get(caller.run)) is not None and found[0] == caller.ready:
                assert len(house.batches) < found[1], f"{caller.ready} {caller.dated}: in batch {found[1]} at the latest"


@pytest.mark.parametrize("op", ["fast", "slow"])
@pytest.mark.parametrize("promised", [False, True])
def test_deadlines_that_have_passed_starve_nobody(op: str, promised: bool) -> None:
    """Twelve with deadlines long ago, for ever, and one of low priority without: it waits for its patience and LAG, and is then
    in the next batch. (The first time: all that came with it are as urgent as can be.)"""
    house = House({"fast": (4, 64), "slow": (1, 64)})
    dry = Listener(8000, -100.0, promised=True)
    dry.begun = True
    flood = [house.come("", "fast", due=after(-LAG), promised=(dry,) if promised else ()) for _ in range(12)]
    house.feed(*itertools.chain(*flood), *house.come("", op, due=after(PATIENCE[2]), units=4))
    waits, last = [], house.callers[13]
    while last.run in house.scheduler.runs:
        ready = last.ready
        house.feed(*house.done(0.5))
        if ready is not None and last.ready != ready:
            waits.append(house.now - ready)
        assert last.ready is None or house.now - last.ready <= PATIENCE[2] + LAG + 2 * 0.5, "starves"
    assert len(waits) == 4
    assert min(waits) >= LAG, f"deadlines mean nothing: {waits}"


@given(st.data())
@DRAWN
def test_accounts_hold_every_second(data: st.DataObject) -> None:
    """Whatever batches really take, and though callers leave in the middle of one: what tenants and runs were charged is what was
    measured."""
    r = data.draw(st.randoms(use_true_random=False))
    house = House({"fast": (4, 16), "slow": (1, 8)}, {"a": 1.0, "b": 3.0})
    for _ in range(12):
        units = r.choice((1, 3, None))
        house.feed(*house.come(r.choice("ab"), r.choice(("fast", "slow")), 1, r.randint(1, 9), after(0.0), units))
    total = 0.0
    for _ in range(60):
        if house.flying:
            measured = r.uniform(0.0, 0.1)
            total += measured
            leaves = {c.run for c in house.callers.values() if r.random() < 0.02}
            open_ = house.scheduler.runs
            house.feed(*(Closed(run) for run in sorted(leaves) if run in open_ and not open_[run].closing))
            house.feed(*house.done(measured, measured, again=lambda caller, gone=leaves: caller.run not in gone))
    accounts = house.scheduler.accounts()
    assert sum(account["seconds"] for account in accounts.values()) == pytest.approx(total, abs=1e-9)
    assert sum(map(house.scheduler.spent, house.callers)) == pytest.approx(total, abs=1e-9)


def test_two_units_of_a_run_in_one_batch_are_both_charged() -> None:
    """Two loops of a cancelled run come back together: its book closes when both are paid for."""
    sim = Watch(stops=0)
    handle = sim.submit(PROGRAMS["late"], prompt=[1, 2, 3], outputs=("text", "more"))
    while len(sim.batches[-1].rows) < 2:
        sim.step()
    scheduler = sim.core.scheduler
    before, total = scheduler.spent(handle.run), scheduler.accounts()[""]["seconds"]
    (batch,) = scheduler.where
    sim.cancel(handle.run)
    scheduler.handle(sim.now, [BatchDone(batch, 0.5)])
    assert scheduler.accounts()[""]["seconds"] - total == pytest.approx(0.5)
    assert scheduler.spent(handle.run) - before == pytest.approx(0.5)


@pytest.mark.parametrize(("weights", "part"), [({"a": 1.0, "b": 1.0}, 0.5), ({"a": 3.0, "b": 1.0}, 0.75)])
def test_a_budget_is_shared_among_tenants_first(weights: dict[str, float], part: float) -> None:
    """One prompt of one tenant beside ten of another has half of what decodes leave, or what its weight says."""
    house = House({"op": (16, 111)}, weights)
    house.feed(*house.come("a", hi=1000), *itertools.chain(*(house.come("b", hi=1000) for _ in range(10))))
    house.feed(*house.done(0.01))
    (sizes,) = [{grant.run: grant.size for grant in house.batches[1].grants}]
    assert sizes[1] == 1 + int(100 * part)
    assert sum(sizes.values()) == 111
    assert max(size for run, size in sizes.items() if run > 1) - min(size for run, size in sizes.items() if run > 1) <= 1


def test_what_nobody_promised_stays_out_of_a_batch_without_slack() -> None:
    """A listener who was promised something runs dry: plain decodes of 50 ms each, which came first, leave him alone but for one
    of them at a time, in a batch that it begins."""
    seed = OpCost(batch=1e-3, unit=0.05, work=0.0)
    house = House({"op": (8, 64)}, None, {"op": seed})
    dry = Listener(8000, -100.0, promised=True)
    dry.begun = True
    house.feed(*house.come("", due=after(-1.0)))
    plain = [house.come("", due=after(PATIENCE[2])) for _ in range(3)]
    house.feed(*house.come("", due=after(0.0), promised=(dry,)), *itertools.chain(*plain))
    for _ in range(12):
        house.feed(*house.done(0.01))
    batches = [{grant.run for grant in batch.grants} for batch in house.batches[1:]]
    assert all(len(batch - {5}) <= 1 for batch in batches), batches
    assert sum(5 in batch for batch in batches) >= 6
    assert sum(1 in batch for batch in batches) >= 6, "what nobody promised starves"
