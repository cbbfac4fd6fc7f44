"""What was lost is made again: after every unit, at every moment, on another executor, and never said twice."""

from __future__ import annotations

from typing import Any

import pytest
from asks import Ask
from curse import place
from stage import CARDS, CHOICES, PROGRAMS
from watch import Watch, say
from world import World, solo

from omni_runtime.card import ArDecode, ModelCard
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.program import Program
from omni_runtime.scheduler.holdings import COMPANY, DEATHS
from omni_runtime.sim import Simulation
from omni_runtime.work import ExecutorDown, Preempt, RunBatch


def world(*runs: Ask, blocks: int = 60, slots: int = 1) -> World:
    made = World(blocks)
    made.turn(made.host(None, slots))
    for ask in runs:
        made.turn(made.ask(ask))
    return made


def undisturbed(made: World) -> None:
    made.drain()
    for run, (ask, _) in made.asked.items():
        alone = solo(ask, made.blocks)
        assert made.handles[run].end.reason == "done"
        assert made.handles[run].chunks == alone.outputs, f"run {run} differs"


@pytest.mark.parametrize("choice", range(len(CHOICES)))
def test_preempted_after_every_unit_that_made_progress(choice: int) -> None:
    """Case 23: thinker, talker, vocoder and painter go back each time, and nothing of that is heard."""
    made = world(Ask(choice, 3, 5, 6, 4))
    furthest: dict[tuple[int, str], int] = {}
    preempted = 0
    while made.flight:
        (batch,) = [m for mail in made.mail.values() for m in mail if isinstance(m, RunBatch)]
        told = made.answer(0)
        for row in batch.rows:
            start, size = place(row.payload)
            if start + size > furthest.get((row.run, row.loop), 0):
                furthest[row.run, row.loop] = start + size
                told += made.preempt(row.run)
                preempted += 1
        made.turn(told, later=0.001)
    assert preempted > 2
    undisturbed(made)
    assert made.handles[1].end.rebuilt >= preempted // 2, "two loops may be back in one burst"


@pytest.mark.parametrize("choice", range(len(CHOICES)))
@pytest.mark.parametrize("back", [True, False])
def test_an_executor_is_lost_at_every_moment(choice: int, back: bool) -> None:
    """With a unit in flight or between two; its next incarnation goes on, or another one does."""
    at = 0
    while True:
        made = world(Ask(choice, 3, 5, 6, 4))
        made.turn([] if back else made.host(None, 1))
        for _ in range(at):
            made.turn(made.answer(0), later=0.001)
        if not made.flight:
            break
        made.turn(made.lose(0, back), later=0.001)
        if back:
            made.turn(made.restart(0, True))
        undisturbed(made)
        at += 1
    assert at > 2


def test_what_others_keep_of_a_run_stays() -> None:
    """The thinker's executor dies; the vocoder on another one goes on where it was."""
    made = World(60)
    made.turn(made.host(("toy/host", "toy/mot", "toy/talker", "duo/pair"), 1) + made.host(("toy/voice",), 1))
    made.turn(made.ask(Ask(3, 3, 5, 7, 1)))
    while not made.progress.get((1, "chant"), 0):
        made.turn(made.answer(0), later=0.001)
    assert made.kept[1, "chant"] == "x2"
    made.turn(made.lose(0, True))
    made.turn(made.restart(0, True))
    assert (1, "chant") not in made.again
    undisturbed(made)
    assert (1, "think") in made.began or made.progress[1, "think"]
    assert (1, "chant") not in made.began


def test_tensors_are_carried_between_executors() -> None:
    """Talker and thinker have no executor in common: hidden rows travel with the batches that read them."""
    made = World(60)
    made.turn(made.host(("toy/host", "toy/mot"), 1) + made.host(("toy/talker", "toy/voice"), 1))
    made.turn(made.ask(Ask(3, 3, 5, 7, 1)))
    for _ in range(4):
        made.turn(made.answer(0), later=0.001)
    undisturbed(made)
    brought = [b for _, _, commands in made.history for b in commands if isinstance(b, RunBatch) and b.brought]
    assert brought and {b.executor for b in brought} == {"x2"}


