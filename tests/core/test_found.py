"""Bugs that these tests found in the core: the smallest scenario of each, by name."""

from __future__ import annotations

import pytest
from asks import Ask, request
from curse import CURSES, Curse, curses
from stage import CARDS, LIMITS, PROGRAMS
from watch import Watch, say
from world import World

from omni_runtime.core import Core
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.work import Answer, Broken, End, ExecutorUp, RunBatch, Submit

TWINS = Ask(choice=11, seed=1, prompt=3, most=4, steps=1)


def twins_in_one_batch() -> tuple[World, RunBatch]:
    """A run two of whose loops are in one batch, which is in flight."""
    world = World(blocks=40)
    world.turn(world.host(None, 1))
    world.turn(world.ask(TWINS))
    while True:
        for mail in world.mail.values():
            if mail and isinstance(mail[0], RunBatch) and len(mail[0].rows) == 2:
                return world, mail[0]
        world.turn(world.answer(0))


def test_cancel_with_two_loops_in_one_batch() -> None:
    """Closing the books twice was a KeyError that stopped the engine."""
    world, _ = twins_in_one_batch()
    world.turn(world.stop(1))
    world.turn(world.answer(0))
    world.drain()


def test_cancel_with_two_loops_in_one_broken_batch() -> None:
    world, batch = twins_in_one_batch()
    world.turn(world.stop(1))
    world.answer(0)
    world.turn([Broken(batch.executor, batch.batch, "broke")])
    world.core.check_idle()


def test_answer_and_loss_of_an_executor_in_one_burst() -> None:
    """The run's next loop was placed anew, without its promise of memory: a KeyError that stopped the engine."""
    world = World(blocks=40)
    world.turn(world.host(None, 1))
    world.turn(world.host(None, 1))
    world.turn(world.ask(Ask(choice=7, seed=3, prompt=1, most=1, steps=2)))
    world.turn(world.answer(0) + world.lose(0))
    assert world.handles[1].end is None
    world.drain()
    assert world.handles[1].end.reason == "done"


def texts(n: int) -> World:
    """A world with n equal texts whose prompts are in one batch, in flight."""
    world = World(blocks=40)
    world.turn(world.host(None, 1))
    world.turn([item for seed in range(n) for item in world.ask(Ask(choice=10, seed=seed, prompt=2, most=6, steps=1))])
    return world


def test_a_batch_that_breaks_before_it_runs() -> None:
    """Blocks that were granted with it never reached the executor's table and were not sent again."""
    world = texts(3)
    world.turn(world.answer(0, wrong=-1))
    world.drain()
    assert [world.handles[run].end.reason for run in (1, 2, 3)] == ["done"] * 3


def test_a_batch_that_breaks_between_its_rows() -> None:
    """The second row raises, so the third has not run: its blocks must come again with its next unit."""
    with curses():
        CURSES[2] = Curse("think", "op", 0)
        world = texts(3)
        world.asked[2] = (world.asked[2][0], CURSES[2])
        world.drain()
    assert [world.handles[run].end.reason for run in (1, 2, 3)] == ["done", "failed", "done"]


def test_an_innocent_beside_a_guilty_voice() -> None:
    """The simulated executor had moved the state of the rows before the one that raised, so these could not run again."""
    with curses():
        world = World(blocks=40)
        world.turn(world.host(None, 1))
        asks = [Ask(choice=8, seed=seed, prompt=2, most=6, steps=4) for seed in (0, 2)]
        world.turn(world.ask(asks[0]) + world.ask(asks[1], Curse("paint", "op", 1)))
        world.drain()
    assert [world.handles[run].end.reason for run in (1, 2)] == ["done", "failed"]


@pytest.mark.parametrize("loop", ["low", "high"])
def test_bind_fails_beside_another_loop_of_its_run(loop: str) -> None:
    """The other loop's unit ran for a request that had ended. Which steps share a batch depends on the policy: some do."""
    for at in range(6):
        with curses():
            world = World(blocks=40)
            world.turn(world.host(None, 1))
            world.turn(world.ask(TWINS, Curse(loop, "bind", at)))
            world.drain()  # S9: no work after the end
        assert world.handles[1].end.reason == "failed"


@pytest.mark.parametrize("choice", range(10))
def test_a_request_claims_what_it_needs_and_not_whole_contexts(choice: int) -> None:
    """Speech claimed 16 blocks for its thinker, whatever its prompt: its vocoder, which waits for nothing, made the claim."""
    world = World(blocks=17 if choice == 9 else 5)  # the diamond's inner prompts are known to nobody beforehand
    world.turn(world.host(None, 1))
    world.turn(world.ask(Ask(choice, seed=1, prompt=1, most=1, steps=1)))
    world.drain()
    assert world.handles[1].end.reason == ("too_large" if choice == 9 else "done"), world.handles[1].end


