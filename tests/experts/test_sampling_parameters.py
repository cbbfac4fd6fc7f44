"""Every parameter of sampling against its definition, and cases 10 and 11: who counts, and what is off."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from sampling_definition import choose, edit, keep, logprobs  # noqa: E402

from omni_runtime.draw import Draw, Edits  # noqa: E402
from omni_runtime.errors import RequestError  # noqa: E402
from omni_runtime.experts import edits as edits_module  # noqa: E402
from omni_runtime.experts import sampling, text_lm  # noqa: E402
from omni_runtime.experts.decoder import Ran  # noqa: E402
from omni_runtime.experts.edits import History, edited  # noqa: E402
from omni_runtime.experts.sampling import draw, heaviest, kept, logprob  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.work import ArStep, Fork, Row  # noqa: E402

V = 13
IDS = st.integers(0, V - 1)
VALUES = st.one_of(st.integers(-6, 6).map(float), st.floats(-9, 9, width=32), st.just(-math.inf))  # many equals
PENALTY = st.sampled_from([0.0, -2.0, -0.5, 0.25, 1.0, 2.0])


@st.composite
def rows(draw_: Any) -> dict[str, Any]:
    bias = draw_(st.dictionaries(IDS, st.sampled_from([-100.0, -3.0, 0.5, 2.0, 100.0]), max_size=4))
    ids = tuple(sorted(bias))
    edits = Edits(
        ids,
        tuple(bias[i] for i in ids),
        draw_(st.sampled_from([1.0, 0.5, 1.3, 2.0])),
        draw_(PENALTY),
        draw_(PENALTY),
        tuple(sorted(draw_(st.sets(IDS, max_size=3)))),
        draw_(st.integers(0, 5)),
    )
    logits = draw_(st.lists(VALUES, min_size=V, max_size=V))
    for at in range(4):  # with three stop tokens at most, something is left
        logits[at] = max(logits[at], -20.0)
    how = Draw(
        draw_(st.integers(0, 2**64 - 1)),
        draw_(st.integers(0, 3)),
        draw_(st.sampled_from([0.0, 0.3, 1.0, 1.7, 100.0])),
        draw_(st.sampled_from([1.0, 0.97, 0.83, 0.41, 0.07])),
        draw_(st.sampled_from([0, -1, 1, 2, 5, V, V + 1, 10**9])),
        draw_(st.sampled_from([0.0, 0.013, 0.21, 0.6, 1.0])),
        edits=draw_(st.sampled_from([None, edits, edits])),
    )
    prompt, answer = draw_(st.lists(IDS, min_size=1, max_size=6)), draw_(st.lists(IDS, max_size=6))
    return {"logits": logits, "prompt": prompt, "answer": answer, "how": how}


def history(prompt: list[int], answer: list[int]) -> History:
    made = History()
    made.write(0, prompt)
    made.write(len(prompt), answer)
    return made


@settings(max_examples=300, deadline=None, derandomize=True)
@given(row=rows())
def test_all_parameters_together_are_what_they_mean(row: dict[str, Any]) -> None:
    how, index = row["how"], len(row["answer"])
    logits = torch.tensor(row["logits"], dtype=torch.float32)
    before = logits.clone()
    token = draw(logits, how, index, history(row["prompt"], row["answer"]))
    assert token == choose(logits.tolist(), row["prompt"], row["answer"], how)
    assert torch.equal(logits, before), "the logits are somebody else's"
    if how.edits is not None:
        found = edited(logits.numpy(), how.edits, index, history(row["prompt"], row["answer"]))
        np.testing.assert_allclose(found, edit(logits.tolist(), row["prompt"], row["answer"], how), rtol=1e-12)
    if how.temperature > 0:
        score = logits.numpy().astype(float) - float(logits.max())
        assert sorted(kept(score / how.temperature, how)) == sorted(keep(score.tolist(), how))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(logits=st.lists(VALUES, min_size=2, max_size=30), count=st.integers(0, 31), token=st.integers(0, 29))
def test_logprobs(logits: list[float], count: int, token: int) -> None:
    logits[0] = 1.5
    token %= len(logits)
    values, top = logprobs([float(np.float32(x)) for x in logits], count)
    found = logprob(torch.tensor(logits), token, count)
    assert found.token == token
    assert found.logprob == pytest.approx(values[token], rel=1e-5, abs=1e-6)
    assert [i for i, _ in found.top] == top
    assert [x for _, x in found.top] == pytest.approx([values[i] for i in top], rel=1e-5, abs=1e-6)


def test_heaviest_takes_the_lower_of_equals() -> None:
    assert heaviest(np.array([1.0, 5.0, 5.0, 5.0, 0.0]), 2).tolist() == [1, 2]
    assert heaviest(np.array([1.0, 5.0]), 7).tolist() == [0, 1]


# -- A model that always says the same (cases 10 and 11)


class Stub:
    """Fixed logits, and caches that only know their length."""

    class Cache:
        length = 0

        def begin_as(self, other: Any, length: int) -> None:
            assert length <= other.length
            self.length = length

    def __init__(self, logits: list[float]) -> None:
        self.logits = torch.tensor(logits)
        self.config = type("Config", (), {"vocab": len(logits)})
        self.cache, self.pages, self.exact, self.varies = Stub.Cache, None, True, ""

    def run(self, spans: Any, taps: Any = ()) -> Ran:
        for span in spans:
            assert span.start <= span.cache.length
            span.cache.length = span.start + len(span.tokens)
        return Ran(self.logits.expand(sum(span.draw for span in spans), -1), torch.empty(0), {})


def expert(logits: list[float]) -> text_lm.TextLM:
    return text_lm.TextLM(Stub(logits), [b"x"] * len(logits))  # type: ignore[arg-type]


def row(run: int, start: int, tokens: list[int], index: int, how: Draw, fork: Fork | None = None) -> Row:
    return Row(run, "think", len(tokens), 0, (), ArStep(start, tuple(tokens), index, how), fork)


def speak(lm: text_lm.TextLM, prompt: list[int], count: int, how: Draw, chunk: int = 99, again: bool = False) -> list[int]:
    """Greedy tokens; `again` runs every row twice, as after a broken batch."""
    slots, known, at = Slots("x#1"), list(prompt), 0
    while len(known) < len(prompt) + count:
        part = known[at : at + chunk]
        item = row(1, at, part, len(known) - len(prompt) if at + len(part) == len(known) else -1, how)
        for _ in range(1 + again):
            (result,) = lm.forward([item], slots)
        at += len(part)
        known += [result.token] if result.token >= 0 else []
    return known[len(prompt) :]


POSITIVE, NEGATIVE = [3.0, 2.0, 1.2, 0.5], [-1.0, -1.9, -2.8, -3.5]
CASE_11 = [
    (POSITIVE, Edits(), [0, 0, 0, 0, 0]),
    (POSITIVE, Edits(repetition=2.0), [1, 0, 0, 0, 0]),  # 3 / 2 is below 2 at once, and above 2 / 2 then
    (POSITIVE, Edits(presence=2.0), [0, 1, 2, 0, 0]),
    (POSITIVE, Edits(frequency=2.0), [0, 1, 2, 0, 3]),
    (NEGATIVE, Edits(repetition=2.0), [1, 0, 0, 0, 0]),  # dividing would make token 0 likelier
    (NEGATIVE, Edits(presence=2.0), [0, 1, 2, 0, 0]),
    (NEGATIVE, Edits(frequency=2.0), [0, 1, 2, 0, 3]),
]


@pytest.mark.parametrize(("logits", "edits", "tokens"), CASE_11)
@pytest.mark.parametrize(("chunk", "again"), [(99, False), (1, False), (2, True)])
def test_which_tokens_count_for_which_penalty(
    logits: list[float], edits: Edits, tokens: list[int], chunk: int, again: bool
) -> None:
    """Case 11: the prompt has token 0, which the answer has not yet: it counts for repetition and for nothing else."""
    assert speak(expert(logits), [0, 3, 0], 5, Draw(1, 0, edits=edits), chunk, again) == tokens


def test_a_copied_beginning_brings_its_tokens_along() -> None:
    lm, slots, how = expert(POSITIVE), Slots("x#1"), Draw(1, 0, edits=Edits(repetition=2.0, frequency=2.0))
    lm.forward([row(1, 0, [0, 1, 1, 2], 0, Draw(1, 0))], slots)  # of a request without penalties
    fork = row(2, 3, [3], 0, how, Fork(1, "think", 3))
    for _ in range(2):  # and again
        (found,) = lm.forward([fork], slots)
        assert found.token == 0, "3 / 2 before 2 / 2, 1.2 and 0.5 / 2"
        (found,) = lm.forward([row(2, 4, [0], 1, how)], slots)
        assert found.token == 2, "token 0 has 1.5 - 2, token 1 has 2 / 2, so 1.2 is the most"
    (found,) = lm.forward([row(1, 4, [3], 1, Draw(1, 0, edits=Edits(repetition=3.0)))], slots)
    assert found.token == 0, "the other still has token 2 in its prompt: 1.2 / 3 is less than 3 / 3"


def test_no_stop_token_before_the_least_number() -> None:
    how = Draw(1, 0, edits=Edits(stop_ids=(0, 1), least=2))
    assert speak(expert(POSITIVE), [3], 4, how) == [2, 2, 0, 0]
    with pytest.raises(RequestError, match="min_tokens: every token that the model could draw as number 1 is a stop token"):
        speak(expert(POSITIVE), [3], 1, Draw(1, 0, edits=Edits(stop_ids=(0, 1, 2, 3), least=1)))


def all_of_case_11() -> None:
    for case in CASE_11:
        test_which_tokens_count_for_which_penalty(*case, chunk=2, again=True)


CHECKS = {
    "which": all_of_case_11,
    "copy": test_a_copied_beginning_brings_its_tokens_along,
    "least": test_no_stop_token_before_the_least_number,
}
PLANTED: list[tuple[str, str, str, str]] = [
    ("presence counts the prompt", "known.ids(len(known) - index)", "known.ids()", "which"),
    ("repetition forgets the prompt", "_known(history).ids()", "_known(history).ids(len(_known(history)) - index)", "which"),
    ("negative logits are divided", "x_S * edits.repetition", "x_S / edits.repetition", "which"),
    ("frequency counts once", "edits.frequency * count_A", "edits.frequency", "which"),
    ("a row that runs again counts twice", "self._ids[start:] = array", "self._ids[len(self._ids):] = array", "which"),
    ("a copy forgets its tokens", "other._ids[:length]", "array('i', bytes(4 * length))", "copy"),
    ("a copy is a part of the other", "other._ids[:length]", "other._ids", "copy"),
    ("one token too few", "if index < edits.least", "if index + 1 < edits.least", "least"),
]


@pytest.mark.parametrize(("old", "new", "check"), [p[1:] for p in PLANTED], ids=[p[0] for p in PLANTED])
def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch, old: str, new: str, check: str) -> None:
    source = Path(edits_module.__file__).read_text()
    assert source.count(old) == 1
    mutant = ModuleType("mutant")
    exec(compile(source.replace(old, new), "mutant", "exec"), mutant.__dict__)
    monkeypatch.setattr(sampling, "edited", mutant.edited)
    monkeypatch.setattr(text_lm, "History", mutant.History)
    with pytest.raises((AssertionError, ValueError)):
        CHECKS[check]()


# -- Off, too large, and mixed (case 10)

LONG = [float(x) for x in np.random.default_rng(3).normal(size=200).round(2)]


@pytest.mark.parametrize("top_k", [0, -1, 200, 201, 10**9])
@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_top_k_off_or_above_the_vocabulary_takes_all(top_k: int, top_p: float) -> None:
    off = [draw(torch.tensor(LONG), Draw(seed, 0, 1.0, top_p), 0) for seed in range(50)]
    assert [draw(torch.tensor(LONG), Draw(seed, 0, 1.0, top_p, top_k), 0) for seed in range(50)] == off


def test_top_k_1_is_temperature_0() -> None:
    rng = np.random.default_rng(5)
    for seed in range(100):
        logits = torch.tensor(rng.integers(-4, 4, 30).astype(np.float32))  # many equals at the top
        hot = [draw(logits, Draw(seed, 0, t, top_k=1), 0) for t in (0.01, 1.0, 100.0)]
        assert hot == [draw(logits, Draw(seed, 0), 0)] * 3


def test_rows_of_all_kinds_in_both_orders() -> None:
    hows = [
        Draw(1, 0),
        Draw(2, 0, 1.0, 0.95, 64),
        Draw(3, 0, 1.0, top_k=10**9),
        Draw(4, 0, 0.8, min_p=0.1, logprobs=3),
        Draw(5, 0, edits=Edits((7,), (50.0,), 1.5, 1.0, 1.0, (3,), 4)),
        Draw(6, 0, 2.0, 0.5, 3, 0.2, 20, Edits(repetition=1.2)),
    ]
    items = [row(i, 0, [i] * (i + 1), 0, how) for i, how in enumerate(hows)]
    lm = expert(LONG)
    alone = [lm.forward([item], Slots("x#1"))[0] for item in items]
    assert lm.forward(items, Slots("x#1")) == alone
    assert lm.forward(items[::-1], Slots("x#1")) == alone[::-1]
    assert [result.logprobs is not None for result in alone] == [False, False, False, True, False, True]
    assert len({result.token for result in alone}) > 3


@pytest.mark.parametrize(
    ("edits", "clause"),
    [
        (Edits(bias_ids=(3, 4), bias=(1.0, 1.0)), "logit_bias: token 4 is not in the vocabulary of 4"),
        (Edits(stop_ids=(2**31 - 1,)), "stop_tokens: token 2147483647 is not in the vocabulary of 4"),
    ],
)
@pytest.mark.parametrize("index", [-1, 0])
def test_a_token_that_the_model_lacks(edits: Edits, clause: str, index: int) -> None:
    """It is told before anything has run, also where nothing is drawn yet."""
    lm, slots = expert(POSITIVE), Slots("x#1")
    with pytest.raises(RequestError, match=clause):
        lm.forward([row(1, 0, [1], 0, Draw(1, 0)), row(2, 0, [1], index, Draw(1, 0, edits=edits))], slots)
    assert slots.counts == (0, 0)


@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 100.0])
@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1.0, 100.0])
def test_extreme_penalties_draw_all_the_same(penalty: float, temperature: float) -> None:
    """Infinite logits would make their differences no numbers."""
    how = Draw(1, 0, temperature, edits=Edits(repetition=penalty))
    assert draw(torch.tensor([2.0, 1.0, -1.0]), how, 0, history([0, 2], [])) in ((0, 1) if penalty > 1 else (0,))
