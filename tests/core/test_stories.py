"""Named stories: what a public bug report, a design rule or a user expects, step by step. Case numbers are from the issues."""

from __future__ import annotations

from typing import Any

import pytest
from asks import Ask
from curse import CURSES, Curse, curses
from stage import CARDS, CHOICES, PROGRAMS
from watch import Watch, say
from world import World, solo

from omni_runtime.executors.simulated import Cost, SimulatedExecutor
from omni_runtime.flow.run import Node
from omni_runtime.work import Cancel, RunBatch


def messages(sim: Watch, name: str, outputs: tuple[str, ...], text: str = "m", **more: Any) -> Any:
    return sim.submit(PROGRAMS[name], messages=text, outputs=outputs, **more)


# -- Progress


def test_the_diamond_does_not_deadlock() -> None:
    """`think` must not wait for `talk` to read on, while `talk` waits for all of `mid`, which streams nothing to it."""
    sim = Watch(stops=0)
    handle = messages(sim, "diamond", ("text", "audio"), think={"max_tokens": 20})
    sim.finish_all()
    assert handle.end.reason == "done"
    assert len(handle.chunks["audio"]) > 0


def test_the_careless_throttle_would_deadlock_the_diamond(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that a full buffer always holds its source back: so the test above can fail."""
    monkeypatch.setattr(Node, "held_back", lambda self: any(r.attached and r.filled for r in self.streams))
    sim = Watch(stops=0)
    handle = messages(sim, "diamond", ("text", "audio"), think={"max_tokens": 20})
    sim.run()
    assert handle.end is None
    with pytest.raises(AssertionError, match="nothing runs"):
        sim.core.check()


class Buffers(Watch):
    """Watches how many items wait for each reader that has a capacity, and whether it could have used them."""

    def __init__(self, *executors: SimulatedExecutor, **options: Any) -> None:
        self.most: dict[tuple[str, str], int] = {}
        self.starved_most: dict[tuple[str, str], int] = {}
        super().__init__(*executors, **options)

    def feed(self, *inputs: Any) -> None:
        super().feed(*inputs)
        for run in self.core.flow.runs.values():
            for node in run.nodes.values():
                for reader in node.streams:
                    key = (node.name, reader.node.name)
                    runs = reader.node.unit is not None or reader.node.busy
                    book = self.most if runs else self.starved_most
                    book[key] = max(book.get(key, 0), reader.available)


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_slow_reader_holds_its_source_back(capacity: int) -> None:
    """The vocoder is slow and elsewhere. It needs two frames for a step, and no more than its capacity, or those two, wait for
    it with the one that was in flight."""
    fast = SimulatedExecutor("fast", *CARDS, experts=("toy/host", "toy/mot", "toy/talker"), stops=0)
    slow = SimulatedExecutor("slow", *CARDS, experts=("toy/voice",), costs={("toy/voice", "decode_codes"): Cost(fixed=3.0)})
    sim = Buffers(fast, slow)
    messages(sim, f"cascade{capacity}", ("text", "audio"), think={"max_tokens": 40}, talk={"max_tokens": 40})
    sim.finish_all()
    assert sim.most["talk", "chant"] <= max(capacity, 2) + 1, sim.most
    assert sim.starved_most["talk", "chant"] <= 1


def test_a_starved_reader_holds_nobody_back() -> None:
    """`talk` of the diamond needs all of `mid` first: all that `think` says waits for it meanwhile."""
    sim = Buffers(stops=0)
    messages(sim, "diamond", ("text", "audio"), think={"max_tokens": 20})
    sim.finish_all()
    assert sim.starved_most["think", "talk"] >= 20, sim.starved_most


def test_tensors_go_as_soon_as_they_are_read() -> None:
    """Of forty hidden rows, only those of the prompt and of what is on its way are ever kept."""
    sim = Watch(stops=0)
    messages(sim, "cascade2", ("audio",), think={"max_tokens": 40}, talk={"max_tokens": 40})
    most = 0
    while sim.busy:
        sim.step()
        most = max(most, sim.executors["x"].slots.counts[1])
    prompt = sim.handles[1].end.usage["think"]["prompt_tokens"]
    assert 0 < most <= prompt + 3


def test_tensors_of_an_ended_source_go_one_by_one() -> None:
    """`talk` of the diamond begins when `think` has ended: each row it takes is one row less."""
    sim = Watch(stops=0)
    messages(sim, "diamond", ("text", "audio"), think={"max_tokens": 20}, mid={"max_tokens": 4}, talk={"max_tokens": 40})
    kept = []
    while sim.busy:
        sim.step()
        if sim.where(1, "talk"):
            kept.append(sim.executors["x"].slots.counts[1])
    assert kept[0] >= 15
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) >= 12, kept


# -- Memory (case 1)


def test_a_prompt_that_can_never_fit_is_refused_and_the_small_ones_finish() -> None:
    sim = Watch(blocks=5, stops=0)
    say(sim, prompt=3, tokens=4)
    big = say(sim, prompt=30, tokens=4)
    small = [say(sim, prompt=3, tokens=4) for _ in range(3)]
    sim.finish_all()
    assert big.end.reason == "too_large"
    assert "at least 8 KV blocks" in big.end.detail, "need"
    assert "pool on 'x' has 5" in big.end.detail, "capacity"
    assert big.chunks == {}
    assert [handle.end.reason for handle in small] == ["done"] * 3


def test_a_prompt_that_fits_and_whose_answer_does_not_ends_by_length() -> None:
    """Wherever it runs, alone or in a crowd: after as many tokens as the whole pool holds."""
    sim = Watch(blocks=5, stops=0)
    crowd = [say(sim, prompt=10, tokens=tokens) for tokens in (40, None, 11, 3)]
    sim.finish_all()
    assert [h.ends["text"].finish for h in crowd] == ["length"] * 4
    assert [h.end.usage["think"]["completion_tokens"] for h in crowd] == [11, 11, 11, 3], "20 positions: 10 + 11 - 1"


@pytest.mark.parametrize(("prompt", "reason"), [(63, "done"), (64, "too_large"), (200, "too_large")])
def test_a_prompt_as_long_as_the_context(prompt: int, reason: str) -> None:
    sim = Watch(stops=0)
    handle = say(sim, prompt=prompt, tokens=None)
    sim.finish_all()
    assert handle.end.reason == reason
    if reason == "done":
        assert handle.end.usage["think"]["completion_tokens"] == 1
    else:
        assert f"the prompt has {prompt} tokens, the context of 64" in handle.end.detail


def test_overload_is_refused_at_once_and_not_remembered() -> None:
    sim = Watch(max_runs=2, stops=0)
    first, second, third = (say(sim, tokens=3) for _ in range(3))
    assert third.end.reason == "overloaded"
    assert "2 requests are alive" in third.end.detail
    assert third.chunks == {}
    sim.finish_all()
    assert (first.end.reason, second.end.reason) == ("done", "done")
    again = say(sim, tokens=3)
    sim.finish_all()
    assert again.end.reason == "done"


# -- Failures (case 2)


@pytest.mark.parametrize(
    ("loop", "where", "at"),
    [
        ("talk", "op", 2),
        ("chant", "op", 0),
        ("think", "bind", 3),
        ("talk", "advance", 2),
        ("chant", "next", 1),
        ("talk", "init", 0),
        ("tokenize", "op", 0),
        ("think", "finalize", 1),
    ],
)
@pytest.mark.parametrize("crowd", [0, 3])
def test_one_exception_ends_its_request_and_no_other(loop: str, where: str, at: int, crowd: int) -> None:
    ask = Ask(choice=3, seed=1, prompt=2, most=6, steps=1)
    with curses():
        world = World(blocks=60)
        world.turn(world.host(None, 1))
        others = [world.ask(Ask(3, seed, 3, 6, 1)) + world.ask(Ask(0, seed, 1, 6, 1)) for seed in range(crowd)]
        guilty = len(world.handles) + 1
        world.turn([item for pair in others for item in pair] + world.ask(ask, Curse(loop, where, at)))
        world.drain()  # judges everybody: ends, outputs equal to those alone, books at their baseline
        ends = [handle.end for handle in world.handles.values() if handle.end]
        assert [end.reason for end in ends if end.run != guilty] == ["done"] * 2 * crowd
        assert ends[-1].reason == "failed"
        assert "Stricken" in ends[-1].detail
        assert loop in ends[-1].detail
        CURSES.clear()
        world.turn(world.ask(ask))
        world.drain()
        assert world.handles[guilty + 1].end.reason == "done"


def test_a_guilty_unit_does_not_hold_up_its_neighbours() -> None:
    """After the broken batch each runs alone once; then the innocent are together again."""
    seeds = [seed for seed in range(40) if solo(Ask(10, seed, 1, 7, 1), 60).shown["think"] == 7][:4]
    with curses():
        world = World(blocks=60)
        world.turn(world.host(None, 1))
        asks = [world.ask(Ask(10, seed, 1, 7, 1), Curse("think", "op", 3) if seed == seeds[0] else None) for seed in seeds]
        world.turn([item for ask in asks for item in ask])
        world.drain()
    sizes = [len(c.rows) for _, _, commands in world.history for c in commands if isinstance(c, RunBatch)]
    assert sizes == [4, 4, 4, 4, 1, 1, 1, 1, 3, 3, 3]


# -- Cancel


@pytest.mark.parametrize("choice", range(len(CHOICES)))
def test_cancel_at_every_single_point(choice: int) -> None:
    """After every number of completed batches: the caller hears it at once, and every book returns to its baseline."""
    ask = Ask(choice, seed=1, prompt=3, most=4, steps=3)
    after = 0
    while True:
        world = World(blocks=60)
        world.turn(world.host(None, 2))
        world.turn(world.ask(ask))
        for _ in range(after):
            world.turn(world.answer(after))
        finished = world.handles[1].end is not None
        world.turn(world.stop(1))
        assert world.handles[1].end is not None
        assert world.handles[1].end.reason == ("done" if finished else "cancelled")
        units = world.units
        world.turn([Cancel(1)])  # twice
        world.turn([Cancel(99)])  # nobody
        waiting = len(set(world.flight.values()))
        world.drain()
        assert world.units - units <= 2 * waiting, "more ran than was in flight"
        if finished:
            break
        after += 1
    assert after >= 4, "the request was too short to be cancelled in its middle"


def test_cancel_while_it_waits_for_memory() -> None:
    """Case 5: it never runs a step, and does not stand in the way of who comes after it."""
    sim = Watch(blocks=6, stops=0)
    holder, waiting, small = say(sim, prompt=14, tokens=9), say(sim, prompt=20, tokens=4), say(sim, prompt=1, tokens=3)
    sim.step(2)
    assert sim.where(small.run) == []
    sim.cancel(waiting.run)
    assert waiting.end.reason == "cancelled"
    sim.step(2)
    assert holder.end is None
    assert sim.where(small.run), "it fits beside the holder"
    sim.finish_all()
    assert sim.where(waiting.run) == []


def test_cancel_in_the_burst_that_submits() -> None:
    world = World(blocks=60)
    world.turn(world.host(None, 1))
    world.turn(world.ask(Ask(3, 1, 3, 4, 1)) + world.stop(1))
    assert world.handles[1].end is not None
    assert world.handles[1].end.reason == "cancelled"
    assert world.flight == {}
    world.drain()


def test_a_cancelled_request_costs_the_next_nothing() -> None:
    """Case 4: at most the unit in flight runs on; what comes then has what it gives alone."""
    world = World(blocks=60)
    world.turn(world.host(None, 1))
    ask = Ask(3, 1, 3, 7, 1)
    world.turn(world.ask(ask))
    for _ in range(5):
        world.turn(world.answer(0))
    world.turn(world.stop(1) + world.ask(ask))
    world.drain()
    assert world.handles[2].end.reason == "done"
    assert world.handles[2].chunks == solo(ask, 60).outputs


# -- What is told about it


def test_story_tells_submit_admission_batches_and_end() -> None:
    sim = Watch(stops=0)
    handle = messages(sim, "cascade2", ("text", "audio"), think={"max_tokens": 3}, talk={"max_tokens": 3})
    say(sim, tokens=3)
    sim.step(3)
    story = [line.lstrip("0123456789. ") for line in sim.core.story(handle.run)]
    told = iter(story)
    for start in (
        "submit cascade2 for text, audio",
        "batch 1 on x: tokenize x1",
        "admitted with ",
        "batch 3 on x: think x",
        "now: tokenize done",
    ):
        assert any(line.startswith(start) for line in told), (start, story)
    assert any("beside 1" in line for line in story), story
    assert story[-1] == f"now: run {handle.run} open: text, audio"
    sim.cancel(handle.run)
    assert any(line.endswith("cancel") for line in sim.core.story(handle.run))
    sim.finish_all()
    assert sim.core.story(handle.run)[-1] == f"run {handle.run} is not alive"


def test_story_tells_what_broke() -> None:
    with curses():
        world = World(blocks=60)
        world.turn(world.host(None, 1))
        world.turn(world.ask(Ask(10, 3, 1, 7, 1), Curse("think", "op", 2)))
        world.drain()
    assert any("broke: Stricken('op of think')" in line for line in world.core.story(1)), world.core.story(1)


# -- Executors


def test_a_lost_executor_costs_the_units_in_flight_and_who_has_nothing_there_never_notices() -> None:
    world = World(blocks=60)
    world.turn(world.host(None, 1) + world.host(None, 1))
    world.turn(world.ask(Ask(10, 1, 3, 7, 1)))
    world.turn(world.ask(Ask(10, 2, 3, 7, 1)))
    assert {name for name, mail in world.mail.items() if mail} == {"x1", "x2"}, "the second replica is used"
    world.turn(world.lose(0))
    assert any("its executor is gone" in line for line in world.core.story(1)), world.core.story(1)
    assert not any("its executor is gone" in line for line in world.core.story(2))
    assert {row.run for mail in world.mail.values() for batch in mail for row in batch.rows} == {2}, "who was there goes on"
    world.drain()
    assert [world.handles[run].end.reason for run in (1, 2)] == ["done", "done"]
    assert [world.handles[run].end.rebuilt for run in (1, 2)] == [1, 0]


def test_a_run_stays_with_the_replica_that_has_its_state() -> None:
    world = World(blocks=60)
    world.turn(world.host(None, 1) + world.host(None, 1))
    for seed in range(6):
        world.turn(world.ask(Ask(10, seed, 3, 7, 1)))
    world.drain()
    homes: dict[int, set[str]] = {}
    for _, _, commands in world.history:
        for batch in commands:
            for row in getattr(batch, "rows", ()):
                homes.setdefault(row.run, set()).add(batch.executor)
    assert all(len(found) == 1 for found in homes.values()), homes
    assert [sum(found == {name} for found in homes.values()) for name in ("x1", "x2")] == [3, 3]


def test_nobody_hosts_it() -> None:
    world = World(blocks=60)
    world.turn(world.host(("toy/host", "toy/mot"), 1))
    world.turn(world.ask(Ask(3, 1, 3, 7, 1)) + world.ask(Ask(0, 1, 3, 7, 1)))
    end = world.handles[1].end
    assert end is not None
    assert end.reason == "lost"
    assert "no executor hosts" in end.detail
    assert "toy/talker" in end.detail
    world.drain()
    assert world.handles[2].end is not None
    assert world.handles[2].end.reason == "done"