def test_an_answer_of_no_tokens_holds_no_memory() -> None:
    """max_tokens=0 was taken for no limit, and what a loop that was done already had claimed stayed until its run ended."""
    world = World(blocks=40)
    world.turn(world.host(None, 1))
    world.turn(world.ask(Ask(choice=4, seed=0, prompt=1, most=0, steps=1)))  # talk says two tokens all the same
    world.turn(world.answer(0))
    assert world.progress == {(1, "tokenize"): 1}
    assert (1, "talk") in world.flight
    assert world.core.scheduler.executors["x1"].ledgers["toy/mot"].reserved == {}
    world.drain()


def test_an_executor_without_a_pool_for_an_expert() -> None:
    """An expert that keeps nothing there needs none; one that does is refused with the numbers."""
    core = Core(LIMITS)
    core.feed(0.0, ExecutorUp("x", ("toy/mot", "toy/host"), {}))
    out = core.feed(0.0, request(1, Ask(7, 1, 3, 7, 1)))
    assert isinstance(out[0], End)
    assert (out[0].reason, "has 0" in out[0].detail) == ("too_large", True)
    core.feed(0.0, ExecutorUp("y", ("toy/mot",), {"toy/mot": 4}))
    out = core.feed(0.0, request(2, Ask(7, 1, 3, 7, 1)))
    assert [c.executor for c in out if isinstance(c, RunBatch)] == ["y"]


def test_the_log_keeps_no_inputs_alive() -> None:
    """`story` needs a line about a request, not its pictures and sound: thousands of requests are remembered."""

    sim = Watch(stops=0)
    sim.submit(PROGRAMS["paint"], messages=[{"role": "user", "content": "a cat"}], outputs=("image",))
    sim.finish_all()
    kept = [item for _, item in sim.core._log if isinstance(item, Submit)]
    assert len(kept) == 1
    assert (kept[0].inputs, kept[0].params) == ({}, {})
    assert any("submit paint for image" in line for line in sim.core.story(1))


def test_story_tells_the_end_and_why() -> None:
    """A request that had ended told "is not alive", whatever had ended it."""
    sim = Watch(stops=0)
    done, stopped = say(sim, tokens=2), say(sim, tokens=20)
    large = say(sim, prompt=64)
    sim.cancel(stopped.run)
    sim.finish_all()
    for handle, told in (
        (done, "ended: done"),
        (stopped, "ended: cancelled"),
        (large, "ended: too_large, think: the prompt"),
    ):
        assert any(told in line for line in sim.core.story(handle.run)), (told, sim.core.story(handle.run))


def test_the_room_of_an_answer_does_not_depend_on_who_else_is_there() -> None:
    """Of two replicas the one with less to do was taken; with pools of two sizes, the answer then ended where its pool did."""
    counts = []
    for others in range(3):
        executors = [SimulatedExecutor(name, *CARDS, blocks=blocks, stops=0) for name, blocks in (("small", 5), ("large", 12))]
        sim = Watch(*executors)
        for _ in range(others):
            say(sim, prompt=2, tokens=3)
        handle = say(sim, prompt=10, tokens=None)
        sim.finish_all()
        counts.append(handle.end.usage["think"]["completion_tokens"])
    assert counts == [12 * 4 - 10 + 1] * 3


def test_tensors_of_a_wrong_number_of_results_are_released() -> None:
    """An op that gives a result too many has kept tensors for them: nobody will ever read these."""
    sim = Watch(stops=0)
    handle = sim.submit(PROGRAMS["cascade2"], messages="m", outputs=("audio",))
    sim.step()
    assert sim.batches[-1].rows[0].payload.hidden
    sim.finish.clear()
    report = sim.executors["x"].run(sim.mail["x"].popleft())
    assert sim.executors["x"].slots.counts[1] > 0
    sim.feed(Answer("x", report.batch, [*report.results, *report.results]))
    assert handle.end.reason == "failed"
    assert "1 rows gave 2 results" in handle.end.detail
    sim.finish_all()


def test_a_unit_that_was_left_out_of_its_batch_holds_no_prefix() -> None:
    """A run whose bind failed was noted as holding KV that was never computed: the next that begins alike copied it."""
    with curses():
        world = World(blocks=40, reuse=True)
        world.turn(world.host(None, 1))
        world.turn(world.ask(Ask(choice=10, seed=2, prompt=20, most=4, steps=1), Curse("think", "bind", 8)))
        while world.flight:
            world.turn(world.answer(0))
        world.turn(world.ask(Ask(choice=10, seed=4, prompt=20, most=4, steps=1)))
        world.drain()
    assert world.handles[1].end.reason == "failed"
    assert world.handles[2].end.reason == "done"
    assert world.handles[2].end.usage["think"]["cached_tokens"] == 8