def test_a_lost_tensor_without_a_copy_ends_its_run() -> None:
    """An executor that gives no copies: who needs one is told so, nobody else is."""

    class Mean(SimulatedExecutor):
        def run(self, message: Any) -> Any:
            report = super().run(message)
            for result in getattr(report, "results", ()):
                result.copies = {}
            return report

    sim = Simulation(
        Mean("a", *CARDS, experts=("toy/host", "toy/mot")), Mean("b", *CARDS, experts=("toy/talker", "toy/voice")), cards=CARDS
    )
    speech = sim.submit(PROGRAMS["cascade2"], messages="m", outputs=("audio",))
    text = sim.submit(PROGRAMS["text"], messages="m", outputs=("text",))
    sim.run()
    assert speech.end.reason == "lost"
    assert "'hidden' of 'think' is needed on 'b' and was on 'a' only" in speech.end.detail
    assert text.end.reason == "done"
    sim.core.check_idle()


def test_who_kills_executors_fails_alone() -> None:
    """In company twice, then alone three times; the others are rebuilt each time and never fail."""
    made = world(Ask(10, 1, 3, 9, 1), Ask(10, 2, 3, 9, 1), Ask(10, 4, 3, 9, 1))
    poison = 2
    deaths = 0
    alone = 0
    for _ in range(400):
        flying = [m for mail in made.mail.values() for m in mail if isinstance(m, RunBatch)]
        if not flying:
            break
        rows = {row.run: row for row in flying[0].rows}
        payload = rows[poison].payload if poison in rows else None
        if payload is not None and payload.start + len(payload.tokens) > 5:
            deaths += 1
            alone += len(rows) == 1
            made.turn(made.lose(0, True), later=0.01)
            made.turn(made.restart(0, True), later=0.01)
        else:
            made.turn(made.answer(0), later=0.001)
    ends = {run: handle.end for run, handle in made.handles.items()}
    assert ends[poison].reason == "failed"
    assert f"{DEATHS} executors died with this step alone on them" in ends[poison].detail
    assert [ends[run].reason for run in (1, 3)] == ["done", "done"]
    assert (deaths, alone) == (COMPANY + DEATHS, DEATHS), "no more than need be"


def test_deaths_that_are_not_a_units_fault_are_forgotten() -> None:
    """An executor that dies again and again, but never over the same step: nobody fails."""
    made = world(Ask(10, 1, 3, 9, 1))
    for _ in range(3 * DEATHS):
        made.turn(made.lose(0, True), later=0.01)
        made.turn(made.restart(0, True), later=0.01)
        for _ in range(3):  # all that was known again, in batches of 8, and one more
            made.turn(made.answer(0), later=0.001)
    undisturbed(made)


@pytest.mark.parametrize("well", [True, False])
def test_who_waits_for_an_executor(well: bool) -> None:
    made = world(Ask(10, 1, 3, 9, 1))
    made.turn(made.answer(0))
    made.turn(made.lose(0, True))
    assert not made.flight
    assert any("waits for an executor to be back: x1" in line for line in made.core.story(1)), made.core.story(1)
    made.turn(made.ask(Ask(10, 2, 3, 9, 1)))  # somebody who comes meanwhile waits as well
    assert made.handles[2].end is None
    made.turn(made.restart(0, well))
    if well:
        assert not any(run.stranded for run in made.core.scheduler.runs.values()), "they are as senior as before"
        undisturbed(made)
    else:
        assert {handle.end.reason for handle in made.handles.values()} == {"lost"}
        assert "'x1#2' is gone: it does not start" in made.handles[1].end.detail


def test_a_smaller_executor_cannot_take_over() -> None:
    """Where a request must stop was said when it came in: an executor with less cannot go on with it."""
    sim = Simulation(SimulatedExecutor("big", *CARDS, blocks=40, stops=0), cards=CARDS)
    handle = say(sim, prompt=4, tokens=60)  # type: ignore[arg-type]
    for _ in range(5):
        sim.complete("big")
    sim.up(SimulatedExecutor("small", *CARDS, blocks=4, stops=0))
    sim.down("big", "smoke")
    assert handle.end.reason == "lost"
    assert (
        "the pools of 'toy/mot' on small are too small for what was granted: executor 'big' is gone: smoke" in handle.end.detail
    )


