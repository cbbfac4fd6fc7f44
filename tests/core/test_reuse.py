"""Prefix reuse: the KV of a beginning that another loop holds is copied, exactly, and given up when memory is needed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import CARD

from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.loops.chain import chain
from omni_runtime.program import Program
from omni_runtime.sim import Simulation


def _program(hidden: bool = False) -> Program:
    p = Program("hidden" if hidden else "plain", CARD)
    thought = p.loop("think", prompt=p.input("prompt"))
    p.output("tokens", thought.tokens)
    if hidden:
        talk = p.loop("talk", prompt=p.input("prompt"), conditioning=p.handoff(thought.hidden))
        p.output("codes", talk.tokens)
    return p


PLAIN, HIDDEN = _program(), _program(hidden=True)


def sim(blocks: int = 200, reuse: bool = True, slots: int = 1) -> Simulation:
    return Simulation(SimulatedExecutor("x", CARD, blocks=blocks, reuse=reuse, slots=slots), cards=(CARD,))


def kept(world: Simulation) -> int:
    """Loops that ended and are kept; the executor has exactly their state."""
    n = sum(len(ledger.kept) for ledger in world.core.scheduler.executors["x"].ledgers.values())
    assert world.executors["x"].slots.counts == (n, 0)
    return n


def alone(prompt: list[int], seed: int, most: int) -> list[int]:
    world = sim(reuse=False)
    handle = world.submit(PLAIN, prompt=prompt, seed=seed, max_tokens=most, outputs="tokens")
    world.run()
    return handle.chunks["tokens"]


def test_the_second_request_computes_only_what_is_new() -> None:
    world = sim()
    prompt = list(range(1, 20))  # 4 full blocks of 4, and 3
    first = world.submit(PLAIN, prompt=prompt, max_tokens=4, seed=1)
    world.run()
    second = world.submit(PLAIN, prompt=[*prompt[:17], 50, 51, 52], max_tokens=4, seed=2)
    world.run()
    assert first.end and second.end
    assert "cached_tokens" not in first.end.usage["think"]
    assert second.end.usage["think"]["cached_tokens"] == 16
    assert second.chunks["tokens"] == alone([*prompt[:17], 50, 51, 52], 2, 4)
    world.core.check_idle()
    assert kept(world) == 2


def test_an_answer_is_reused_by_the_next_turn() -> None:
    world = sim()
    prompt = list(range(1, 9))
    first = world.submit(PLAIN, prompt=prompt, max_tokens=9, seed=1)
    world.run()
    turn = [*prompt, *first.chunks["tokens"], 7, 7]
    second = world.submit(PLAIN, prompt=turn, max_tokens=3, seed=1)
    world.run()
    assert second.end
    held = len(prompt) + len(first.chunks["tokens"]) - 1  # the last token was drawn and never cached
    assert second.end.usage["think"]["cached_tokens"] == held // 4 * 4
    assert second.chunks["tokens"] == alone(turn, 1, 3)


def test_one_position_is_always_computed() -> None:
    world = sim()
    prompt = list(range(1, 9))  # exactly two blocks
    for seed in (1, 2):
        handle = world.submit(PLAIN, prompt=prompt, max_tokens=2, seed=seed)
        world.run()
        assert handle.chunks["tokens"] == alone(prompt, seed, 2)
    assert handle.end and handle.end.usage["think"]["cached_tokens"] == 7


def test_rows_that_somebody_wants_are_computed() -> None:
    world = sim()
    prompt = list(range(1, 20))
    world.submit(PLAIN, prompt=prompt, max_tokens=4, seed=1)
    world.run()
    handle = world.submit(HIDDEN, prompt=prompt, seed=1, think={"max_tokens": 4}, talk={"max_tokens": 4})
    world.run()
    assert handle.end and handle.end.reason == "done"
    assert "cached_tokens" not in handle.end.usage["think"]
    again = world.submit(HIDDEN, prompt=prompt, seed=1, think={"max_tokens": 4}, talk={"max_tokens": 4})
    world.run()
    assert again.chunks == handle.chunks
    assert kept(world) == 1, "loops whose KV depends on more than tokens are not kept"


def test_kept_blocks_are_given_up_the_least_used_first() -> None:
    world = sim(blocks=8)
    prompts = [[n] * 12 for n in (1, 2)]  # 3 blocks each, and one for the answer
    for prompt in prompts:
        world.submit(PLAIN, prompt=prompt, max_tokens=3, seed=1)
        world.run()
    hit = world.submit(PLAIN, prompt=[*prompts[0][:8], 9], max_tokens=1, seed=1)  # needs room: the second prompt is older in use?
    world.run()
    assert hit.end and hit.end.reason == "done"
    world.core.check_idle()
    big = world.submit(PLAIN, prompt=[5] * 28, max_tokens=4, seed=1)
    world.run()
    assert big.end and big.end.reason == "done", "all that is kept makes room"
    world.core.check_idle()
    kept(world)


def test_a_failed_run_is_not_kept() -> None:
    world = sim()
    executor = world.executors["x"]
    executor.fakes["toy/mot", "forward"] = lambda row, slots: 1 / 0  # type: ignore[assignment,return-value]
    handle = world.submit(PLAIN, prompt=[1] * 12, max_tokens=4)
    world.run()
    assert handle.end and handle.end.reason == "failed"
    assert kept(world) == 0


def test_without_reuse_nothing_is_kept() -> None:
    world = sim(reuse=False)
    world.submit(PLAIN, prompt=[1] * 12, max_tokens=4)
    world.run()
    assert kept(world) == 0


@pytest.mark.parametrize("seed", range(40))
def test_any_crowd_with_reuse_equals_alone_without(seed: int) -> None:
    draw = random.Random(seed)
    world = sim(blocks=draw.choice([12, 20, 60]), slots=draw.choice([1, 2]))
    asked = []
    stems = [[draw.randrange(50) for _ in range(draw.randrange(1, 22))] for _ in range(3)]
    faults = draw.random() < 0.4

    def flaky(row: object, slots: object) -> object:
        if draw.random() < 0.05:
            raise RuntimeError("once")
        executor = world.executors["x"]
        return executor._row("toy/mot", executor.specs["toy/mot", "forward"], row)  # type: ignore[arg-type]

    if faults:
        world.executors["x"].fakes["toy/mot", "forward"] = flaky  # type: ignore[assignment]
    for _ in range(25):
        if draw.random() < 0.7:
            prompt = [*draw.choice(stems), *(draw.randrange(50) for _ in range(draw.randrange(6)))]
            most = draw.randrange(1, 12)
            number = draw.randrange(4)
            asked.append(
                (world.submit(PLAIN, prompt=prompt, seed=number, max_tokens=most, outputs="tokens"), prompt, number, most)
            )
        if draw.random() < 0.2 and asked:
            world.cancel(draw.choice(asked)[0].run)
        for _ in range(draw.randrange(4)):
            if world.busy:
                world.complete(world.busy[0])
                world.core.check()
    while world.busy:
        world.complete(world.busy[0])
        world.core.check()
    for handle, prompt, number, most in asked:
        assert handle.end
        want = alone(prompt, number, most)
        got = handle.chunks.get("tokens", [])
        assert got == want if handle.end.reason == "done" else got == want[: len(got)]
        assert handle.end.reason in ("done", "cancelled") or (faults and handle.end.reason == "failed")
    world.core.check_idle()
    kept(world)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30), st.integers(1, 5))
def test_digests_agree_exactly_on_equal_beginnings(one: list[int], other: list[int], block: int) -> None:
    a, b = chain(one, block), chain(other, block)
    assert len(a) == len(one) // block
    for n, (x, y) in enumerate(zip(a, b, strict=False), 1):
        assert (x == y) == (one[: n * block] == other[: n * block])
    assert chain(one, block, b"adapter")[:1] != a[:1] or not a
