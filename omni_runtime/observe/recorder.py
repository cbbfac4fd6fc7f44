"""The recorder: an observer of the core that keeps, of the last units, when and why each ran."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from threading import Lock
from typing import Any

from msgspec import Struct

from omni_runtime.observe.record import BatchFact, Record, RunFact, UnitFact
from omni_runtime.orders import Admitted, BatchDone, BatchFailed, Blocked, Evict, LoopDone, Parked, UnitReady, Withdrawn
from omni_runtime.work import (
    ArStep,
    AudioStep,
    Chunk,
    Command,
    DenoiseStep,
    End,
    ExecutorDown,
    FlowStep,
    Input,
    Payload,
    RunBatch,
    Submit,
    WorkUnit,
)

REMEMBERED = 50_000  # units; about 0.4 kB each
ENDED = 1000  # requests that are remembered even if none of their units is
LOOK_BACK = 256  # batches of an executor that a wait is explained with


class LoopNow(Struct):
    """Where a loop of a live run stands."""

    name: str
    kind: str
    state: str = "input"  # input | reader | memory | ready | runs | done
    on: tuple[str, ...] = ()  # which loops it waits for, with `input` and `reader`
    units: int = 0  # that came back
    drawn: int = 0  # tokens among them
    index: int = 0  # of the step that was dispatched last, and how many there are: see UnitFact
    goal: int = 0
    began: float = 0.0  # when its first unit was dispatched
    moved: float = 0.0  # when a unit last came back


class RunNow(Struct):
    """A live run: its facts, and its loops in the order of the program."""

    fact: RunFact
    loops: list[LoopNow]


class _Loop:
    """Book of a loop: its offer, and what it waited for before that."""

    __slots__ = ("at", "behind", "blocked", "drawing", "due", "now", "offer", "on", "parked", "ready", "since", "suspect")

    def __init__(self, now: LoopNow) -> None:
        self.now = now
        self.offer: WorkUnit | None = None
        self.ready = self.due = self.since = 0.0
        self.behind = 0  # batches that had been dispatched when it was ready
        self.blocked = ""
        self.on: tuple[str, ...] = ()
        self.parked = False  # it waited for blocks
        self.suspect = -1  # progress that it must pass alone
        self.drawing = False  # the unit in flight draws a token
        self.at = 0


class _Run:
    __slots__ = ("fact", "loops")

    def __init__(self, fact: RunFact) -> None:
        self.fact = fact
        self.loops: dict[str, _Loop] = {}
        for name in fact.kinds:
            self.loop(name)

    def loop(self, name: str) -> _Loop:
        """Of a loop of the program, or of one of its samples, as in "think#1"."""
        found = self.loops.get(name)
        if found is None:
            kind = self.fact.kinds[name.partition("#")[0]]
            if name not in self.fact.kinds:
                self.fact.kinds = {**self.fact.kinds, name: kind}  # another one: somebody may be reading the old
            found = self.loops[name] = _Loop(LoopNow(name, kind))
        return found


class Recorder:
    """Give it to `Runtime(..., observers=[recorder])` or `Simulation(..., observers=[recorder])`.

    It is told by the core's thread and asked from any; both hold a lock for microseconds.

    Args:
        units: that are remembered; older ones are forgotten and counted.
    """

    def __init__(self, units: int = REMEMBERED) -> None:
        self._units: deque[UnitFact] = deque(maxlen=units)
        self._ended: deque[RunFact] = deque(maxlen=ENDED)
        self._seen = 0  # units
        self._now = 0.0
        self._runs: dict[int, _Run] = {}
        self._flying: dict[int, tuple[BatchFact, list[_Loop]]] = {}
        self._recent: dict[str, deque[BatchFact]] = {}  # executor -> its last batches
        self._free: dict[str, float] = {}  # executor -> when its last batch was answered
        self._batch = 0  # number of the last batch
        self._lock = Lock()

    # -- Asked

    def record(self) -> Record:
        """A copy of all that is remembered."""
        with self._lock:
            units = list(self._units)
            runs = {fact.id: fact for fact in [*self._ended, *(u.run for u in units), *(r.fact for r in self._runs.values())]}
            return Record(units, [runs[key] for key in sorted(runs)], self._now, self._seen - len(units))

    def live(self) -> list[RunNow]:
        """The runs that are alive, oldest first."""
        with self._lock:
            return [RunNow(run.fact, [copy(loop.now) for loop in run.loops.values()]) for run in self._runs.values()]

    # -- Told

    def see(self, now: float, inputs: Sequence[Input], said: Sequence[Any], commands: Sequence[Command]) -> None:
        """See `core.Observer`."""
        with self._lock:
            self._now = now
            for item in inputs:
                if type(item) is Submit:
                    self._submit(now, item)
            for word in said:
                told = SAID.get(type(word))
                if told is not None:
                    told(self, now, word)
            for command in commands:
                if type(command) is RunBatch:
                    self._dispatch(now, command)
                elif type(command) is Chunk:
                    fact = self._runs[command.run].fact
                    name = f"{command.output}#{command.sample}" if command.sample else command.output
                    if name not in fact.first:
                        fact.first, fact.items = {**fact.first, name: now}, {**fact.items, name: 0}
                    fact.items[name] += len(command.items)
                elif type(command) is End:
                    self._end(now, command)

    def _submit(self, now: float, item: Submit) -> None:
        kinds, rates = {}, {}
        for step in item.plan.steps:
            kinds[step.name] = step.spec.kind
            for outputs in step.outputs.values():
                rates.update(dict.fromkeys(outputs, getattr(step.spec, "sample_rate", 0)))
        rates = {name: rate for name, rate in rates.items() if rate}
        fact = RunFact(item.run, item.label, item.plan.program, now, item.priority, item.plan.outputs, kinds, rates)
        self._runs[item.run] = _Run(fact)

    def _loop(self, run: int, name: str) -> _Loop | None:
        found = self._runs.get(run)  # an ended run is told about once more when its books close
        return None if found is None else found.loop(name)

    def _blocked(self, now: float, word: Blocked) -> None:
        loop = self._loop(word.run, word.loop)
        if loop is None:
            return
        loop.now.state, loop.now.on = word.why, word.on
        if word.why != loop.blocked:
            loop.blocked, loop.since = word.why, now
        loop.on = word.on

    def _ready(self, now: float, word: UnitReady) -> None:
        run = self._runs.get(word.unit.run)
        if run is None:
            return
        loop = run.loop(word.unit.loop)
        if loop.offer is None:
            loop.ready, loop.due, loop.behind = now, word.due, self._batch
            kind = word.unit.kind
            pooled = kind.block or kind.fixed
            loop.now.state = "memory" if pooled and run.fact.admitted is None else "ready"
        loop.offer = word.unit

    def _withdrawn(self, now: float, word: Withdrawn) -> None:
        loop = self._loop(word.run, word.loop)
        if loop is not None:
            loop.offer, loop.parked = None, False

    def _admitted(self, now: float, word: Admitted) -> None:
        run = self._runs.get(word.run)
        if run is not None:
            run.fact.admitted = now
            for loop in run.loops.values():
                if loop.now.state == "memory":
                    loop.now.state = "ready"

    def _parked(self, now: float, word: Parked) -> None:
        loop = self._loop(word.run, word.loop)
        if loop is not None:
            loop.parked, loop.now.state = True, "memory"

    def _evict(self, now: float, word: Evict) -> None:
        """What it offered is void, and is offered again."""
        run = self._runs.get(word.run)
        if run is not None:
            run.fact.rebuilt += 1
            for loop in run.loops.values():
                loop.offer, loop.parked = None, False

    def _loop_done(self, now: float, word: LoopDone) -> None:
        loop = self._loop(word.run, word.loop)
        if loop is not None:
            loop.now.state = "done"

    def _dispatch(self, now: float, command: RunBatch) -> None:
        size = 0
        for row in command.rows:
            size += row.size
        loops: list[_Loop] = []
        batch = BatchFact(command.batch, command.executor, command.expert, command.op, (), len(command.rows), size, now, now)
        recent = self._recent.get(command.executor)
        if recent is None:
            recent = self._recent[command.executor] = deque(maxlen=LOOK_BACK)
        self._batch = max(self._batch, command.batch)
        asked, waited = (-1, 0.0), (0, 0, 0)
        for place, row in enumerate(command.rows):
            run = self._runs[row.run]
            loop = run.loop(row.loop)
            unit, fact, state = loop.offer, run.fact, loop.now
            assert unit is not None, f"run {row.run}: {row.loop} was never ready"
            batch.key = unit.kind.key
            index, goal = _step(row.payload)
            copied = row.fork.length if row.fork is not None else 0
            memory = loop.ready
            if (unit.kind.block or unit.kind.fixed) and fact.admitted is not None and fact.admitted > memory:
                memory = fact.admitted
            if loop.parked:
                memory, loop.parked = now, False
            since = (loop.behind, memory)
            if since != asked:  # most members of a batch became ready together
                asked, waited = since, _waited(recent, batch, *since) if now > memory else (0, 0, 0)
            self._units.append(
                UnitFact(
                    fact, row.loop, batch, place, row.size + copied, copied, unit.lo, unit.hi, unit.at, index, goal,
                    loop.ready, loop.due, memory, unit.at <= loop.suspect, *waited,
                    loop.blocked, loop.on, loop.since if loop.blocked else loop.ready,
                )
            )  # fmt: skip
            loop.offer, loop.blocked, loop.on, loop.at = None, "", (), unit.at
            loop.drawing = type(row.payload) is ArStep and index >= 0
            state.state, state.index, state.goal = "runs", index, goal
            state.began = state.began or now
            loops.append(loop)
        self._seen += len(loops)
        self._flying[command.batch] = (batch, loops)
        recent.append(batch)

    def _back(self, now: float, number: int, outcome: str, seconds: float = 0.0) -> list[_Loop]:
        batch, loops = self._flying.pop(number, (None, []))
        if batch is not None:  # a batch whose members had all ended was never sent
            free = self._free.get(batch.executor, 0.0)  # it answers in order, so nothing of this batch ran before
            batch.started = max(batch.dispatched, free, now - seconds if seconds else 0.0)
            batch.seconds, batch.outcome, batch.answered = seconds, outcome, now
            self._free[batch.executor] = now
            for loop in loops:
                if loop.now.state == "runs":
                    loop.now.state, loop.now.on = "input", ()
        return loops

    def _done(self, now: float, word: BatchDone) -> None:
        for loop in self._back(now, word.batch, "done", word.seconds):
            loop.now.units += 1
            loop.now.drawn += loop.drawing
            loop.now.moved = now
            if loop.at >= loop.suspect:
                loop.suspect = -1

    def _failed(self, now: float, word: BatchFailed) -> None:
        loops = self._back(now, word.batch, "broken")
        if len(loops) > 1:
            for loop in loops:
                loop.suspect = max(loop.suspect, loop.at)

    def _down(self, now: float, word: ExecutorDown) -> None:
        for number in [n for n, (batch, _) in self._flying.items() if batch.executor == word.executor]:
            self._back(now, number, "lost")
        self._recent.pop(word.executor, None)
        self._free.pop(word.executor, None)

    def _end(self, now: float, command: End) -> None:
        run = self._runs.pop(command.run)
        run.fact.ended, run.fact.reason, run.fact.detail = now, command.reason, command.detail
        self._ended.append(run.fact)


def _step(payload: Payload) -> tuple[int, int]:
    """What a step is, and how many there are where that is known."""
    if type(payload) is ArStep:
        return payload.index, 0
    if type(payload) is DenoiseStep:
        return payload.step, payload.steps
    if type(payload) is FlowStep:
        return payload.call, payload.calls
    if type(payload) is AudioStep:
        return payload.start, 0
    return getattr(payload, "index", 0), 0


def _waited(recent: deque[BatchFact], mine: BatchFact, before: int, since: float) -> tuple[int, int, int]:
    """The batch that the executor was busy with, and how many of other groups and of one's own went first.

    Args:
        recent: batches of the executor, the newest last.
        mine: the batch that is dispatched now.
        before: number of the last batch when the unit was ready.
        since: when it could have run.
    """
    behind = beaten = full = 0
    for batch in reversed(recent):
        if batch.number > before and batch.dispatched >= since:
            if (batch.expert, batch.op, batch.key) == (mine.expert, mine.op, mine.key):
                full += 1
            else:
                beaten += 1
        elif batch.answered is None or batch.answered > since:
            behind = batch.number
        else:
            break
    return behind, beaten, full


SAID: dict[type, Callable[[Recorder, float, Any], None]] = {
    Admitted: Recorder._admitted,
    BatchDone: Recorder._done,
    BatchFailed: Recorder._failed,
    Blocked: Recorder._blocked,
    Evict: Recorder._evict,
    ExecutorDown: Recorder._down,
    LoopDone: Recorder._loop_done,
    Parked: Recorder._parked,
    UnitReady: Recorder._ready,
    Withdrawn: Recorder._withdrawn,
}
