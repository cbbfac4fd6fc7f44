"""The core: flow and scheduler behind one door. Pure, so it can be tested without a device, replayed and simulated."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from omni_runtime.card import OpLimits
from omni_runtime.flow.flow import Flow
from omni_runtime.orders import Admitted, Blocked, Dispatch, Event, Evict, Instruction
from omni_runtime.scheduler import check as books
from omni_runtime.scheduler.book import ExecBook
from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.policy import Policy
from omni_runtime.scheduler.scheduler import Scheduler
from omni_runtime.work import Answer, Broken, Command, End, ExecutorDown, ExecutorUp, Input, Submit

EVICTED = {"memory": "gave its memory to a senior", "preempted": "preempted", "lost": "its executor is gone"}
REMEMBERED = 4096  # entries of the log that `story` reads; the oldest are forgotten


class Observer(Protocol):
    """Is told after every feed, in the thread that feeds, what came in, what was said inside and what went out.

    It changes nothing that it is given and is back within microseconds. One that raises is told nothing more. One with a method
    `before(now, inputs)` is told each feed before it is applied, too: the feed that breaks the core has no after.
    """

    def see(
        self, now: float, inputs: Sequence[Input], said: Sequence[Event | Blocked | Instruction], commands: Sequence[Command]
    ) -> None:
        """`said` is what flow and scheduler told each other, in order."""
        ...


class Core:
    """Requests and reports in, commands out.

    The same inputs at the same times give the same commands: there is no clock, no thread, no device and no randomness here.

    Args:
        limits: ("card/expert", op) -> what fits into one batch.
        max_runs: live runs before new ones are refused.
        costs: prices and paces that are known; they are learned further.
        policy: what is done in which order.
        watchdog: seconds that every batch may take, and how many times what was predicted for it, before its executor counts as
            hung; None: whatever it takes.
        tenants: weights by name; see `Scheduler`.
        observers: are told what happens; they decide nothing, and without any nothing is gathered.
        remembered: entries of the log that `story` reads; None: all.
    """

    def __init__(
        self,
        limits: Mapping[tuple[str, str], OpLimits],
        max_runs: int = 20_000,
        observers: Iterable[Observer] = (),
        costs: Costs | None = None,
        policy: Policy | None = None,
        tenants: Mapping[str, float] | None = None,
        watchdog: tuple[float, float] | None = None,
        remembered: int | None = REMEMBERED,
    ) -> None:
        self.observers = list(observers)
        self.watchdog = watchdog
        self.scheduler = Scheduler(limits, max_runs, costs, policy, tenants)
        policy = self.scheduler.policy
        self.flow = Flow(self.scheduler.costs, policy.sized, self.scheduler.supply.safe, policy.whole)
        self._log: deque[tuple[float, Any]] = deque(maxlen=remembered)

    def feed(self, now: float, *inputs: Input) -> list[Command]:
        """The one door. Commands are to be carried out in the order given.

        Args:
            now: seconds on any clock that never runs backwards.
        """
        flow, scheduler = self.flow, self.scheduler
        if self.observers:
            self._show("before", now, inputs)
        flow.now = now
        out: list[Command] = []
        flow.out = out
        said: list[Event | Blocked | Instruction] | None = [] if self.observers else None
        flow.observed = said is not None
        for item in inputs:
            if type(item) is Submit:  # without what it carries: thousands are remembered
                self._log.append((now, replace(item, inputs={}, params={})))
            elif type(item) is not Answer:
                self._log.append((now, item))
            flow.apply(item)
        while True:
            flow.settle()
            events: list[Any] = flow.events
            if not events:
                break
            flow.events = []
            if said is not None:
                said += events
                events = [event for event in events if type(event) is not Blocked]
                if not events:
                    break
            orders = scheduler.handle(now, events)
            if said is not None:
                said += orders
            for order in orders:
                if type(order) is Dispatch or type(order) is Admitted or type(order) is Evict:
                    self._log.append((now, order))
                flow.obey(order)
        if flow.ends:
            self._log.extend((now, end) for end in flow.ends)
            flow.ends = []
            for at, command in enumerate(out):
                if type(command) is End:
                    out[at] = replace(command, seconds=scheduler.spent(command.run))
        scheduler.billed.clear()
        if said is not None:
            flow.observed = False  # whoever only looks, as `check` does, is not told about
            self._show("see", now, inputs, said, out)
        return out

    def _show(self, hook: str, now: float, *what: Any) -> None:
        for observer in list(self.observers):
            try:
                if (told := getattr(observer, hook, None)) is not None:
                    told(now, *what)
            except Exception as error:  # whoever looks on must not hurt whoever works
                self.observers.remove(observer)
                self._log.append((now, f"observer {type(observer).__name__} raised {error!r} and is told nothing more"))

    def next_look(self) -> float | None:
        """The moment by which a batch that is in flight should be back; None: nothing is, or nobody watches."""
        if self.watchdog is None:
            return None
        return min((ex.since + self._patience(ex) for ex in self.scheduler.executors.values() if ex.flying), default=None)

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """Executors that should have answered, each with a sentence. Whoever watches declares them lost."""
        found = []
        if self.watchdog is not None:
            for ex in self.scheduler.executors.values():
                if ex.flying and now >= ex.since + self._patience(ex):
                    batch, members = next(iter(ex.flying.items()))
                    what = f"batch {batch} of {len(members)} {'.'.join(ex.groups[batch][:2])}"
                    expected = ex.bills[batch].total
                    found.append((ex.name, f"{what} took {now - ex.since:.1f} s and is not back; {expected:.3g} s were expected"))
        return found

    def _patience(self, ex: ExecBook) -> float:
        assert self.watchdog is not None
        least, factor = self.watchdog
        return max(least, factor * next(iter(ex.bills.values())).total)

    def check(self) -> None:
        """Re-derives every book and looks for lost wake-ups and idle executors.

        Raises:
            AssertionError: two books disagree; the message says which.
        """
        self.flow.check()
        books.check(self.scheduler)
        assert self.flow.runs.keys() >= self.scheduler.runs.keys(), "the scheduler knows a run that the flow does not"
        assert set(self.flow.flying) == set(self.scheduler.where), "batches in flight"
        for run in self.flow.runs.values():
            assert run.id in self.scheduler.runs, f"run {run.id} has no book"
        if not self.scheduler.where:  # nothing is in flight: whoever is alive waits for an executor that will be back
            scheduler = self.scheduler
            stranded = any(scheduler.runs[number].stranded for number in scheduler.supply.streams)
            for number in self.flow.runs:  # or for those that do so to play, which was promised to them
                waits = scheduler.runs[number].stranded or (stranded and number in scheduler.admission.held)
                assert waits and scheduler.awaited, f"nothing runs: {self.story(number)}"

    def check_idle(self) -> None:
        """Raises AssertionError unless nothing is alive and every book is at its baseline."""
        assert not self.flow.runs and not self.flow.flying and not self.flow.todo
        books.idle(self.scheduler)

    def story(self, run: int) -> list[str]:
        """What led a run to where it is, oldest first: lines of at most the last REMEMBERED entries of all runs."""
        lines = []
        mine: set[int] = set()  # batches with a unit of the run
        for now, item in list(self._log):  # a copy: the engine's thread may be adding to it
            told = _tell(item, run)
            if told and isinstance(item, Dispatch):
                mine.add(item.batch)
            if told and not (isinstance(item, Broken) and item.batch not in mine):
                lines.append(f"{now:.6f} {told}")
        state = self.flow.runs.get(run)
        if state is None:
            return [*lines, f"run {run} is not alive"]
        for node in state.nodes.values():
            waits = "in flight" if node.busy else "done" if node.done else "offers" if node.offered else "waits for input"
            lines.append(f"now: {node.name} {waits}, {node.units} units done" + (", held back" if node.held_back() else ""))
        book = self.scheduler.runs.get(run)
        seconds = self.scheduler.admission.held.get(run)
        if seconds is not None:
            lines.append(f"now: waits until its guarantee can be kept, about {seconds:.1f} s by the last estimate")
        elif book is not None and book.stranded:
            lines.append(f"now: waits for an executor to be back: {', '.join(sorted(self.scheduler.awaited))}")
        elif book is not None and book.id in self.scheduler.admission.waiting:
            needs = self.scheduler.admission.needs(self.scheduler.executors, book) or {}
            lines.append(f"now: waits at the door for {sum(needs.values())} KV blocks; the pools are full")
        elif book is not None and (parked := [offer for offer in book.offers.values() if offer.parked]):
            lines.append(f"now: waits for {sum(offer.need for offer in parked)} more KV blocks; the pools are full")
        still = ", ".join(dict.fromkeys(name for name, _ in state.open))
        return [*lines, f"now: run {run} " + (f"ended ({state.ended})" if state.ended else f"open: {still}")]


def _tell(item: Any, run: int) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Submit) and item.run == run:
        return f"submit {item.plan.program} for {', '.join(item.plan.outputs)}"
    if isinstance(item, Dispatch):
        mine = [f"{g.loop} x{g.size}" for g in item.grants if g.run == run]
        beside = f" beside {len(item.grants) - len(mine)}" if len(item.grants) > len(mine) else ""
        return f"batch {item.batch} on {item.executor}: {', '.join(mine)}{beside}" if mine else ""
    if isinstance(item, Broken):
        return f"batch {item.batch} broke: {item.error}"
    if isinstance(item, ExecutorUp | ExecutorDown):
        if isinstance(item, ExecutorUp):
            return f"executor {item.executor} up" + (", batch-invariant" if item.batch_invariant else "")
        return f"executor {item.executor} down"
    if isinstance(item, Evict) and item.run == run:
        what = ", ".join(item.loops) or "nothing yet"
        return f"{EVICTED[item.why]}: begins again with {what}"
    if isinstance(item, Admitted) and item.run == run:
        return f"admitted with {sum(item.blocks.values())} blocks"
    if isinstance(item, End) and item.run == run:
        return f"ended: {item.reason}" + (f", {item.detail}" if item.detail else "")
    if getattr(item, "run", None) == run and not isinstance(item, Submit | End):
        return type(item).__name__.lower()
    return ""