def _stubborn() -> Program:
    spec = ArDecode(expert="mot", context=64, stop_tokens=(0,), defaults={"max_tokens": 8}, rebuilds=False)
    card = ModelCard(name="toy", experts=CARDS[0].experts, loops={"think": spec})
    p = Program("stubborn", card)
    p.output("text", p.loop("think", prompt=p.input("prompt")).text)
    return p


def test_what_cannot_be_made_again_is_never_taken_and_fails_when_it_is_lost() -> None:
    program = _stubborn()
    cards = tuple(program.cards.values())
    sim = Simulation(SimulatedExecutor("x", *cards, blocks=6, stops=0), cards=cards)
    kept = sim.submit(program, prompt=[1] * 4, outputs=("text",), think={"max_tokens": 16}, priority="low")
    sim.complete("x")
    sim.feed(Preempt(kept.run))
    urgent = sim.submit(program, prompt=[1] * 4, outputs=("text",), think={"max_tokens": 16}, priority="high")
    sim.run(until=sim.now + 0.004)
    assert sim.core.story(kept.run)[-2].startswith("now: think"), "all 5 blocks are its own from the beginning"
    assert not urgent.chunks
    sim.run()
    assert [kept.end.rebuilt, urgent.end.rebuilt] == [0, 0]
    again = sim.submit(program, prompt=[1] * 4, outputs=("text",))
    sim.complete("x")
    sim.down("x")
    assert again.end.reason == "lost"
    assert "rebuilds=False" in again.end.detail


def test_a_batch_that_does_not_come_back_is_overdue() -> None:
    sim = Watch(stops=0)
    sim.core.watchdog = (10.0, 20.0)
    assert sim.core.next_look() is None, "nothing is in flight"
    handle = say(sim)
    began = sim.now
    assert sim.core.next_look() == began + 10.0
    assert sim.core.overdue(began + 9.9) == []
    ((name, why),) = sim.core.overdue(began + 10.0)
    assert name == "x"
    assert "batch 1 of 1 toy/mot.forward took 10.0 s and is not back" in why
    sim.complete("x")
    assert sim.core.next_look() == sim.now + 10.0, "the next one has its own time"
    two = Watch(stops=0, slots=2)
    two.core.watchdog = (10.0, 20.0)
    say(two)
    two.submit(PROGRAMS["paint"], messages="m", outputs=("image",))
    two.now = 5.0
    two.complete("x")
    assert two.core.next_look() == two.now + 10.0, "so has one that waited in the mailbox"
    two.finish_all()
    sim.core.watchdog = None
    assert sim.core.overdue(1e9) == []
    sim.finish_all()
    assert handle.end.reason == "done"


def test_a_watchdog_that_is_not_answered_in_time_costs_nothing_but_time() -> None:
    """The executor is given up with a unit in flight, and answers after all: too late, and nobody listens."""
    made = world(Ask(3, 1, 3, 7, 1))
    made.turn(made.answer(0))
    made.turn(made.lose(0, True))
    made.turn(made.restart(0, True))
    made.turn(made.answer_late(0, False))
    made.turn(made.answer_late(0, True))
    undisturbed(made)


def test_lost_twice_in_one_burst() -> None:
    made = world(Ask(3, 1, 3, 7, 1))
    for _ in range(4):
        made.turn(made.answer(0))
    burst = made.preempt(1) + made.lose(0, True) + made.restart(0, True) + made.lose(0, True) + made.restart(0, True)
    made.turn(burst)
    undisturbed(made)


def test_news_of_an_executor_that_nobody_knows() -> None:
    made = world(Ask(10, 1, 3, 7, 1))
    made.turn([ExecutorDown("nobody", "?"), ExecutorDown("x1#7", "?"), Preempt(99)])
    undisturbed(made)


