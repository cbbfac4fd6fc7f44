"""The load of benchmarks/step_vs_request.py: what is sent, and what is made of what came back."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from _load import LEAST_TOKENS, MOST_TOKENS, Outcome, Served, differing, percentile, requests, silence


def played(chunks: list[tuple[float, int]], rate: int) -> float:
    """Silence by the millisecond: a listener who looks whether there is sound to play."""
    if not chunks:
        return 0.0
    step = 1e-3
    at, buffered, still, todo = chunks[0][0], 0.0, 0.0, list(chunks)
    while todo or buffered > step / 2:
        while todo and todo[0][0] <= at + step / 2:
            buffered += todo.pop(0)[1] / rate
        if buffered > step / 2:
            buffered -= step
        else:
            still += step
        at += step
    return still


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([], 0.0),
        ([(5.0, 100)], 0.0),  # what comes before the first chunk is no silence
        ([(1.0, 100), (2.0, 100), (2.5, 100)], 0.0),  # just in time, and early
        ([(1.0, 100), (2.25, 100)], 0.25),
        ([(1.0, 100), (2.25, 100), (3.5, 100)], 0.5),  # the second gap counts from the end of the late chunk
        ([(1.0, 300), (1.1, 100), (6.0, 100)], 1.0),  # a buffer that was ahead
        ([(0.0, 50), (0.5, 50), (0.6, 0), (4.0, 50)], 3.0),  # an empty chunk plays nothing
    ],
)
def test_silence(chunks: list[tuple[float, int]], expected: float) -> None:
    assert silence(chunks, 100) == pytest.approx(expected)
    assert played(chunks, 100) == pytest.approx(expected, abs=0.02)


def test_silence_of_any_stream() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        came = np.cumsum(draw.integers(0, 900, 12)) / 1e3
        chunks = [(float(t), int(n)) for t, n in zip(came, draw.integers(0, 80, 12) * 10, strict=True)]
        assert silence(chunks, 1000) == pytest.approx(played(chunks, 1000), abs=0.03)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_percentile(count: int, share: float) -> None:
    values = list(np.random.default_rng(count).normal(size=count))
    assert percentile(values, share) == pytest.approx(np.quantile(values, share))
    assert np.isnan(percentile([], share))


def test_requests() -> None:
    found = requests(100, 1)
    assert found == requests(100, 1) != requests(100, 2)
    assert sum(r.speaks for r in found) == 50
    assert len({r.question for r in found}) > 50
    assert len({r.seed for r in found}) == 100
    assert {r.tokens for r in found} <= set(range(LEAST_TOKENS, MOST_TOKENS + 1))
    assert min(r.tokens for r in found) < 70
    assert max(r.tokens for r in found) > 90
    at = [r.at for r in found]
    assert at == sorted(at)
    assert 0 <= at[0] < at[-1] < 1


def test_arrivals_are_poisson() -> None:
    """Counts in tenths of the time: variance near the mean, as of no evenly spaced load."""
    counts = [np.histogram([r.at for r in requests(100, seed)], 10, (0, 1))[0] for seed in range(200)]
    assert np.mean(counts) == pytest.approx(10)
    assert np.var(counts) == pytest.approx(9, rel=0.15)  # binomial: a tenth below Poisson's 10, since the sum is fixed


def outcome() -> Outcome:
    asked = requests(8, 3)
    served = [Served("done", total=3.0, first_token=0.5, text="a", ended=10.0) for _ in asked]
    for i, (request, one) in enumerate(zip(asked, served, strict=True)):
        if request.speaks:
            one.first_sound, one.sound, one.silence = 1.0 + i, 10.0, 0.0
    return Outcome(asked, served, wall=4.0)


def test_outcome() -> None:
    found = outcome()
    speakers = [i for i, r in enumerate(found.asked) if r.speaks]
    assert found.throughput == found.goodput == 2.0
    assert (found.silent, found.admitted, found.off) == (0.0, 1.0, 0.0)
    a, b, c, _ = speakers
    found.served[a].silence = 0.04  # not heard, and yet silence
    found.served[b].silence = 1.0
    found.served[c] = Served("refused")
    assert found.throughput == 7 / 4
    assert found.goodput == 6 / 4
    assert found.silent == pytest.approx(1.04 / 30)
    assert found.admitted == 0.75
    found.served[a].told, found.served[a].waited = 2.0, 3.5
    found.served[b].told, found.served[b].waited = 2.0, 1.5
    assert found.off == 1.0
    numbers = found.numbers()
    assert numbers["gaps"] == numbers["refused"] == 1
    assert numbers["total_p90_s"] == 3.0
    assert numbers["waited"] == 2


def test_texts_that_differ() -> None:
    first, second = outcome(), outcome()
    assert differing([first, second]) == 0
    second.served[3].text = "b"
    assert differing([first, second, second]) == 2
    second.served[3].state = "failed"
    assert differing([first, second]) == 0
