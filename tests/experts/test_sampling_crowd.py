"""Requests of every kind in one crowd: each has its own answer, as alone, however it was run (cases 7, 8, 10)."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import tiny_lm  # noqa: E402
from tiny import random_tokens  # noqa: E402

from omni_runtime.errors import RequestError, RequestFailed  # noqa: E402
from omni_runtime.handle import Result  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402

COMMON = random_tokens(26, seed=50)
ASKED: list[dict[str, Any]] = [
    {"prompt": [3, 9], "max_tokens": 30},
    {"prompt": [3, 9], "max_tokens": 30, "frequency_penalty": 1.0, "presence_penalty": 0.5},
    {"prompt": COMMON + random_tokens(60, seed=1), "max_tokens": 40, "repetition_penalty": 1.5, "ignore_eos": True},
    {"prompt": [*COMMON, 1], "max_tokens": 25, "temperature": 1.0, "top_k": 64, "top_p": 0.95, "repetition_penalty": 1.8},
    {"prompt": [*COMMON, 2], "max_tokens": 25, "temperature": 0.9, "min_p": 0.05, "frequency_penalty": 2.0, "logprobs": 2},
    {"prompt": [*COMMON, 2], "max_tokens": 30, "min_tokens": 12, "logit_bias": {5: 3.0, 7: -4.0}, "logprobs": 0},
    {"prompt": random_tokens(8, seed=4), "max_tokens": 20, "temperature": 1.5, "top_k": 10**9, "stop_tokens": [1, 2, 3]},
    {"prompt": random_tokens(40, seed=5), "max_tokens": 12, "temperature": 1.2, "presence_penalty": -1.0, "stop": ["AB", "Q "]},
]


def answer(result: Result, sample: int = 0) -> dict[str, Any]:
    found = result.samples[sample]
    return {"tokens": found.outputs["tokens"], "text": found.outputs["text"], "finish": found.finish}


def runtime(executor: Any = "thread", reuse: bool = False, **more: Any) -> tuple[Runtime, Any]:
    card = tiny_lm.card(**more)
    return Runtime([card], executor=executor, prefix_cache=reuse, threads=1), tiny_lm.say(card)


@pytest.fixture(scope="module")
def alone() -> list[Result]:
    found = []
    for i, asked in enumerate(ASKED):
        made, program = runtime()
        with made:
            found.append(made.submit(program, seed=90 + i, **asked).result(60))
    return found


def test_answers_alone(alone: list[Result]) -> None:
    """They are of the kinds that the crowd needs: penalties matter, and every end is there."""
    ends = {result.finish["text"] for result in alone}
    assert ends == {"stop", "length"}
    answers = [answer(result)["tokens"] for result in alone]
    assert answers[0] != answers[1]
    assert len(answers[5]) >= 12
    assert 5 not in answers[5][:12]
    for asked, result in zip(ASKED, alone, strict=True):
        told = result.outputs["logprobs"]
        if "logprobs" in asked:
            assert [t.token for t in told] == result.outputs["tokens"]
            assert all(len(t.top) == asked["logprobs"] for t in told)
        else:
            assert told == []


@pytest.mark.parametrize(
    ("executor", "reuse", "size", "fragile"),
    [
        ("thread", False, 512, False),
        ("loopback", True, 11, False),
        ("loopback", False, 11, True),
        ("thread", True, 512, True),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_in_a_crowd(alone: list[Result], executor: str, reuse: bool, size: int, fragile: bool, order: int) -> None:
    made, program = runtime(executor, reuse, size=size, fragile=fragile)
    tiny_lm.BROKEN.clear()
    numbered = list(enumerate(ASKED))[::order]
    with made:
        first = [(i, made.submit(program, seed=90 + i, **asked)) for i, asked in numbered]
        leaver = made.submit(program, seed=1, prompt=COMMON, ignore_eos=True, temperature=1.0, frequency_penalty=1.0)
        done = [(i, handle.result(60)) for i, handle in first]
        late = [(i, made.submit(program, seed=90 + i, **asked)) for i, asked in numbered]
        leaver.cancel()
        done += [(i, handle.result(60)) for i, handle in late]
    for i, result in done:
        assert answer(result) == answer(alone[i]), ASKED[i]
        for mine, theirs in zip(result.outputs["logprobs"], alone[i].outputs["logprobs"], strict=True):
            assert mine.token == theirs.token
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [t for t, _ in mine.top] == [t for t, _ in theirs.top]
    assert bool(tiny_lm.BROKEN) == fragile
    cached = [result.usage["think"].get("cached_tokens", 0) for _, result in done]
    assert any(cached) == reuse


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("i", [3, 4])
def test_samples_of_one_request(reuse: bool, i: int) -> None:
    """Sample k has seed + k, and its penalties count the prompt that it did not compute."""
    made, program = runtime("loopback", reuse, size=11)
    with made:
        many = made.submit(program, seed=90 + i, n=4, **ASKED[i]).result(60)
        for k in range(4):
            single = made.submit(program, seed=90 + i + k, **ASKED[i]).result(60)
            assert answer(single) == answer(many, k)
    assert [sample.seed for sample in many.samples] == [90 + i + k for k in range(4)]
    assert len({tuple(answer(many, k)["tokens"]) for k in range(4)}) == 4
    if reuse:
        assert all(many.usage[f"think#{k}"]["cached_tokens"] >= 24 for k in (1, 2, 3))


@pytest.mark.parametrize("field", [{"logit_bias": {97: 1.0}}, {"stop_tokens": (97,)}])
def test_a_token_that_the_model_lacks_fails_its_request_alone(alone: list[Result], field: dict[str, Any]) -> None:
    made, program = runtime("loopback")
    (name,) = field
    with made:
        handles = [made.submit(program, seed=90 + i, **asked) for i, asked in enumerate(ASKED)]
        wrong = made.submit(program, prompt=COMMON, **field)
        with pytest.raises(RequestFailed, match=f"{name}: token 97 is not in the vocabulary of 97"):
            wrong.result(60)
        for handle, result in zip(handles, alone, strict=True):
            assert answer(handle.result(60)) == answer(result)
    known, program = runtime(vocabulary=97)
    with known, pytest.raises(RequestError, match=f"think: {name}: token 97 is not in the vocabulary of 97"):
        known.submit(program, prompt=COMMON, **field)