def test_what_was_done_twice_is_not_learned() -> None:
    """The pace of a run that was preempted says nothing about those that are not."""
    sim = Watch(stops=0)
    handle = say(sim)
    sim.step(5)
    sim.feed(Preempt(handle.run))
    sim.finish_all()
    assert sim.core.scheduler.costs.paces == {} or all(p.units == 0.0 for p in sim.core.scheduler.costs.paces.values())
    say(sim)
    sim.finish_all()
    assert any(p.units > 0.0 for p in sim.core.scheduler.costs.paces.values())


def test_a_vocoder_begins_again_at_its_segment() -> None:
    """Clauses before the one that is spoken are not decoded again: their sound is out, and a segment can be decoded alone."""
    begun = []
    for seed in range(6):
        made = world(Ask(6, seed, 5, None, 1))
        while made.flight:
            spoken = made.progress.get((1, "speak"), 0)
            told = made.answer(0)
            more = made.preempt(1) if made.progress.get((1, "speak"), 0) > spoken else []
            made.turn(told + more, later=0.001)
            rows = [row for mail in made.mail.values() for m in mail if isinstance(m, RunBatch) for row in m.rows]
            begun += [row.payload.start for row in rows if row.loop == "speak" and row.payload.fresh]
        undisturbed(made)
    assert any(begun) and begun.count(0) > 1, begun


def test_copies_stay_until_the_last_reader_is_done() -> None:
    """Two talkers read the thinker's rows; one has ended when the other one must begin again."""
    p = Program("two", *CARDS)
    thought = p.loop("think", prompt=p.input("prompt"))
    for name in ("short", "long"):
        p.output(name, p.loop("talk", as_=name, prompt=p.input("prompt"), conditioning=thought.hidden).text)
    texts = []
    for preempted in (False, True):
        sim = Watch(stops=0)
        given = {"think": {"max_tokens": 12}, "short": {"max_tokens": 1}, "long": {"max_tokens": 12}}
        handle = sim.submit(p, prompt=[1, 2, 3], **given)
        while sim.busy:
            if preempted and "short" in handle.ends and sim.core.flow.runs[handle.run].nodes["long"].units > 3:
                preempted = False
                sim.feed(Preempt(handle.run))
            sim.step()
        assert handle.end.reason == "done", handle.end
        texts.append(handle.chunks)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("pile", [1, 2, 5, 17])
@pytest.mark.parametrize("preempted", [False, True])
def test_a_slow_talker_is_given_every_row(pile: int, preempted: bool) -> None:
    """Case 22: so many steps of the thinker pile up for each of the talker, which also goes back in the middle: as many rows
    are read as were made, and the sound is what it is without any delay."""
    p = Program("pile", *CARDS)
    thought = p.loop("think", prompt=p.input("prompt"))
    talk = p.loop("talk", prompt=p.input("prompt"), conditioning=p.handoff(thought.hidden, capacity=None))
    p.output("audio", p.loop("chant", frames=talk.tokens).samples)
    given: dict[str, Any] = {"prompt": [1, 2, 3], "think": {"max_tokens": 30}, "talk": {"max_tokens": 40}}
    calm = Watch(stops=0)
    alone = calm.submit(p, **given)
    calm.finish_all()

    a, b = (
        SimulatedExecutor(name, *CARDS, experts=experts, stops=0)
        for name, experts in (("a", ("toy/host", "toy/mot")), ("b", ("toy/talker", "toy/voice")))
    )
    sim = Simulation(a, b, cards=CARDS)
    handle = sim.submit(p, **given)
    read = 0
    while sim.busy:
        for _ in range(pile):
            if "a" in sim.busy:
                sim.complete("a")
        if "b" in sim.busy:
            sim.complete("b")
        node = sim.core.flow.runs[handle.run].nodes["talk"] if handle.run in sim.core.flow.runs else None
        if node is not None and node.units == 4 and preempted:
            preempted = False
            sim.feed(Preempt(handle.run))
        if node is not None:
            reader = node.readers["conditioning"]
            read = max(read, reader.cursor)
            made = reader.channel.tail
    assert handle.end.reason == "done"
    assert read == made == 3 + 30 - 1, "a row for every position but the last one's token"
    assert handle.chunks == alone.chunks
