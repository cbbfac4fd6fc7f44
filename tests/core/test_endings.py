"""What ends an answer and what does not, and what is told about its tokens: loops in front of simulated models."""

from __future__ import annotations

from typing import Any

import pytest
from stage import CARDS, CHOICES
from toys import PROGRAMS as TOYS
from watch import Watch, say

from omni_runtime.draw import Draw, TokenLogprob
from omni_runtime.executors.codec import decode_message, decode_report, encode
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.program import Program
from omni_runtime.work import Answer, ArStep, Row, RunBatch, StepResult


def script(*tokens: tuple[int, bytes]) -> Watch:
    """A thinker that draws these tokens, then token 1 for ever. 0 is the stop token of its card."""

    def forward(row: Any, slots: Any) -> StepResult:
        index = row.payload.index
        if index < 0:
            return StepResult()
        return StepResult(*(tokens[index] if index < len(tokens) else (1, b".")))

    return Watch(SimulatedExecutor("x", *CARDS, fakes={("toy/mot", "forward"): forward}))


@pytest.mark.parametrize(
    ("params", "text", "count", "finish"),
    [
        ({}, "ab", 3, "stop"),
        ({"ignore_eos": True}, "abcd..", 7, "length"),
        ({"stop_tokens": [3]}, "a", 2, "stop"),
        ({"stop_tokens": [3], "ignore_eos": True}, "a", 2, "stop"),
        ({"stop_tokens": [4], "ignore_eos": True}, "abc", 5, "stop"),
        ({"stop_tokens": [9]}, "ab", 3, "stop"),
        ({"stop": ["b"], "min_tokens": 2}, "a", 2, "stop"),
        ({"stop": ["b"], "min_tokens": 3, "ignore_eos": True}, "abcd..", 7, "length"),
        ({"stop": ["bc"], "min_tokens": 4, "ignore_eos": True}, "a", 4, "stop"),
        ({"stop": ["b", "."], "min_tokens": 7, "ignore_eos": True}, "abcd.", 7, "stop"),
    ],
)
def test_what_ends_an_answer(params: dict[str, Any], text: str, count: int, finish: str) -> None:
    """The tokens are a, b, the card's stop token, c, d, and dots to the limit of 7. A stop token shows no text."""
    sim = script((2, b"a"), (3, b"b"), (0, b""), (5, b"c"), (4, b"d"))
    handle = say(sim, tokens=7, think=params)
    sim.finish_all()
    assert handle.text() == text
    assert handle.ends["text"].finish == finish
    assert handle.ends["text"].usage["completion_tokens"] == count


def draws(sim: Watch) -> list[Draw]:
    return [row.payload.draw for batch in sim.batches if batch.op == "forward" for row in batch.rows]


def test_the_op_is_told_what_was_asked_and_nothing_more() -> None:
    sim = Watch(stops=0)
    say(sim, tokens=2, seed=5)
    say(sim, tokens=2, seed=5, think={"stop_tokens": [7, 3], "logit_bias": {9: 1.0, 2: -1.0}, "min_tokens": 2, "top_k": 10**30})
    say(sim, tokens=2, seed=5, think={"min_tokens": 1, "ignore_eos": True, "logprobs": 3})
    sim.finish_all()
    plain, full, bare = (
        next(d for b in sim.batches for r in b.rows if r.run == run for d in [r.payload.draw]) for run in (1, 2, 3)
    )
    assert plain.edits is None
    assert plain.logprobs == -1
    assert full.edits is not None
    assert (full.edits.bias_ids, full.edits.bias) == ((2, 9), (-1.0, 1.0))
    assert full.edits.stop_ids == (0, 3, 7), "the card's own are not drawn either"
    assert full.top_k == 1 << 31
    assert bare.edits is not None
    assert bare.edits.stop_ids == ()
    assert bare.logprobs == -1, "nobody reads the port"
    assert all(d is plain or d is full or d is bare for d in draws(sim)), "one object a loop"


@pytest.mark.parametrize("least", [0, 5, 20])
def test_no_stop_token_is_simulated_before_the_least_number(least: int) -> None:
    for seed in range(20):
        sim = Watch(stops=3)
        handle = say(sim, tokens=20, seed=seed, think={"min_tokens": least})
        sim.finish_all()
        assert handle.ends["text"].usage["completion_tokens"] > least or least == 20


def told() -> Program:
    p = Program("told", CARDS[0])
    thought = p.loop("think", prompt=p.input("prompt"))
    p.output("tokens", thought.tokens)
    p.output("logprobs", thought.logprobs)
    return p


@pytest.mark.parametrize("n", [1, 3])
def test_logprobs_lie_beside_their_tokens(n: int) -> None:
    sim = Watch(stops=9)
    handle = sim.submit(told(), prompt=[1, 2, 3], seed=4, n=n, think={"max_tokens": 12, "logprobs": 2})
    quiet = sim.submit(told(), prompt=[1, 2, 3], seed=4, think={"max_tokens": 12})
    sim.finish_all()
    for tail in ("", "#1", "#2")[:n]:
        tokens, logprobs = handle.chunks["tokens" + tail], handle.chunks["logprobs" + tail]
        assert [t.token for t in logprobs] == tokens
        assert all(len(t.top) == 2 for t in logprobs)
    assert quiet.chunks["tokens"] == handle.chunks["tokens"]
    assert "logprobs" not in quiet.chunks
    assert "logprobs" in quiet.ends


def test_they_survive_a_wire() -> None:
    sim = Watch(stops=0)
    say(sim, tokens=1, think={"logit_bias": {3: -0.5}, "repetition_penalty": 1.25, "stop_tokens": [4], "min_p": 0.1})
    sim.finish_all()
    assert draws(sim)[0].edits is not None
    for batch in sim.batches:
        assert decode_message(encode(batch)) == batch
    report = Answer("x", 1, [StepResult(5, b"x", logprobs=TokenLogprob(5, -0.5, ((5, -0.5), (6, -1.5)))), StepResult()])
    assert decode_report(encode(report)) == report
    least = RunBatch("x", 1, "e", "forward", [Row(1, "think", 1, 0, (), ArStep(0, (1,), 0, Draw(2**63 - 1, 0)))])
    assert decode_message(encode(least)) == least


@pytest.mark.parametrize(("name", "outputs"), [c for c in CHOICES if c[0] in TOYS])
def test_finish_is_told_for_every_output(name: str, outputs: tuple[str, ...]) -> None:
    sim = Watch(stops=0)
    handle = sim.submit(TOYS[name], messages="m", outputs=outputs, seed=3, n=2)
    sim.finish_all()
    for output in outputs:
        kinds = {end.finish for key, end in handle.ends.items() if key.partition("#")[0] == output}
        assert kinds == ({"length"} if output in ("text", "tokens") else {"done"})
