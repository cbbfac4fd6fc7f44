"""Random worlds around op `forward`: requests that join, are cancelled, preempted, copied from each other and run again.

What each draws is known beforehand: from the expert with caches of its own, alone, a token at a time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paged import PLACES, Dealer
from tiny import random_tokens

from omni_runtime.draw import Draw, Edits, TokenLogprob
from omni_runtime.experts.base import verified
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.text_lm import TextLM
from omni_runtime.work import ArStep, Fork, Row, StepResult

STOP = 5
KNOWN: dict[Any, list[StepResult]] = {}  # what was computed once: planted bugs meet the same requests
WAYS = [
    {},
    {"temperature": 0.9},
    {"temperature": 1.2, "top_k": 5},
    {"temperature": 0.8, "top_p": 0.9, "min_p": 0.02},
    {"edits": Edits(repetition=1.3, frequency=1.5, presence=0.8)},
    {"temperature": 0.7, "edits": Edits(bias_ids=(3, 9), bias=(2.0, -4.0))},
    {"edits": Edits(stop_ids=(STOP, 7), least=4)},
    {"logprobs": 3},
    {"temperature": 0.6, "logprobs": 0, "edits": Edits(presence=0.6, frequency=1.0)},
]


def result(of: Any, rows: Sequence[Row]) -> list[StepResult]:
    """What an op gave, collected if it was launched."""
    return verified(of if isinstance(of, list) else of.collect(), rows)


def straight(expert: TextLM, prompt: Sequence[int], how: Draw, count: int, first: int = 0) -> list[StepResult]:
    """What a request draws that is alone: tokens first .. first+count, the ones before being the last of the prompt."""
    key = (expert.model.config, tuple(prompt), how, count, first)
    if key not in KNOWN:
        KNOWN[key] = _straight(expert, prompt, how, count, first)
    return KNOWN[key]


def _straight(expert: TextLM, prompt: Sequence[int], how: Draw, count: int, first: int) -> list[StepResult]:
    slots, known, found = Slots("alone#1"), list(prompt), []
    part = known
    for index in range(first, first + count):
        row = Row(0, "think", len(part), 0, (), ArStep(len(known) - len(part), tuple(part), index, how))
        (one,) = result(expert.forward([row], slots), [row])
        found.append(one)
        known.append(one.token)
        part = known[-1:]
    return found


@dataclass
class Line:
    """A request."""

    run: int
    prompt: list[int]
    how: Draw
    answer: list[StepResult]
    known: list[int]
    cached: int = 0
    sent: int = 0  # blocks that the executor surely has
    draws: list[StepResult] = field(default_factory=list)


class World:
    """One executor's slots, its pool, and requests without end.

    Args:
        expert: with pages, its pool allotted.
        oracle: the same weights without.
        seed: of all that happens.
        ways: how requests draw.
        forced: how often a token is not the one that was drawn.
        steady: share of turns in which everybody goes as far as is known, which is what decoding looks like.
    """

    def __init__(
        self,
        expert: TextLM,
        oracle: TextLM,
        seed: int,
        ways: Sequence[dict[str, Any]] = WAYS,
        steady: float = 0.4,
        forced: float = 0.02,
    ) -> None:
        self.expert, self.oracle, self.rng, self.ways, self.steady = expert, oracle, random.Random(seed), ways, steady
        assert expert.model.pages is not None
        self.forced = forced
        self.dealer = Dealer(expert.model.pages.blocks, seed)
        self.slots = Slots("cpu0#1")
        self.lines: dict[int, Line] = {}
        self.runs = self.checked = 0
        self.told: list[TokenLogprob] = []

    def join(self) -> None:
        """A request comes; half of them begin alike."""
        rng, self.runs = self.rng, self.runs + 1
        prompt = random_tokens(20, seed=1)[: rng.choice([9, 17, 20])] if rng.random() < 0.5 else []
        prompt = prompt + random_tokens(rng.randrange(1, 12), seed=self.runs)
        how = Draw(seed=self.runs, node=2, **rng.choice(self.ways))
        count = rng.randrange(1, 30)
        answer = list(straight(self.oracle, prompt, how, count))
        self.lines[self.runs] = Line(self.runs, prompt, how, answer, list(prompt))

    def drop(self, line: Line, gone: bool = True) -> None:
        """The executor forgets a loop, and others get its blocks; the request is over, or begins again."""
        self.slots.drop(line.run, "think")
        self.dealer.drop(line.run)
        line.cached = line.sent = 0
        if gone:
            del self.lines[line.run]

    def force(self, line: Line) -> None:
        """Another token stands where the last one was drawn, and the answer goes on from there."""
        line.known[-1] = (line.known[-1] + 1 + self.rng.randrange(90)) % 97
        have, count = len(line.known) - len(line.prompt), len(line.answer)
        line.answer[have:] = straight(self.oracle, line.known, line.how, count - have, have)

    def row(self, line: Line, size: int) -> Row:
        """The next step of a request."""
        fork, start = None, line.cached
        if not start and len(line.prompt) > PLACES and self.rng.random() < 0.5:
            for other in self.lines.values():
                length = min(len(line.prompt) - 1, other.cached) // PLACES * PLACES
                if other is not line and length and other.known[:length] == line.known[:length]:
                    fork = Fork(other.run, "think", length)
                    start = length
                    break
        size = min(size, len(line.known) - start)
        self.dealer.more(line.run, start + size + self.rng.choice([0, 0, 1, PLACES]))
        held = self.dealer.held[line.run]
        blocks = tuple(held[line.sent :])
        ends = start + size == len(line.known)
        step = ArStep(
            start, tuple(line.known[start : start + size]), len(line.known) - len(line.prompt) if ends else -1, line.how
        )
        return Row(line.run, "think", size, line.sent, blocks, step, fork)

    def took(self, line: Line, row: Row, one: StepResult) -> None:
        """A result is what it should be."""
        step = row.payload
        assert isinstance(step, ArStep)
        line.sent, line.cached = len(self.dealer.held[line.run]), step.start + len(step.tokens)
        if step.index < 0:
            assert one.token == -1
            return
        expected = line.answer[step.index]
        assert (one.token, one.piece) == (expected.token, expected.piece), f"run {line.run}, token {step.index}: {one} {expected}"
        assert (one.logprobs is None) == (expected.logprobs is None)
        if one.logprobs is not None and expected.logprobs is not None:
            assert [i for i, _ in one.logprobs.top] == [i for i, _ in expected.logprobs.top]
            assert abs(one.logprobs.logprob - expected.logprobs.logprob) < 1e-3
        self.checked += 1
        line.known.append(one.token)

    def go(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()

    def turn(self) -> None:
        """One batch, or two of which the second is queued before the first is read; and what else happens between batches."""
        rng = self.rng
        while len(self.lines) < 3 or (len(self.lines) < 7 and rng.random() < 0.2):
            self.join()
        for line in list(self.lines.values()):
            done = len(line.known) - len(line.prompt) == len(line.answer)
            if done or rng.random() < 0.03:
                self.drop(line)
            elif rng.random() < 0.03:
                self.drop(line, gone=False)
            elif rng.random() < self.forced and line.cached >= len(line.prompt) and len(line.known) > len(line.prompt):
                self.force(line)
        if rng.random() < self.steady:
            chosen, sizes = list(self.lines.values()), (1000,)
        else:
            chosen, sizes = [line for line in self.lines.values() if rng.random() < 0.7], (1, 1, 4, 30)
        rng.shuffle(chosen)
        if not chosen:
            return
        rows = [self.row(line, rng.choice(sizes)) for line in chosen]
        sources = {row.fork.run for row in rows if row.fork is not None}
        cut = rng.randrange(1, len(rows)) if len(rows) > 1 and not sources and rng.random() < 0.2 else len(rows)
        if rng.random() < 0.1:  # a batch that broke after it ran: its rows come again, each alone
            result(self.expert.forward(rows, self.slots), rows)
            found = [result(self.expert.forward([row], self.slots), [row])[0] for row in rows]
        else:
            parts = [part for part in (rows[:cut], rows[cut:]) if part]
            queued = [self.expert.forward(part, self.slots) for part in parts]
            found = [one for part, of in zip(parts, queued, strict=True) for one in result(of, part)]
        for line, row, one in zip(chosen, rows, found, strict=True):
            self.took(line, row, one)
