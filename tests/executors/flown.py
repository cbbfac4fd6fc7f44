"""A toy expert on a device that is late, its executor fed message by message, and what should come out: one thing at a time.

The device is `FakeQueue`: nothing is computed until the world lets it, or somebody waits, and until then all is poison.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "experts"))
from fake_queue import FakeMark, FakeQueue

from omni_runtime.executors.flights import Flight, Flights
from omni_runtime.executors.workbench import Flying, Workbench
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.staging import Reading
from omni_runtime.work import Answer, Broken, CallStep, Drop, Message, Release, Report, Row, RunBatch, StepResult, TensorRef

HOME, LOOPS, KEPT = "gpu#1", 6, 3
MASK = (1 << 40) - 1
Key = tuple[int, str]
Event = tuple[str, int]


def name(loop: int, at: int) -> TensorRef:
    return TensorRef(HOME, loop, "loop", "out", at, (2,), "int64")


def mix(old: int, add: int, seen: Sequence[int]) -> int:
    for number in (add, *seen):
        old = (old * 31 + number + 1) & MASK
    return old


class Held:
    """What is kept of a loop: a number on the device."""

    def __init__(self) -> None:
        self.value = torch.tensor([7, 7])


@dataclass
class Flown:
    """Read and committed only when it is collected."""

    rows: Sequence[Row]
    held: list[Held]
    values: list[torch.Tensor]
    results: list[StepResult]
    reading: Reading

    def collect(self) -> list[StepResult]:
        for row, value, result in zip(self.rows, self.reading.get(), self.results, strict=True):
            if row.payload.params["fault"] == "collect":  # type: ignore[union-attr]
                raise ArithmeticError("found when it was read")
            result.items["out"] = [int(value[0])]
        for held, value in zip(self.held, self.values, strict=True):
            held.value = value
        return self.results


class Toy:
    """Ops "fly" and "list": the same, queued or waited for."""

    def __init__(self, queue: FakeQueue) -> None:
        self.queue = queue
        self.begins: Callable[[], None] = lambda: None  # called by "list" before anything else
        self.ops = {"fly": self.fly, "list": self.waited}

    def waited(self, rows: Sequence[Row], slots: Slots) -> list[StepResult]:
        self.begins()
        launched = self.fly(rows, slots)
        self.queue.run()
        return launched.collect()

    def fly(self, rows: Sequence[Row], slots: Slots) -> Flown:
        held, values, results, later = [], [], [], []
        for row in rows:
            step = row.payload
            assert isinstance(step, CallStep)
            mine, value = slots.state(row, Held), torch.full((2,), -1)
            seen = [slots.read(ref) for ref in step.tensors["seen"]]
            self.queue.put(lambda v=value, old=mine.value, s=seen, p=step.params: _compute(v, old, s, p))  # type: ignore[misc]
            refs = []
            for at in range(step.params["keep"]):
                kept = torch.full((2,), -1)
                later.append(lambda k=kept, v=value, at=at: _copy(k, v + at))  # type: ignore[misc]
                refs.append(slots.keep(row, "out", at, kept))
            held.append(mine)
            values.append(value)
            results.append(StepResult(tensors={"out": tuple(refs)}, items={}))
            if step.params["fault"] == "call":
                raise ArithmeticError("found when it was launched")
        reading = Reading(*values, queue=self.queue)
        for work in later:  # behind what is read: the batch is over when these are
            self.queue.put(work)
        return Flown(rows, held, values, results, reading)


def _compute(value: torch.Tensor, old: torch.Tensor, seen: list[torch.Tensor], params: dict[str, Any]) -> float:
    value.fill_(mix(int(old[0]), params["add"], [int(tensor[0]) for tensor in seen]))
    return float(params["seconds"])


def _copy(to: torch.Tensor, source: torch.Tensor) -> float:
    to.copy_(source)
    return 0.0


@dataclass
class Plain:
    """The same with numbers, a message at a time."""

    state: dict[int, int] = field(default_factory=dict)
    tensors: dict[TensorRef, int] = field(default_factory=dict)
    told: list[Any] = field(default_factory=list)

    def run(self, message: Message) -> None:
        if isinstance(message, Release):
            for ref in message.refs:
                self.tensors.pop(ref, None)
        elif isinstance(message, Drop):
            for run, _ in message.slots:
                self.state.pop(run, None)
        else:
            self.told.append(self.batch(message))

    def batch(self, message: RunBatch) -> Any:
        brought = {ref: int(value[0]) for ref, value in message.brought}
        tensors, values, results = dict(self.tensors), {}, []
        faults = [row.payload.params["fault"] for row in message.rows]  # type: ignore[union-attr]
        reached = faults.index("call") + 1 if "call" in faults else len(faults)
        for row in message.rows[:reached]:
            self.state.setdefault(row.run, 7)
        if any(faults):
            return message.batch, None
        for row in message.rows:
            step = row.payload
            assert isinstance(step, CallStep)
            seen = [tensors[ref] if ref in tensors else brought[ref] for ref in step.tensors["seen"]]
            value = values[row.run] = mix(self.state[row.run], step.params["add"], seen)
            kept = {name(row.run, at): value + at for at in range(step.params["keep"])}
            tensors |= kept
            results.append((value, tuple(kept.items())))
        self.tensors, self.state = tensors, self.state | values
        return message.batch, results


def said(report: Report) -> Any:
    if isinstance(report, Broken):
        assert "ArithmeticError('found when" in report.error, report
        return report.batch, None
    assert isinstance(report, Answer)
    found = []
    for result in report.results:
        refs, copies = result.tensors["out"], result.copies.get("out", ())
        assert all(copy.shape == (2,) and copy[0] == copy[1] for copy in copies) and len(refs) == len(copies)
        found.append((result.items["out"][0], tuple((ref, int(copy[0])) for ref, copy in zip(refs, copies, strict=True))))
    return report.batch, found


class World:
    """Plays events; asserts after each that no more was said, and nothing else, than should be."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.queue = FakeQueue()
        self.toy = Toy(self.queue)
        self.toy.begins = self.begins
        self.bench = Workbench(HOME, {"toy": self.toy}, "cpu", queue=self.queue)
        self.reports: list[Report] = []
        self.watched: list[Flight] = []
        self.flights = Flights(self.bench.launch, self.reports.append, self.watched.append, most)
        self.plain = Plain()
        self.sent: list[RunBatch] = []
        self.late = False

    def play(self, events: Sequence[Event]) -> None:
        for what, number in events:
            getattr(self, what)(random.Random(number))
            self.check()
        self.queue.run()
        while self.watched:
            self.flights.land(self.watched.pop(0))
        assert len(self.flights) == 0
        self.check()
        assert len(self.reports) == len(self.sent)
        assert self.bench.slots.counts == (len(self.plain.state), len(self.plain.tensors))
        for ref, value in self.plain.tensors.items():
            assert self.bench.slots.read(ref).tolist() == [value, value]
        for run, value in self.plain.state.items():
            assert self.bench.slots.other(run, "loop").value.tolist() == [value, value]

    def check(self) -> None:
        assert [said(report) for report in self.reports] == self.plain.told[: len(self.reports)]
        assert not self.late, "a batch that is waited for was begun before those that could be answered were"
        assert len(self.sent) - len(self.reports) == len(self.flights) <= self.most
        for report, batch in zip(self.reports, self.sent, strict=False):
            if isinstance(report, Answer) and batch.op == "fly":
                assert report.seconds == sum(row.payload.params["seconds"] for row in batch.rows)  # type: ignore[union-attr]

    def begins(self) -> None:
        """An op that waits keeps nobody waiting who could be answered, once it is known that it waits."""
        heard = [report for report, batch in zip(self.reports, self.sent, strict=False) if batch.op == "list"]
        if any(isinstance(report, Answer) for report in heard):
            self.late = self.late or len(self.reports) < len(self.sent) - 1

    @property
    def flying(self) -> list[RunBatch]:
        return self.sent[len(self.reports) :]

    # -- Events

    def batch(self, draw: random.Random) -> None:
        """Of loops that are not in flight; it reads what no batch in flight may still change."""
        busy = {row.run for batch in self.flying for row in batch.rows}
        free = [loop for loop in range(LOOPS) if loop not in busy]
        if not free:
            return
        op = draw.choice(("fly", "fly", "fly", "list"))
        names = [ref for ref in sorted(self.plain.tensors, key=str) if ref.run in free]
        rows, brought = [], {}
        loops = draw.sample(free, draw.randint(1, min(2, len(free))))
        for loop in loops:
            sure = [ref for ref in names if ref.run == loop or ref.run not in loops]
            seen = draw.sample(sure, min(len(sure), draw.randint(0, 2)))
            if draw.random() < 0.3:
                away = TensorRef("cpu#1", loop, "loop", "out", 0, (2,), "int64")
                brought[away] = np.array([draw.randint(0, 99)] * 2)
                seen.append(away)
            params = {"add": draw.randint(0, 999), "keep": draw.randint(0, KEPT), "seconds": draw.randint(1, 4)}
            params["fault"] = draw.choice(("", "", "", "", "", "", "call", "collect"))
            rows.append(Row(loop, "loop", 1, 0, (), CallStep(0, {}, {"seen": tuple(seen)}, params)))
        message = RunBatch(HOME, len(self.sent), "toy", op, rows, tuple(brought.items()))
        free_slot, ran = len(self.flights) < self.most, self.queue.ran
        self.sent.append(message)
        self.plain.run(message)
        self.flights.carry(message)
        over = any(row.payload.params["fault"] == "call" for row in rows)  # type: ignore[union-attr]
        if op == "fly" and free_slot and not over:  # what is over at once is answered, and so is all before it
            assert self.queue.ran == ran, "launching waited for the device"

    def release(self, draw: random.Random) -> None:
        names = [name(loop, at) for loop in range(LOOPS) for at in range(KEPT)]
        self.both(Release(HOME, tuple(draw.sample(names, draw.randint(1, 8)))))

    def drop(self, draw: random.Random) -> None:
        self.both(Drop(HOME, tuple((loop, "loop") for loop in draw.sample(range(LOOPS), draw.randint(1, 3)))))

    def both(self, message: Message) -> None:
        ran = self.queue.ran
        self.plain.run(message)
        self.flights.carry(message)
        assert self.queue.ran == ran, "a message that is no batch waited for the device"

    def run(self, draw: random.Random) -> None:
        self.queue.run(min(len(self.queue.works), self.queue.ran + draw.randint(1, 5)))

    def land(self, draw: random.Random) -> None:
        """What a watcher does: the oldest, when the device has come to its end."""
        if not self.watched:
            return
        flight = self.watched[0]
        assert isinstance(flight, Flying) and isinstance(flight._end, FakeMark)
        if flight._end.done():
            ran, heard = self.queue.ran, len(self.reports)
            known = flight in self.flights._flying
            self.flights.land(self.watched.pop(0))
            assert self.queue.ran == ran, "collecting waited for what is queued behind"
            assert len(self.reports) == heard + known, "a batch that the device has done was not answered"


KINDS = ("batch", "batch", "batch", "run", "run", "land", "land", "release", "drop")


def drawn(seed: int) -> tuple[int, list[Event]]:
    draw = random.Random(seed)
    return draw.randint(1, 3), [(draw.choice(KINDS), draw.getrandbits(32)) for _ in range(draw.randint(5, 40))]
