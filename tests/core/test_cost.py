"""What a batch takes, learned: from noise, on a machine that changes, and from what was saved."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_runtime.card import OpCost
from omni_runtime.scheduler.cost import Costs, OpModel
from omni_runtime.scheduler.pace import KEPT, Pace

SEED = OpCost(batch=5e-3, unit=1e-3, work=1e-4, reach=1e-8)
TRUE = (2e-3, 4e-4, 2.5e-4, 5e-8)  # another machine, and of another shape


def taken(shape: tuple[float, float, float, float], units: float, work: float, reach: float) -> float:
    batch, unit, per_work, per_reach = shape
    return batch + unit * units + per_work * work + per_reach * reach


def batches(n: int, seed: int) -> list[tuple[int, float, float]]:
    """Batches as they come: decodes, and one in four with a prefill."""
    r = random.Random(seed)
    found = []
    for _ in range(n):
        units = r.randint(1, 16)
        work = units + (r.randint(16, 256) if r.random() < 0.25 else 0)
        found.append((units, float(work), float(work * r.randint(10, 2000))))
    return found


def noise(r: random.Random) -> float:
    """10 %, and three batches in a hundred take twenty times as long."""
    return r.gauss(1.0, 0.1) * (20.0 if r.random() < 0.03 else 1.0)


@pytest.mark.parametrize("seed", range(6))
def test_prices_are_recovered_from_noise(seed: int) -> None:
    """After 600 batches every batch of that kind is predicted within 15 %, and on average within 8 %."""
    r = random.Random(seed)
    model = OpModel(SEED)
    for batch in batches(600, seed):
        model.learn(*batch, taken(TRUE, *batch) * max(0.1, noise(r)))
    errors = [abs(model.predict(*batch) / taken(TRUE, *batch) - 1.0) for batch in batches(200, seed + 100)]
    assert max(errors) < 0.15, max(errors)
    assert sum(errors) / len(errors) < 0.08


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slower", [3.0, 1 / 3])
def test_a_machine_that_changes_is_followed_within_sixty_batches(seed: int, slower: float) -> None:
    r = random.Random(seed)
    model = OpModel(SEED)
    for batch in batches(400, seed):
        model.learn(*batch, taken(TRUE, *batch) * r.gauss(1.0, 0.05))
    for batch in batches(60, seed + 50):
        model.learn(*batch, slower * taken(TRUE, *batch) * r.gauss(1.0, 0.05))
    errors = [model.predict(*batch) / (slower * taken(TRUE, *batch)) - 1.0 for batch in batches(100, seed + 100)]
    assert abs(sum(errors)) / len(errors) < 0.25, sum(errors) / len(errors)


def test_one_batch_says_how_fast_the_machine_is() -> None:
    """What was never tried keeps the seed's proportions: a prefill of 512 is told from a single decode."""
    model = OpModel(SEED)
    model.learn(1, 1.0, 100.0, 7.0 * taken((5e-3, 1e-3, 1e-4, 1e-8), 1, 1.0, 100.0))
    assert model.predict(8, 512.0, 1e6) == pytest.approx(7.0 * taken((5e-3, 1e-3, 1e-4, 1e-8), 8, 512.0, 1e6), rel=0.01)


def test_what_is_always_the_same_keeps_the_proportions_of_the_rest() -> None:
    """Eight decodes and nothing else, for long: the coefficients cannot be told apart, and a prefill stays about as far from a
    decode as the seed says."""
    r = random.Random(1)
    model = OpModel(SEED)
    for _ in range(800):
        model.learn(8, 8.0, 8000.0, 0.05 * r.gauss(1.0, 0.1))
    assert model.predict(8, 8.0, 8000.0) == pytest.approx(0.05, rel=0.1)
    seed = OpModel(SEED)
    told = model.predict(8, 256.0, 8000.0) / model.predict(8, 8.0, 8000.0)
    assert told == pytest.approx(seed.predict(8, 256.0, 8000.0) / seed.predict(8, 8.0, 8000.0), rel=0.5)


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(0.0, 1e4), st.floats(0.0, 1e8), st.floats(-1.0, 1e3, allow_nan=False)),
        max_size=60,
    )
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_nothing_is_ever_negative(told: list[tuple[int, float, float, float]]) -> None:
    model = OpModel(SEED)
    for batch in told:
        model.learn(*batch)
        assert min(model.theta) >= 0.0, model.theta
        assert model.speed > 0.0
        assert model.predict(1, 1.0, 0.0) >= 0.0
        assert model.spread > 0.0
        assert model.mean > 0.0
    assert model.batches == sum(seconds > 0.0 for *_, seconds in told)


def test_an_outlier_moves_little() -> None:
    """A batch that took a hundred times as long, once: the next is predicted within a quarter."""
    model = OpModel(SEED)
    for batch in batches(200, 3):
        model.learn(*batch, taken(TRUE, *batch))
    before = model.predict(4, 4.0, 4000.0)
    model.learn(4, 4.0, 4000.0, 100.0 * before)
    assert model.predict(4, 4.0, 4000.0) == pytest.approx(before, rel=0.25)
    assert model.worst == pytest.approx(100.0 * before), "but it is remembered as what can be in the way"


