"""A talker that is fed states, a flow, and a decoder that keeps nothing, each on channels that a test fills as it likes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import CARD

from omni_runtime.channel import Channel, Reader
from omni_runtime.loop import Context
from omni_runtime.loops import LOOPS
from omni_runtime.loops.flow_chunks import FlowChunks
from omni_runtime.request import loop_params
from omni_runtime.work import AudioStep, Done, FlowStep, Inset, StepResult, TalkStep, TensorRef, Wait, WorkUnit


class Fed:
    """A loop of the toy card."""

    def __init__(self, loop: str, wants: set[str], **params: Any) -> None:
        spec = CARD.loops[loop]
        self.loop = LOOPS[spec.kind]
        self.channels = {slot: Channel() for slot in spec.reads}
        self.readers = {slot: Reader(channel) for slot, channel in self.channels.items()}
        given = {"run": 1, "loop": loop, "node": 4, "spec": spec, "expert": "toy/x", "block": 4, "readers": self.readers}
        self.ctx = Context(**given, params=loop_params(spec, params, loop), wants=frozenset(wants), seed=7)
        self.pushed: list[Any] = []

    def begin(self) -> None:
        self.state = self.loop.init(self.ctx)

    def push(self, slot: str, *items: Any) -> None:
        self.channels[slot].push(self.channels[slot].tail, items)

    def next(self) -> WorkUnit | Wait | Done:
        offer = self.loop.next(self.state)
        assert self.loop.next(self.state) == offer, "a question may be asked any number of times"
        return offer

    def advance(self, size: int, result: StepResult) -> None:
        self.pushed += self.loop.advance(self.state, size, result)


def part(start: int, count: int) -> TensorRef:
    return TensorRef("x#1", 1, "think", "states", start, (count, 8))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    prompt=st.integers(1, 9),
    cuts=st.lists(st.integers(1, 4), min_size=12, max_size=12),
    answer=st.integers(0, 5),
    sizes=st.lists(st.integers(1, 5), min_size=60, max_size=60),
    lost=st.sets(st.integers(0, 20), max_size=3),
)
def test_each_position_of_a_talker_has_one_state(
    prompt: int, cuts: list[int], answer: int, sizes: list[int], lost: set[int]
) -> None:
    """States come in parts of any size, also across the end of the prompt; tensors are let go when all their rows were fed."""
    fed = Fed("recite", {"codes", "speaker"}, max_frames=6)
    fed.push("prompt", *range(prompt))
    fed.push("positions", [None, 2.0])
    fed.begin()
    begins, told = prompt + 2, 0
    at = parts = frames = 0
    while True:
        unit = fed.next()
        if isinstance(unit, Wait):
            assert not fed.channels["states"].closed
            if told == prompt + answer:
                fed.channels["states"].close("done")
            else:
                count = min(cuts[parts % 12], prompt + answer - told)
                fed.push("states", part(told, count))
                told, parts = told + count, parts + 1
            continue
        if isinstance(unit, Done):
            break
        size = min(sizes.pop(), unit.hi)
        step = fed.loop.bind(fed.state, size)
        assert isinstance(step, TalkStep) and step.start == at and step.turns == () and step.shift == 2.0
        rows = {i.at + n: i.vectors.index + i.first + n for i in step.inner for n in range(i.count)}
        assert sum(i.count for i in step.inner) == len(rows), f"a position has two states: {step.inner}"
        for position in range(at, at + size):
            if position < prompt:
                assert rows[position] == position
            elif position == prompt:
                assert position not in rows and step.opening[0] == -1
            else:
                said = position - 1 - prompt  # number of the token of the answer that stands there
                text = step.text[position - begins - max(0, at - begins)] if position >= begins else step.opening[-1]
                if said < answer:
                    assert rows[position] == prompt + said and text == -1
                else:
                    assert position not in rows and text == (93 if said == answer else 94)
        at += size
        fed.advance(size, StepResult(items={"codes": [(frames,)]} if step.index >= 0 else {}))
        frames += step.index >= 0
        passed = at - (at > prompt)
        gone = sum(1 for ref in fed.channels["states"].items if ref.index + ref.shape[0] <= passed)
        assert fed.readers["states"].cursor >= gone, "a state that was fed is still held"
        held = fed.channels["states"].items[fed.readers["states"].cursor :]
        assert lost or all(ref.index + ref.shape[0] > passed for ref in held)
        if not lost:
            assert fed.readers["states"].cursor == gone, "a state is let go before it is fed"
        if len(sizes) in lost:
            lost.discard(len(sizes))
            fed.loop.rebuild(fed.state)
            at = 0
        if not sizes:
            return
    assert [(p.port, p.start, p.items) for p in fed.pushed[:1]] == ([("speaker", 0, ("Ann",))] if frames else [])
    assert frames == (6 if answer else 0)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    codes=st.integers(0, 40),
    bursts=st.lists(st.integers(1, 9), min_size=40, max_size=40),
    lost=st.sets(st.integers(0, 120), max_size=3),
)
def test_a_flow_does_not_depend_on_when_its_codes_come(codes: int, bursts: list[int], lost: set[int]) -> None:
    fed = Fed("flow", {"mel"}, num_steps=2)
    fed.begin()
    spec = CARD.loops["flow"]
    calls, ran, done, seen, mel = 0, 0, 0, dict[int, tuple[int, int, int, tuple[int, ...]]](), dict[int, int]()
    while True:
        unit = fed.next()
        if isinstance(unit, Done):
            break
        if isinstance(unit, Wait):
            channel = fed.channels["codes"]
            if unit.reader == "speaker":
                fed.push("speaker", "Bob")
            elif channel.tail == codes:
                assert not channel.closed
                channel.close("done")
            else:
                fed.push("codes", *[(100 + i, 0) for i in range(channel.tail, min(codes, channel.tail + bursts.pop()))])
            continue
        step = fed.loop.bind(fed.state, 1)
        assert isinstance(step, FlowStep) and step.calls == 4 and unit.at == calls == step.chunk * 4 + step.call
        assert step.codes == tuple(100 + i for i in range(step.start // 2, step.high // 2)) and step.speaker == "Bob"
        assert seen.setdefault(step.chunk, (step.start, step.stop, step.high, step.codes)) == (
            step.start,
            step.stop,
            step.high,
            step.codes,
        )
        assert unit.weight == -(-(step.high - step.start) // 4)
        calls += 1
        rows = np.arange(step.start, step.stop)[:, None] * np.ones((1, 3))
        fed.advance(1, StepResult(items={"mel": rows} if step.call == 3 else {}))
        if step.call == 3:
            done = max(done, step.stop)
            assert fed.readers["codes"].cursor == done // 2, "codes that are done are held"
        if ran in lost:
            fed.loop.rebuild(fed.state)
            calls = 0
        ran += 1
    for push in fed.pushed:
        mel |= {push.start + i: int(row[0]) for i, row in enumerate(push.items)}
    assert mel == {i: i for i in range(2 * codes)}
    assert fed.loop.finalize(fed.state).usage == {"frames": 2 * codes}
    plan = FlowChunks(spec.block, spec.ahead, sizes=spec.chunks)
    assert [(s[0], s[1], s[2]) for s in seen.values()] == [(c.start, c.stop, c.high) for c in plan.chunks(2 * codes)]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    frames=st.integers(0, 20),
    bursts=st.lists(st.integers(1, 6), min_size=20, max_size=20),
    sizes=st.lists(st.integers(1, 6), min_size=40, max_size=40),
)
def test_a_decoder_that_keeps_nothing_is_given_what_was_before(frames: int, bursts: list[int], sizes: list[int]) -> None:
    fed = Fed("croon", {"samples"})
    fed.begin()
    at = 0
    channel = fed.channels["frames"]
    while True:
        unit = fed.next()
        if isinstance(unit, Done):
            break
        if isinstance(unit, Wait):
            if channel.tail == frames:
                assert not channel.closed
                channel.close("done")
            else:
                more = min(frames - channel.tail, bursts.pop())
                fed.push("frames", *(np.array([float(channel.tail + i)]) for i in range(more)))
            continue
        size = min(sizes.pop(), unit.hi)
        step = fed.loop.bind(fed.state, size)
        assert isinstance(step, AudioStep) and (step.start, step.size, step.fresh) == (at, size, True)
        end = min(at + size + 1, frames)
        assert [int(row[0]) for row in step.frames] == list(range(max(0, at - 2), end))
        assert step.back == min(at, 2) and (end == at + size + 1 or step.last)
        at += size
        fed.advance(size, StepResult(items={"samples": np.zeros(2 * size, np.float32)}))
        before = fed.next()
        fed.loop.rebuild(fed.state)
        assert fed.next() == before, "it has nothing to make again"
    assert at == frames


def test_a_state_is_named_once() -> None:
    """An op would read one row where two are named."""
    fed = Fed("recite", {"codes"}, max_frames=1)
    fed.push("prompt", 1, 2, 3)
    fed.begin()
    fed.push("states", part(0, 4))
    assert isinstance(unit := fed.next(), WorkUnit) and unit.hi == 5
    step = fed.loop.bind(fed.state, 5)
    assert step.inner == (Inset(0, 3, part(0, 4), 0), Inset(4, 1, part(0, 4), 3)), "the mark stands between them"
