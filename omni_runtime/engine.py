"""The thread around the core: events in, commands out to executors and handles. It decides nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, Protocol, TypeVar

from omni_runtime.core import Core
from omni_runtime.errors import CardError, EngineStopped
from omni_runtime.executors.base import Executor
from omni_runtime.work import (
    Cancel,
    Chunk,
    Command,
    Drop,
    End,
    ExecutorDown,
    ExecutorUp,
    Input,
    OutputEnd,
    Played,
    Release,
    Report,
    RunBatch,
    Submit,
    Waiting,
    base,
)

T = TypeVar("T")
News = Chunk | OutputEnd | Waiting | End
CLOSED = "the runtime was closed; make a new one"
NEVER = float("inf")
STOP_S = 30.0  # seconds that closing waits for the batches that run


class Question(NamedTuple):
    """Something that is looked up between two feeds."""

    ask: Callable[[], Any]
    answer: Callable[[Any], None]


class Stop(NamedTuple):
    """Nothing new is taken: what is alive has so many seconds."""

    grace_s: float


class Gate:
    """The way of an executor's reports into the inbox: the first of them is that it is up."""

    def __init__(self, inbox: SimpleQueue[Any]) -> None:
        self._inbox, self._lock = inbox, Lock()
        self._early: list[Report] | None = []

    def report(self, report: Report) -> None:
        with self._lock:
            if self._early is None:
                self._inbox.put(report)
            else:  # it died before `start` was back
                self._early.append(report)

    def open(self, up: ExecutorUp) -> None:
        with self._lock:
            early, self._early = self._early or [], None
            for report in (up, *early):
                self._inbox.put(report)


class Sink(Protocol):
    """Where the news of a run goes."""

    def deliver(self, now: float, news: News) -> None: ...


