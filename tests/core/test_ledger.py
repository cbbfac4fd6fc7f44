"""Blocks are conserved, promises are kept, and nobody holds more than was promised."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from omni_runtime.scheduler.ledger import Ledger
from omni_runtime.scheduler.rank import CREDIT, PATIENCE, due, seniority

RUNS, NEED = st.integers(1, 4), st.integers(0, 6)


class Blocks(RuleBasedStateMachine):
    """The model: how much each was promised, if anything, and which blocks it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(10)
        self.promised: dict[int, int] = {}
        self.given: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        return 10 - sum(max(self.promised.get(run, 0), len(self.given.get(run, ()))) for run in range(5))

    @rule(run=RUNS, n=NEED)
    def reserve(self, run: int, n: int) -> None:
        if run in self.promised or run in self.given or n > self.free:
            return
        self.ledger.reserve(run, "l", n)
        self.promised[run] = n

    @rule(run=RUNS, n=st.integers(1, 4))
    def take(self, run: int, n: int) -> None:
        have = self.given.setdefault(run, [])
        if n <= (self.promised[run] - len(have) if run in self.promised else self.free):
            self.ledger.take(run, "l", n)
            got = self.ledger.held[run, "l"][len(have) :]
            assert len(got) == n
            assert not set(got) & {block for blocks in self.given.values() for block in blocks}, "somebody has it"
            have += got

    @rule(run=RUNS)
    def drop(self, run: int) -> None:
        assert self.ledger.drop(run, "l") == len(self.given.pop(run, ()))
        self.promised.pop(run, None)

    @invariant()
    def books_agree(self) -> None:
        self.ledger.check()
        assert self.ledger.free == self.ledger.spare == self.free


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)


def test_what_was_not_promised_is_not_given() -> None:
    ledger = Ledger(4)
    ledger.reserve(1, "l", 2)
    ledger.take(1, "l", 1)
    with pytest.raises(AssertionError, match="holds 1, wants 2 more, was promised 2"):
        ledger.take(1, "l", 2)
    with pytest.raises(AssertionError):
        ledger.reserve(2, "l", 3)
    with pytest.raises(AssertionError):
        ledger.reserve(1, "l", 1)


def test_check_finds_a_block_of_nobody() -> None:
    ledger = Ledger(2)
    ledger.take(1, "l", 2)
    ledger.held[1, "l"].pop()
    with pytest.raises(AssertionError, match="not conserved"):
        ledger.check()
    ledger = Ledger(2)
    ledger.promised += 1
    with pytest.raises(AssertionError, match="do not add up"):
        ledger.check()


def test_rank() -> None:
    """Smaller is more urgent; what became ready later is due later, so nothing is passed for ever."""
    assert due(1.0, 0) < due(1.0, 1) < due(1.0, 2)
    assert due(1.0, 2) < due(1.1 + PATIENCE[2], 0)
    assert seniority(5.0, 1, 1) < seniority(5.0, 1, 2), "one arrival: the id decides, so the order is total"
    assert seniority(5.0 - CREDIT[0], 1, 9) < seniority(5.1, 0, 1), "high is worth so many seconds and no more"
    assert seniority(5.0, 0, 2) < seniority(5.0, 1, 1) < seniority(5.0, 2, 0)
