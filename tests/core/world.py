"""The world around the core: executors that break, late answers, bursts of input, and books of its own.

`World` carries out what the core commands and asserts, command by command, what was promised (S1 to S10 below). Its books come
from commands and reports alone; `check` then compares them with the core's. `search.py` drives it by a seed, `test_machine.py` by
Hypothesis.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any, NamedTuple

from asks import AS_IT_COMES, Ask, Wish, again, key, request
from curse import CURSES, HARM, SPENT, Breakable, Curse, place
from drawn import calls, chosen, heard
from stage import CARDS, LIMITS

from omni_runtime.executors.simulated import Cost
from omni_runtime.sim import SimHandle, Simulation
from omni_runtime.work import (
    Answer,
    Broken,
    Cancel,
    Command,
    Drop,
    End,
    ExecutorDown,
    Input,
    Played,
    Preempt,
    RunBatch,
    StepResult,
    Waiting,
)


class World(Simulation):
    """Plays everything around one core.

    Args:
        blocks: size of every pool of every executor: what a request may hold, and where it must stop, depends on it.
        max_runs: see `Core`.
        reuse: executors keep the KV of ended loops, and others begin with it.
        policy, tenants: see `Simulation`.
        seconds: of every batch, as its executor says: with a tenth of a millisecond no toy stream can be promised a thing.
    """

    def __init__(
        self,
        blocks: int,
        max_runs: int = 20_000,
        reuse: bool = False,
        policy: str = "deadline",
        tenants: dict[str, float] | None = None,
        seconds: float = 1e-3,
    ) -> None:
        self.wishes: dict[int, Wish] = {}
        self.shares = tenants
        self.seconds = seconds
        self.busy_seconds = 0.0  # of all batches that were answered
        self.waited: dict[int, list[float | None]] = {}  # what promised runs were told
        self.begun: set[int] = set()  # runs with a unit of a loop that holds memory
        self.split: set[int] = set()  # runs with units in flight when they ended: what these take is told to nobody
        self.flight: dict[tuple[int, str], int] = {}  # (run, loop) -> batch
        self.progress: dict[tuple[int, str], int] = {}
        self.counts: dict[tuple[int, str], int] = {}  # units that gave a result
        self.tables: dict[tuple[str, str], dict[int, tuple[int, str]]] = {}  # pool -> block -> who holds it
        self.asked: dict[int, tuple[Ask, Curse | None]] = {}
        self.cancelled: set[int] = set()
        self.unserved: set[int] = set()  # no executor hosted them when they came
        self.kept: dict[tuple[int, str], str] = {}  # (run, loop) -> executor that keeps something for it
        self.again: dict[tuple[int, str], int] = {}  # loops that must begin again -> how far they were
        self.began: dict[tuple[int, str], int] = {}  # where they did
        self.coming: dict[str, tuple[Breakable, int]] = {}  # executors that are to be back, and their next number
        self.bereft: set[int] = set()  # ended as lost, and rightly
        self.crowded: set[int] = set()  # came when too many were alive
        self.wronged: set[int] = set()  # a unit of theirs, alone, was answered with a wrong number of results
        self.late: list[RunBatch] = []  # batches that their executor took with it
        self.echo: list[Input] = []  # reports that may arrive a second time
        self.history: list[tuple[float, tuple[Input, ...], list[Command]]] = []
        self.born = 0
        self.happened: dict[str, int] = {}  # kinds of trouble, and how often
        self.blocks = blocks
        self.reuse = reuse
        self.max_runs = max_runs
        super().__init__(cards=CARDS, max_runs=max_runs, policy=policy, tenants=tenants)

    # -- What the core commands

    def feed(self, *inputs: Input) -> None:
        commands = self.core.feed(self.now, *inputs)
        self.history.append((self.now, inputs, commands))
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, RunBatch):
            self._saw_batch(command)
        elif isinstance(command, Drop):
            for slot in command.slots:
                assert slot not in self.flight, f"S8: {slot} is dropped with a unit in flight"
                self._gone(slot)
                for (executor, _), table in self.tables.items():
                    if executor == command.executor:
                        for block in [b for b, owner in table.items() if owner == slot]:
                            del table[block]
        elif isinstance(command, Waiting):
            told = self.waited.setdefault(command.run, [])
            assert None not in told, f"S13: run {command.run} waits no more, and {command}"
            assert told or command.seconds is not None, f"S13: run {command.run} did not wait"
            assert command.run not in self.begun, f"S13: run {command.run} has begun, and {command}"
            assert self.wishes[command.run].promised, f"S13: run {command.run} was promised nothing"
            told.append(command.seconds)
        elif isinstance(command, End) and command.reason == "lost":
            self._saw_lost(command)
        if isinstance(command, End) and (book := self.core.scheduler.runs.get(command.run)) is not None and book.flying:
            self.split.add(command.run)
        super()._carry_out(command)

    def _saw_lost(self, end: End) -> None:
        """A run may be lost only if an expert of it is nowhere and will not be."""
        experts = {step.expert for step in self.core.flow.runs[end.run].plan.steps} if end.run in self.core.flow.runs else set()
        there = {expert for ex in self.executors.values() for expert in ex.up.experts}
        there |= {expert for old, _ in self.coming.values() for expert in old.up.experts}
        assert not experts or experts - there, f"S15: run {end.run} is lost beside {sorted(there)}: {end.detail}"
        self.bereft.add(end.run)

    def _saw_batch(self, batch: RunBatch) -> None:
        executor = self.executors.get(batch.executor)
        assert executor is not None, f"S5: a batch for {batch.executor}, which is gone"
        assert (batch.expert, batch.op) in executor.specs, f"S5: {batch.executor} does not host {batch.expert}.{batch.op}"
        queued = [m for m in self.mail[batch.executor] if isinstance(m, RunBatch)]
        assert len(queued) < executor.up.slots, f"S4: {len(queued) + 1} batches in {executor.up.slots} slots"
        allowed = LIMITS[batch.expert, batch.op]
        assert 0 < len(batch.rows) <= allowed.units, "S4: too many units"
        assert sum(row.size for row in batch.rows) <= allowed.size, "S4: too large"
        assert len({key(row) for row in batch.rows}) == 1, "S4: a batch of two keys"
        groups = [(m.expert, m.op, key(m.rows[0])) for m in queued]
        assert (batch.expert, batch.op, key(batch.rows[0])) not in groups, "S4: a group is in flight twice"
        table = self.tables.setdefault((batch.executor, batch.expert), {})
        for row in batch.rows:
            slot = (row.run, row.loop)
            assert self.handles[row.run].end is None, f"S9: work for run {row.run} after its end"
            assert slot not in self.flight, f"S1: two units of {slot}"
            if self.core.flow.runs[row.run].nodes[row.loop].step.pooled:
                self.begun.add(row.run)
            self.flight[slot] = batch.batch
            start, size = place(row.payload)
            done = self.progress.get(slot, 0) if row.fork is None else row.fork.length
            if slot in self.again:
                assert row.fork is not None or again(row.payload), f"S2: {slot} cannot begin again at {start}: {row.payload}"
                assert row.fork is not None or start <= self.again[slot], (
                    f"S2: {slot} begins again at {start}, it was at {self.again[slot]}"
                )
                self.began[slot] = start
            else:
                assert start == done, f"S2: {slot} goes on at {start}, not at {done}"
                assert row.fork is None or slot not in self.progress, f"S2: {slot} begins twice"
            self.kept[slot] = batch.executor
            assert size <= row.size, f"S2: {slot} does {size}, {row.size} were granted"
            for block in row.blocks:
                assert 0 <= block < self.blocks, f"S6: block {block} of {self.blocks}"
                assert table.setdefault(block, slot) == slot, f"S6: block {block} belongs to {table[block]} and to {slot}"

    def _gone(self, slot: tuple[int, str]) -> None:
        """What an executor kept for a loop is gone: it has to begin again, unless it is a call, of which nothing is kept."""
        if self.kept.pop(slot, None) is not None and slot in self.progress and not self._is_call(slot):
            self.again[slot] = max(self.again.get(slot, 0), self.progress[slot])

    def _count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    def _is_call(self, slot: tuple[int, str]) -> bool:
        return slot[1].partition("#")[0] in calls(chosen(self.asked[slot[0]][0].choice)[0])

    # -- What may happen: each gives the inputs of one event

    def host(self, experts: tuple[str, ...] | None, slots: int) -> list[Input]:
        self.born += 1
        return self._start(f"x{self.born}", experts, slots)

    def _start(self, name: str, experts: tuple[str, ...] | None, slots: int) -> list[Input]:
        executor = Breakable(name, *CARDS, experts=experts, blocks=self.blocks, slots=slots, reuse=self.reuse)
        executor.hosted = experts
        executor.costs = {key: Cost(fixed=self.seconds, per_size=self.seconds / 10) for key in LIMITS}
        self.executors[executor.name] = executor
        self.mail[executor.name] = deque()
        self._count("executors up")
        return [executor.up]

    def ask(self, ask: Ask, curse: Curse | None = None, priority: str = "normal", wish: Wish = AS_IT_COMES) -> list[Input]:
        if self.shares and wish.tenant not in self.shares:
            wish = wish._replace(tenant=min(self.shares))
        wish = wish._replace(promised=wish.promised and heard(ask.choice))
        submit = request(len(self.handles) + 1, ask, priority, wish)
        run = submit.run
        self.wishes[run] = wish
        self.handles[run] = SimHandle(run, self.now)
        self.asked[run] = (ask, curse)
        if curse:
            CURSES[run] = curse
        there = {expert for ex in self.executors.values() for expert in ex.up.experts}
        there |= {expert for old, _ in self.coming.values() for expert in old.up.experts}
        if not {step.expert for step in submit.plan.steps} <= there:
            self.unserved.add(run)
        others = (self.alive | set(self.core.scheduler.runs)) - {run}
        mine = sum(self.wishes[other].tenant == wish.tenant for other in others)
        part = self.shares[wish.tenant] / sum(self.shares.values()) if self.shares else 1.0
        if len(others) >= self.max_runs or mine >= max(1, int(self.max_runs * part)):
            self.crowded.add(run)
        return [submit]

    @property
    def alive(self) -> set[int]:
        return {run for run, handle in self.handles.items() if handle.end is None} | {run for run, _ in self.flight}

    def stop(self, run: int) -> list[Input]:
        if run in self.handles and self.handles[run].end is None:
            self.cancelled.add(run)
        return [Cancel(run)]

    def played(self, run: int, seconds: float) -> list[Input]:
        """Somebody says what he has heard: of sound or not, of a run that is there or not, more or less than there was."""
        outputs = chosen(self.asked[run][0].choice)[1] if run in self.asked else ("audio",)
        return [Played(run, output, seconds) for output in outputs]

    def answer(self, nth: int, wrong: int = 0) -> list[Input]:
        """The head batch of one of the busy executors is done. With `wrong`, so many results too many or too few."""
        busy = sorted(name for name, mail in self.mail.items() if mail)
        if not busy:
            return []
        name = busy[nth % len(busy)]
        self.finish.pop(name, None)
        batch = self.mail[name].popleft()
        assert isinstance(batch, RunBatch)
        if wrong:
            self.wronged |= {row.run for row in batch.rows if len(batch.rows) == 1}
            report: Any = Answer(name, batch.batch, [StepResult()] * max(0, len(batch.rows) + wrong))
        else:
            report = self.executors[name].run(batch)
        if isinstance(report, Answer) and len(report.results) == len(batch.rows):
            self.busy_seconds += report.seconds
        self._clean(name)
        self.units += len(batch.rows)
        for row in batch.rows:
            slot = (row.run, row.loop)
            assert self.flight.pop(slot) == batch.batch
            if isinstance(report, Answer) and not wrong:
                start, size = place(row.payload)
                self.progress[slot] = start + size
                self.again.pop(slot, None)
                self.counts[slot] = self.counts.get(slot, 0) + 1
        self.echo = [*self.echo[-5:], report]
        return [report]

    def lose(self, nth: int, back: bool = False) -> list[Input]:
        """An executor is gone; what lies in its mail will not run, or will be answered too late."""
        if not self.executors:
            return []
        name = sorted(self.executors)[nth % len(self.executors)]
        executor = self.executors.pop(name)
        self._count("executors lost")
        self.finish.pop(name, None)
        for message in self.mail.pop(name):
            if isinstance(message, RunBatch):
                self.late.append(message)
                for row in message.rows:
                    del self.flight[row.run, row.loop]
        for pool in [p for p in self.tables if p[0] == name]:
            del self.tables[pool]
        for slot in [slot for slot, home in self.kept.items() if home == name]:
            self._gone(slot)
        if back and name.partition("#")[0] not in self.coming:
            self.coming[name.partition("#")[0]] = (executor, int(name.partition("#")[2] or 1) + 1)
        return [ExecutorDown(name, back=back)]

    def restart(self, nth: int, well: bool) -> list[Input]:
        """An executor that was to be back is; or will never be."""
        if not self.coming:
            return []
        name = sorted(self.coming)[nth % len(self.coming)]
        old, number = self.coming.pop(name)
        if not well:
            return [ExecutorDown(f"{name}#{number}", "it does not start")]
        return self._start(f"{name}#{number}", old.hosted, old.up.slots)

    def preempt(self, run: int) -> list[Input]:
        self._count("preempted by hand")
        return [Preempt(run)]

    def answer_late(self, nth: int, broken: bool) -> list[Input]:
        if not self.late:
            return []
        batch = self.late[nth % len(self.late)]
        if broken:
            return [Broken(batch.executor, batch.batch, "late")]
        return [Answer(batch.executor, batch.batch, [StepResult(token=1, piece=b"late") for _ in batch.rows])]

    def repeat(self, nth: int) -> list[Input]:
        """A report that was heard already arrives again, or one about a batch that never was."""
        return [self.echo[nth % len(self.echo)]] if self.echo else [Answer("x", 10**9, [])]

    # -- What must hold

    def turn(self, inputs: list[Input], later: float = 0.0) -> None:
        """Feeds what happened, all at once, and looks at every book."""
        self.now += later
        self.feed(*inputs)
        self.check()

    def check(self) -> None:
        self.core.check()
        flow = self.core.flow
        assert {run for run, handle in self.handles.items() if handle.end is None} == {
            run.id for run in flow.runs.values() if not run.ended
        }, "who is alive"
        assert {(node.run.id, node.name) for _, rows in flow.flying.values() for node, _ in rows} == self.flight.keys(), "S11"
        books = [run for run in self.core.scheduler.runs.values() if not run.leaving]
        offers = {(run.id, loop): offer.unit for run in books for loop, offer in run.offers.items() if offer.live}
        nodes = {(run.id, node.name): node for run in flow.runs.values() if not run.ended for node in run.nodes.values()}
        leaving = {run.id for run in self.core.scheduler.runs.values() if run.leaving}
        told = {slot: node.unit for slot, node in nodes.items() if node.offered and slot[0] not in leaving}
        assert offers == told, "S11: what is on offer"
        assert not any(node.offered and node.held_back() for node in nodes.values()), "S7: a throttled loop is on offer"
        for executor in self.core.scheduler.executors.values():
            for ledger in executor.ledgers.values():
                promised = {slot: n for slot, n in ledger.reserved.items() if slot not in ledger.kept}
                idle = [slot for slot, n in promised.items() if n and slot in nodes and nodes[slot].done]
                assert not idle, f"S6: {idle} are done and promised memory"

    def drain(self) -> None:
        """Heals the world and demands that everybody ends as it must."""
        while self.coming:
            self.turn(self.restart(0, True))
        self.turn(self.host(None, 1))
        budget = 4_000
        while self.flight:
            self.turn(self.answer(budget), later=0.001)
            budget -= 1
            assert budget, f"L3: does not drain: {sorted(self.alive)}"
        for run in self.asked:
            self.judge(run)
        charged = sum(account["seconds"] for account in self.core.scheduler.accounts().values())
        assert abs(charged - self.busy_seconds) < 1e-6, f"S14: {charged} s are charged of {self.busy_seconds}"
        told = sum(handle.end.seconds for handle in self.handles.values())
        assert told <= self.busy_seconds + 1e-6, f"S14: {told} s are told of {self.busy_seconds}"
        assert self.split or told >= self.busy_seconds - 1e-6, f"S14: {told} s are told of {self.busy_seconds}"
        self.core.check_idle()
        kept = {(e.name, slot) for e in self.core.scheduler.executors.values() for led in e.ledgers.values() for slot in led.kept}
        assert self.reuse or not kept
        for name, executor in self.executors.items():
            state = {(name, slot) for slot in executor.slots._state}
            assert state == {k for k in kept if k[0] == name}, f"S6: {name} keeps {state}"
            assert executor.slots.counts[1] == 0, f"S6: {name} keeps {executor.slots.counts[1]} tensors"
        owners = {(pool[0], slot) for pool, table in self.tables.items() for slot in table.values()}
        assert owners <= kept, "S6: blocks of nobody"

    def judge(self, run: int) -> None:
        """Whether a run ended as it deserves, with what it gives alone or with the beginning of that."""
        (ask, curse), handle = self.asked[run], self.handles[run]
        assert handle.end is not None, f"L3: run {run} never ended"
        alone = solo(ask, self.blocks)
        reason, tell = handle.end.reason, f"run {run} {ask} {curse}: {handle.end}"
        if reason == "done":
            assert alone.reason == "done", f"alone it is {alone.reason}; {tell}"
            assert handle.chunks == alone.outputs, f"D3: differs from what it gives alone; {tell}"
            assert curse is None or curse.where != "op" or alone.shown.get(curse.loop, 0) <= curse.at, f"it must fail; {tell}"
        for output, items in handle.chunks.items():
            assert items == alone.outputs[output][: len(items)], f"S12: {output} is not what it gives alone; {tell}"
        for output, summary in handle.ends.items():
            assert handle.chunks.get(output, []) == alone.outputs.get(output, []), f"S10: {output} is not complete; {tell}"
            assert summary.finish == alone.finish[output], f"S10: {output} finished otherwise; {tell}"
        for loop, units in handle.end.units.items():
            count = self.counts.get((run, loop), 0)
            assert count - 1 <= units <= count, f"{loop}: {count} units ran, one at most came after the end; {tell}"
        guilty = run in self.wronged or (curse is not None and curse.where in HARM)
        assert reason != "failed" or guilty, f"S12: an innocent failed; {tell}"
        assert reason != "cancelled" or run in self.cancelled, f"nobody cancelled it; {tell}"
        assert reason != "too_large" or alone.reason == "too_large", f"alone it fits; {tell}"
        wish, waited = self.wishes[run], self.waited.get(run, [])
        impatient = wish.promised and wish.first_output is not None
        assert reason != "overloaded" or run in self.crowded or impatient, f"there was room; {tell}"
        assert reason != "too_slow" or (wish.promised and run not in self.begun and not handle.chunks), f"{wish} {tell}"
        assert reason != "done" or not waited or waited[-1] is None, f"S13: it still waits; {tell}"
        assert reason != "lost" or run in self.bereft, f"nothing was lost; {tell}"
        assert run not in self.unserved or reason != "done" or not any(alone.shown.values()), f"nobody hosted it; {tell}"


class Alone(NamedTuple):
    """What a request gives alone."""

    reason: str
    outputs: dict[str, list[Any]]
    finish: dict[str, str]
    shown: dict[str, int]  # progress of the loops that make an output: these must run to their end


@cache
def solo(ask: Ask, blocks: int) -> Alone:
    kept, spent = dict(CURSES), set(SPENT)
    CURSES.clear()
    try:
        world = World(blocks)
        world.turn(world.host(None, 1))
        world.turn(world.ask(ask))
        while world.flight:
            world.turn(world.answer(0))
    finally:
        CURSES.update(kept)
        SPENT.update(spent)
    handle, plan = world.handles[1], request(1, ask).plan
    assert handle.end is not None
    shown = {step.name: world.progress.get((1, step.name), 0) for step in plan.steps if step.outputs}
    return Alone(handle.end.reason, handle.chunks, {o: s.finish for o, s in handle.ends.items()}, shown)