class Engine:
    """Owns the core, a thread, and the inbox that everything goes through.

    Args:
        core: fed by the thread alone.
        executors: are started here, in order.
        clock: seconds; never runs backwards.
        stop_s: seconds that closing waits for the batches that run; who runs longer is declared lost.

    Raises:
        OmniError: an executor could not start; those that had are closed again.
    """

    def __init__(
        self, core: Core, executors: list[Executor], clock: Callable[[], float] = time.monotonic, stop_s: float = STOP_S
    ) -> None:
        self._core = core
        self._clock = clock
        self._stop_s = stop_s
        self._inbox: SimpleQueue[Input | Question | Stop] = SimpleQueue()
        self._sinks: dict[int, Sink] = {}
        self._lock = Lock()
        self._stopped: str | None = None  # why nothing more is taken
        self._over = False  # the thread takes nothing from the inbox any more
        self._executors: dict[str, Executor] = {}
        names = [base(executor.name) for executor in executors]
        if len(set(names)) < len(names):
            raise CardError(f"executors: each needs a name of its own, not {names}")
        try:
            self._executors = dict(zip(names, executors, strict=True))
            for executor in executors:
                if launch := getattr(executor, "launch", None):  # processes load at the same time
                    launch()
            for executor in executors:
                gate = Gate(self._inbox)
                up = executor.start(gate.report)
                if up.slots < 1 or min(up.pools.values(), default=0) < 0:
                    raise CardError(
                        f"executor {up.executor!r}: at least 1 slot and pools from 0 blocks on, not {up.slots}, {up.pools}"
                    )
                gate.open(up)
        except BaseException:
            for executor in self._executors.values():
                executor.close()
            raise
        self._thread = Thread(target=self._loop, name="omni-engine", daemon=True)
        self._thread.start()

    # -- From any thread

    def submit(self, submit: Submit, sink: Sink) -> None:
        """
        Raises:
            EngineStopped: nothing more is taken.
        """
        with self._lock:
            if self._stopped is not None:
                raise EngineStopped(self._stopped)
            self._sinks[submit.run] = sink
            self._inbox.put(submit)

    def cancel(self, run: int) -> None:
        """Ends a run at once. Unknown and ended runs are left alone."""
        if not self._over:
            self._inbox.put(Cancel(run))

    def played(self, run: int, output: str, seconds: float, sample: int) -> None:
        """So much of a sound output has been heard. Of unknown and ended runs it means nothing."""
        if not self._over:
            self._inbox.put(Played(run, output, seconds, sample))

    def costs(self) -> dict[str, Any]:
        """What was learned of prices and paces, as `Costs.save` gives it."""
        return self._ask(self._core.scheduler.costs.save)

    def accounts(self) -> dict[str, dict[str, float]]:
        """What every tenant has had."""
        return self._ask(self._core.scheduler.accounts)

    def _ask(self, question: Callable[[], T]) -> T:
        """Asks the core something in the engine's thread, between two feeds; in the caller's, once that thread has ended."""
        answer: SimpleQueue[T] = SimpleQueue()
        with self._lock:
            if running := not self._over:
                self._inbox.put(Question(question, answer.put))
        if running:
            return answer.get()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        return question()

    def close(self, grace_s: float = 0.0) -> None:
        """Takes nothing more, ends what is alive after so many seconds, waits for the batches that run, and stops every thread.

        Idempotent; a call with less grace than another that is under way cuts that one short.
        """
        with self._lock:
            if not self._over:
                self._stopped = self._stopped or CLOSED
                self._inbox.put(Stop(grace_s))
        if threading.current_thread() is not self._thread:  # the garbage collector may call from any thread
            self._thread.join()
        for executor in self._executors.values():
            executor.close()

    def story(self, run: int) -> list[str]:
        """What led a run to where it is, oldest first."""
        return self._core.story(run)

    @property
    def idle(self) -> bool:
        """Whether no run is alive and no book is open."""
        return not self._sinks and not self._core.flow.runs and self._inbox.empty()

    # -- The thread

    def _loop(self) -> None:
        try:
            self._serve()
            self._end(CLOSED)
        except BaseException as error:
            self._end(f"the core broke, which is a bug of omni_runtime: {error!r}", story=True)
            if not isinstance(error, Exception):
                raise

    def _serve(self) -> None:
        core, clock = self._core, self._clock
        ends = stops = NEVER  # when the runs that are alive are ended; when nobody is waited for any more
        look: float | None = None
        while not (ends < NEVER and not core.flow.runs):
            items: list[Input] = []
            for item in self._taken(min(ends if stops == NEVER else stops, NEVER if look is None else look)):
                if isinstance(item, Stop):
                    ends = min(ends, clock() + item.grace_s)
                elif isinstance(item, Question):
                    item.answer(item.ask())
                else:
                    items.append(item)
            if ends <= clock() and stops == NEVER:
                stops = clock() + self._stop_s
                items += [Cancel(run) for run in self._sinks]
                self._tell_all(CLOSED)
            for command in core.feed(clock(), *items):
                self._carry_out(command)
            for name, sentence in core.overdue(clock()):
                self._lose(name, sentence)
            look = core.next_look()
            if stops <= clock():
                for executor in self._executors.values():
                    self._lose(executor.name, "the runtime was closed")
                return

    def _taken(self, until: float) -> list[Input | Question | Stop]:
        """All that is in the inbox, once there is anything, or nothing at that time: one plan is made for all of it."""
        inbox = self._inbox
        try:
            first = inbox.get(timeout=max(0.0, until - self._clock())) if until < NEVER else inbox.get()
        except Empty:
            return []
        return [first, *(inbox.get() for _ in range(inbox.qsize()))]

    def _lose(self, name: str, sentence: str) -> None:
        """An executor is taken for dead: it says so itself, or, where it cannot, its next reports mean nothing to the core."""
        executor = self._executors.get(base(name))
        if executor is None or executor.name != name:
            return
        lose = getattr(executor, "lose", None)
        if lose is None:
            self._inbox.put(ExecutorDown(name, sentence))
        else:
            lose(sentence)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, RunBatch | Release | Drop):
            executor = self._executors.get(base(command.executor))
            if executor is not None and executor.name == command.executor:  # a successor knows nothing of this
                executor.send(command)
            return
        sink = self._sinks.get(command.run)
        if sink is None:  # it has had its last word
            return
        if type(command) is End:
            del self._sinks[command.run]
        try:
            sink.deliver(self._clock(), command)
        except Exception as error:  # what a request is told cannot be shown: its end, and nobody else's
            if isinstance(command, Chunk | OutputEnd):
                self._inbox.put(Cancel(command.run))
                self._sinks.pop(command.run, None)
                sink.deliver(
                    self._clock(), End(command.run, "failed", f"{type(command).__name__} of {command.output!r}: {error!r}")
                )

    def _end(self, why: str, story: bool = False) -> None:
        """Nobody may wait for an engine that is gone: every question its answer, every handle its last word."""
        with self._lock:
            self._over, self._stopped = True, why
        self._tell_all(why, story)
        while not self._inbox.empty():
            if isinstance(item := self._inbox.get(), Question):
                item.answer(item.ask())

    def _tell_all(self, why: str, story: bool = False) -> None:
        sinks, self._sinks = self._sinks, {}
        for run, sink in sinks.items():
            told = "\n  ".join(["", *self._core.story(run)]) if story else ""
            sink.deliver(self._clock(), End(run, "stopped", why + told))
