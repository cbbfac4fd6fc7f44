"""Workloads by dice have the rate, the burstiness, the lengths and the mix that were asked for."""

from __future__ import annotations

import numpy as np
import pytest

from omni_runtime.errors import RequestError
from omni_runtime.simulate.generate import Kind, Lengths, generate, lengths, mix


@pytest.mark.parametrize("burst", [0.3, 1.0, 3.0])
def test_rate_and_burstiness(burst: float) -> None:
    times = np.array([a.at for a in generate(mix("chat"), rate=4.0, requests=20_000, burst=burst)])
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.25, rel=0.08)
    assert gaps.std() / gaps.mean() == pytest.approx(burst, rel=0.08)


def test_the_same_seed_is_the_same() -> None:
    once, again, other = (generate(mix("chat"), rate=1.0, requests=50, seed=seed) for seed in (3, 3, 4))
    assert once == again != other


def test_mix_and_lengths() -> None:
    kinds = [Kind("speak", 3.0, tokens=lengths("7")), Kind("paint", 1.0, params={"steps": 9})]
    made = generate(kinds, rate=1.0, requests=4000, prompt=lengths("10-19"), tokens=lengths("lognormal:40,0.5"), seed=1)
    paint = [a for a in made if a.program == "paint"]
    assert len(paint) / len(made) == pytest.approx(0.25, abs=0.03)
    assert {a.prompt_tokens for a in made} == set(range(10, 20))
    assert {a.tokens for a in made if a.program == "speak"} == {7}
    assert all(a.params == {"steps": 9} for a in paint)
    assert np.median([a.tokens for a in paint]) == pytest.approx(40, rel=0.1)


def test_a_lognormal_has_its_mean_and_its_bound() -> None:
    dice = np.random.default_rng(0)
    drawn = [lengths("lognormal:40,0.5").draw(dice) for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(lengths("lognormal:40,0.5").mean, rel=0.03)
    assert max(Lengths("lognormal", 2.0, 3.0).draw(dice) for _ in range(5000)) == 40


def test_tenants_take_turns() -> None:
    made = generate(mix("chat"), rate=1.0, requests=5, tenants=2, deadline_s=3.0)
    assert [a.tenant for a in made] == ["tenant0", "tenant1", "tenant0", "tenant1", "tenant0"]
    assert {a.deadline_s for a in made} == {3.0}


@pytest.mark.parametrize("text", ["", "x", "0", "5-2", "0-3", "1-2-3", "normal:3,1", "lognormal:3", "lognormal:3,9", "nan", "-4"])
def test_no_lengths(text: str) -> None:
    with pytest.raises(RequestError, match="tokens="):
        lengths(text, "tokens")


@pytest.mark.parametrize("text", ["", "speak=", "speak=x", "=3", "speak=0", "speak=-1", "speak,,chat", "speak=nan"])
def test_no_mix(text: str) -> None:
    with pytest.raises(RequestError, match="mix="):
        mix(text)


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"burst": -1.0}, {"requests": 0}, {"rate": float("nan")}])
def test_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong))):
        generate(mix("chat"), **({"rate": 1.0, "requests": 3} | wrong))
