"""The core against any world that Hypothesis can think of. OMNI_EXAMPLES=5000 for a night."""

from __future__ import annotations

import os

import pytest
from asks import DECLARED, Ask, Wish
from curse import HARM, Curse, curses
from drawn import FIRST, chosen
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from search import BUSY, NEWER, POOLS, PRIORITIES, SOON, STOPS, play
from stage import CHOICES, HOSTS
from world import World

from omni_runtime.scheduler.policy import POLICIES

EXAMPLES = int(os.environ.get("OMNI_EXAMPLES", "300"))
NTH = st.integers(0, 7)
ASKS = st.builds(
    Ask,
    choice=st.integers(0, len(CHOICES) - 1) | st.integers(FIRST, FIRST + 10**6),
    seed=st.integers(0, 5),
    prompt=st.sampled_from((1, 2, 3, 5, 9, 20, 63, 64)),
    most=st.sampled_from((0, 1, 2, 4, 7, None)),
    steps=st.integers(1, 4),
    stop=st.sampled_from(STOPS),
)
WISHES = st.builds(
    Wish,
    tenant=st.sampled_from(("", "a", "b")),
    deadline=st.sampled_from(SOON),
    first_output=st.sampled_from(SOON),
    promised=st.booleans(),
)


@st.composite
def cursed(draw: st.DrawFn) -> tuple[Ask, Curse]:
    ask = draw(ASKS)
    nodes = sorted(chosen(ask.choice)[0].nodes)
    where = draw(st.sampled_from((*HARM, "transient", "transient")))
    return ask, Curse(draw(st.sampled_from(nodes)), where, draw(st.integers(0, 5)))


class AnyWorld(RuleBasedStateMachine):
    """Every rule gathers what happens; about half of the time it goes on, so that several things reach the core at once."""

    def __init__(self) -> None:
        super().__init__()
        self.open = curses()
        self.open.__enter__()

    @initialize(
        blocks=st.sampled_from(POOLS),
        max_runs=st.sampled_from((2, 5, 20_000)),
        slots=st.integers(1, 2),
        reuse=st.booleans(),
        policy=st.sampled_from(("deadline", *POLICIES)),
        tenants=st.sampled_from((None, DECLARED)),
        seconds=st.sampled_from(BUSY),
    )
    def begin(
        self,
        blocks: int,
        max_runs: int,
        slots: int,
        reuse: bool,
        policy: str,
        tenants: dict[str, float] | None,
        seconds: float,
    ) -> None:
        self.world = World(blocks, max_runs, reuse, policy, tenants, seconds)
        self.burst = self.world.host(None, slots)

    @rule(later=st.sampled_from((0.0, 0.001, 0.3, 3.0)))
    def feed(self, later: float) -> None:
        burst, self.burst = self.burst, []
        self.world.turn(burst, later)

    @rule(ask=ASKS, priority=st.sampled_from(PRIORITIES), wish=WISHES, now=st.booleans())
    def submit(self, ask: Ask, priority: str, wish: Wish, now: bool) -> None:
        self.burst += self.world.ask(ask, None, priority, wish)
        if now:
            self.feed(0.0)

    @rule(pair=cursed())
    def submit_cursed(self, pair: tuple[Ask, Curse]) -> None:
        self.burst += self.world.ask(*pair)

    @precondition(lambda self: self.world.flight)
    @rule(nth=NTH)
    def answer(self, nth: int) -> None:
        self.burst += self.world.answer(nth)

    @precondition(lambda self: self.world.flight)
    @rule(order=st.lists(NTH, min_size=1, max_size=12))
    def answer_many(self, order: list[int]) -> None:
        self.feed(0.0)
        for nth in order:
            self.world.turn(self.world.answer(nth), later=0.001)

    @precondition(lambda self: self.world.asked)
    @rule(run=st.integers(1, 12))
    def cancel(self, run: int) -> None:
        self.burst += self.world.stop(run)

    @precondition(lambda self: self.world.asked)
    @rule(run=st.integers(1, 12), seconds=st.sampled_from((0.0, 1e-3, 5.0)))
    def played(self, run: int, seconds: float) -> None:
        self.burst += self.world.played(run, seconds)

    @precondition(lambda self: self.world.flight)
    @rule(nth=NTH, wrong=st.sampled_from((-1, 1)))
    def answer_wrongly(self, nth: int, wrong: int) -> None:
        self.burst += self.world.answer(nth, wrong)

    @precondition(lambda self: len(self.world.executors) < 4)
    @rule(experts=st.sampled_from(HOSTS), slots=st.integers(1, 2))
    def host(self, experts: tuple[str, ...] | None, slots: int) -> None:
        self.burst += self.world.host(experts, slots)

    @precondition(lambda self: self.world.executors)
    @rule(nth=NTH, back=st.booleans())
    def lose(self, nth: int, back: bool) -> None:
        if len(self.world.executors) > 1 or nth == 0:  # a world without executors is worth less than one with too few
            self.burst += self.world.lose(nth, back)

    @precondition(lambda self: self.world.coming)
    @rule(nth=NTH, well=st.booleans())
    def restart(self, nth: int, well: bool) -> None:
        self.burst += self.world.restart(nth, well)

    @precondition(lambda self: self.world.asked)
    @rule(run=st.integers(1, 12))
    def preempt(self, run: int) -> None:
        self.burst += self.world.preempt(run)

    @precondition(lambda self: self.world.late)
    @rule(nth=NTH, broken=st.booleans())
    def answer_late(self, nth: int, broken: bool) -> None:
        self.burst += self.world.answer_late(nth, broken)

    @rule(nth=NTH)
    def repeat(self, nth: int) -> None:
        self.burst += self.world.repeat(nth)

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.feed(0.0)
                self.world.drain()
        finally:
            self.open.__exit__(None, None, None)


TestAnyWorld = AnyWorld.TestCase
TestAnyWorld.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize="OMNI_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
TestAnyWorld.pytestmark = [pytest.mark.slow]


def test_some_worlds_by_seed() -> None:
    """The same worlds without Hypothesis, for the fast lane. They must reach what they are there to try."""
    ends: dict[str, int] = {}
    for seed in (*range(40), 63, *range(NEWER, NEWER + 12)):  # 63 knows a program, and is promised it where it is too slow
        for handle in play(seed, longest=40).handles.values():
            assert handle.end is not None
            ends[handle.end.reason] = ends.get(handle.end.reason, 0) + 1
    assert ends.keys() == {"done", "failed", "cancelled", "lost", "too_large", "too_slow", "overloaded"}, ends
    assert ends["done"] > sum(ends.values()) / 4, f"most worlds are broken all the time: {ends}"