def learned(seed: int = 5) -> Costs:
    r = random.Random(seed)
    costs = Costs({("e/a", "op"): SEED, ("e/b", "op"): OpCost()})
    for batch in batches(100, seed):
        costs.model("e/a", "op").learn(*batch, taken(TRUE, *batch) * noise(r))
        costs.between(r.random() * 1e-3)
    pace = costs.pace("p", "think")
    pace.learn(units=30.0, size=2.0, second=12.5)
    pace.learn_items({"text": 3.0})
    pace.weigh(17.0)
    pace.waited(9)
    return costs


def test_the_same_batches_give_the_same_prices() -> None:
    assert learned().save() == learned().save()
    assert learned(5).save() != learned(6).save()


def test_what_was_saved_goes_on_as_if_nothing_had_been() -> None:
    first, second = learned(), Costs({("e/a", "op"): SEED})
    second.load(json.loads(json.dumps(first.save())))
    assert second.save() == first.save()
    for costs in (first, second):
        for batch in batches(40, 9):
            costs.model("e/a", "op").learn(*batch, taken(TRUE, *batch))
        costs.pace("p", "think").learn(units=10.0)
    assert second.save() == first.save()


def changed(path: str, value: Any) -> Any:
    """A saved file with one value changed; None: without it."""
    saved = json.loads(json.dumps(learned().save()))
    *way, last = (part.replace("~", "/") for part in path.split("/"))
    at = saved
    for key in way:
        at = at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return saved


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("version", 2, "version"),
        ("gap", None, "gap"),
        ("gap", -1.0, "gap: "),
        ("more", 1, "more"),
        ("models", [], "models: "),
        ("models/e", {}, "models.e: "),
        ("models/e.op", {}, "models.e.op: "),
        ("models/e~a.op/speed", None, "models.e/a.op: speed is missing"),
        ("models/e~a.op/more", 1, "models.e/a.op: more is unknown"),
        ("models/e~a.op/theta", [1.0, 2.0, 3.0], "models.e/a.op: theta: 4 numbers"),
        ("models/e~a.op/theta", [1.0, 2.0, -3.0, 0.0], "models.e/a.op: theta: 4 numbers"),
        ("models/e~a.op/seed", "ab", "models.e/a.op: seed: "),
        ("models/e~a.op/mean", float("nan"), "models.e/a.op: mean: "),
        ("models/e~a.op/spread", True, "models.e/a.op: spread: "),
        ("models/e~a.op/batches", float("inf"), "models.e/a.op: batches: "),
        ("paces/p.think", 3, "paces.p.think: "),
        ("paces/p.think/units", None, "paces.p.think: units is missing"),
        ("paces/p.think/units", "3", "paces.p.think: units: "),
        ("paces/p.think/second", -1.0, "paces.p.think: second: "),
        ("paces/p.think/weights", [1.0, "x"], "paces.p.think: weights: "),
        ("paces/p.think/items", {"text": -1.0}, "paces.p.think: items: "),
        ("paces/p.think/runs", 1.5, "paces.p.think: runs: "),
    ],
)
def test_a_wrong_file_is_refused_by_name(path: str, value: Any, told: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        Costs().load(changed(path, value))
    assert told in str(error.value)


def test_a_pace_forgets_and_keeps_what_is_recent() -> None:
    pace = Pace()
    pace.learn(units=10.0)
    assert pace.units == 10.0, "the first says it all"
    for _ in range(100):
        pace.learn(units=30.0)
    assert pace.units == pytest.approx(30.0, rel=0.01)
    for weight in range(2 * KEPT):
        pace.weigh(float(weight))
    assert pace.weights == [float(weight) for weight in range(KEPT, 2 * KEPT)]


def test_the_longest_gap_is_remembered() -> None:
    pace = Pace()
    for items in (3, 50, 1, 7):
        pace.waited(items)
    assert pace.gap == 50.0


def test_the_clauses_that_answers_begin_with_are_kept_apart() -> None:
    pace = Pace()
    for weight in range(3 * KEPT):
        pace.weigh(float(weight), first=weight % 3 == 0)
    assert pace.firsts == [float(weight) for weight in range(0, 3 * KEPT, 3)]
    assert len(pace.weights) == KEPT


def test_the_gap_between_batches_is_no_outlier() -> None:
    """A pause of a second in which nobody wanted anything does not become the price of a step."""
    costs = Costs()
    for _ in range(50):
        costs.between(1e-3)
    costs.between(1.0)
    assert costs.gap == pytest.approx(1e-3, rel=0.1)


def test_what_comes_between_is_the_longest_usual_batch() -> None:
    costs = Costs({("e", "a"): OpCost(batch=9.0), ("e", "b"): SEED})
    assert costs.beside() == 0.0, "nothing was measured"
    costs.model("e", "b").learn(1, 1.0, 0.0, 0.02)
    assert costs.beside() == pytest.approx(0.02)
