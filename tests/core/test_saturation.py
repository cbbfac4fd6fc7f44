"""What is promised when everybody always wants to run, with its bounds. `f` is the fixed part of a batch, `c` what a unit costs.

The worlds are drawn, the scheduler is alone in them (`house.py`), and dues are whatever `rank.sooner` may give: from LAG before
an offer to the longest patience after it.
"""

from __future__ import annotations

import itertools

import pytest
from house import Dues, House
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_runtime.card import OpCost
from omni_runtime.orders import Event
from omni_runtime.scheduler.rank import LAG, PATIENCE

DRAWN = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
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
    for _ in range(80):
        shares = house.shares()
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
