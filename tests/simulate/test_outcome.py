"""Outcomes and measures against sums done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from omni_runtime.simulate.measures import measure, percentiles
from omni_runtime.simulate.outcome import Outcome
from omni_runtime.work import Chunk, End


def said(
    arrival: float, *heard: tuple[float, float], text: float | None = None, ended: float | None = None, **more: object
) -> Outcome:
    """A request with sound delivered at these (moments, seconds)."""
    outcome = Outcome(arrival, {"audio": 100}, frozenset(["text"]), **more)  # type: ignore[arg-type]
    if text is not None:
        outcome.take(text, Chunk(1, "text", 0, ("a",)))
    for at, seconds in heard:
        outcome.take(at, Chunk(1, "audio", 0, np.zeros(round(seconds * 100))))
    if ended is not None:
        outcome.take(ended, End(1, "done", "", {"think": 3, "speak": 2}))
    return outcome


def test_sound_that_is_always_in_time() -> None:
    one = said(1.0, (2.0, 1.0), (2.5, 1.0), (4.0, 1.0), text=1.5, ended=4.0)
    assert (one.first, one.first_token, one.first_sound) == (1.5, 1.5, 2.0)
    assert (one.sound, one.silence, one.underruns, one.units) == (3.0, 0.0, [], 5)
    assert one.good


def test_silence_is_what_was_missing_and_is_never_made_up() -> None:
    # plays 2..3, silent to 3.5, plays to 4.5, silent to 4.53 (nobody notices), plays to 5.03
    one = said(0.0, (2.0, 1.0), (3.5, 1.0), (4.53, 0.5), ended=5.0)
    assert one.silence == pytest.approx(0.53)
    assert one.underruns == [3.5]
    assert not one.good


def test_silences_add_up() -> None:
    assert said(0.0, (2.0, 1.0), (3.03, 1.0), ended=5.0).good
    assert not said(0.0, (2.0, 1.0), (3.03, 1.0), (4.06, 1.0), ended=6.0).good


def test_samples_play_side_by_side() -> None:
    one = said(0.0)
    for sample in (0, 1):
        one.take(1.0 + 2 * sample, Chunk(1, "audio", 0, np.zeros(100), sample))
    assert one.silence == 0.0


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({}, True),
        ({"deadline": 4.0}, True),
        ({"deadline": 3.9}, False),
        ({"first_output": 2.0}, True),
        ({"first_output": 1.9}, False),
    ],
)
def test_times_that_were_set(limits: dict[str, float], good: bool) -> None:
    assert said(0.0, (2.0, 3.0), text=1.5, ended=4.0, **limits).good is good


def test_who_did_not_complete_is_not_good() -> None:
    one = said(0.0, (2.0, 3.0))
    assert not one.good
    one.take(3.0, End(1, "failed"))
    assert not one.good


def test_percentiles() -> None:
    assert percentiles(range(1, 101)) == {"p50": 50, "p90": 90, "p99": 99}
    assert percentiles([7.0]) == {"p50": 7.0, "p90": 7.0, "p99": 7.0}
    assert percentiles([4.0, 1.0, 3.0, 2.0])["p50"] == 2.0
    assert percentiles([]) == {}


def test_measures() -> None:
    fine = said(10.0, (12.0, 4.0), text=11.0, ended=15.0, tenant="a")
    broken = said(11.0, (13.0, 1.0), (15.0, 3.0), text=13.0, ended=30.0, tenant="b")
    refused = said(12.0)
    refused.take(12.0, End(3, "overloaded"))
    found = measure([fine, broken, refused], {"x/y": 8.0}, {"x/y": 2})
    assert (found.requests, found.completed, found.refused, found.failed) == (3, 2, 1, 0)
    assert found.span == 20.0
    assert found.throughput == pytest.approx(0.1)
    assert found.goodput == pytest.approx(0.05)
    assert found.units_per_s == pytest.approx(0.5)
    assert found.utilisation == {"x/y": pytest.approx(0.2)}
    assert found.first_token == {"p50": 1.0, "p90": 2.0, "p99": 2.0}
    assert found.total["p90"] == 19.0
    assert found.silence == pytest.approx(1.0 / 8.0)
    assert found.interrupted == 0.5
    assert found.tenants == {"": 0.0, "a": pytest.approx(0.05), "b": 0.0}
