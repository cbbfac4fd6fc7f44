"""The thread around the core: events in, commands out to executors and handles. It decides nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
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
    Input,
    OutputEnd,
    Played,
    Release,
    RunBatch,
    Submit,
    Waiting,
)

T = TypeVar("T")
News = Chunk | OutputEnd | Waiting | End


class Question(NamedTuple):
    """Something that is looked up between two feeds."""

    ask: Callable[[], Any]
    answer: Callable[[Any], None]


class Sink(Protocol):
    """Where the news of a run goes."""

    def deliver(self, now: float, news: News) -> None: ...


class Engine:
    """Owns the core, a thread, and the inbox that everything goes through.

    Args:
        core: fed by the thread alone.
        executors: are started here, in order.
        clock: seconds; never runs backwards.

    Raises:
        OmniError: an executor could not start; those that had are closed again.
    """

    def __init__(self, core: Core, executors: list[Executor], clock: Callable[[], float] = time.monotonic) -> None:
        self._core = core
        self._clock = clock
        self._inbox: SimpleQueue[Input | Question | None] = SimpleQueue()
        self._sinks: dict[int, Sink] = {}
        self._lock = Lock()
        self._stopped: str | None = None
        self._executors: dict[str, Executor] = {}
        names = [executor.name for executor in executors]
        if len(set(names)) < len(names):
            raise CardError(f"executors: each needs a name of its own, not {names}")
        try:
            for executor in executors:
                self._executors[executor.name] = executor
                up = executor.start(self._inbox.put)
                if up.slots < 1 or min(up.pools.values(), default=0) < 0:
                    raise CardError(
                        f"executor {up.executor!r}: at least 1 slot and pools from 0 blocks on, not {up.slots}, {up.pools}"
                    )
                self._inbox.put(up)
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
        if self._stopped is None:
            self._inbox.put(Cancel(run))

    def played(self, run: int, output: str, seconds: float, sample: int) -> None:
        """So much of a sound output has been heard. Of unknown and ended runs it means nothing."""
        if self._stopped is None:
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
            if running := self._stopped is None:
                self._inbox.put(Question(question, answer.put))
        if running:
            return answer.get()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        return question()

    def close(self) -> None:
        """Cancels what is alive, waits for the batches that run, and stops every thread; idempotent."""
        with self._lock:
            if self._stopped is None:
                self._stopped = "the runtime is closed; make a new one"
                self._inbox.put(None)
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
        except BaseException as error:
            self._give_up(f"the core broke, which is a bug of omni_runtime: {error!r}")
            if not isinstance(error, Exception):
                raise

    def _serve(self) -> None:
        inbox, core, clock = self._inbox, self._core, self._clock
        closing = False
        while not (closing and not core.flow.runs):
            items: list[Input] = []
            first = inbox.get()
            for item in (first, *(inbox.get() for _ in range(inbox.qsize()))):  # all that is there: one plan for all of it
                if item is None:
                    closing = True
                    items += [Cancel(run) for run in self._sinks]
                elif isinstance(item, Question):
                    item.answer(item.ask())
                else:
                    items.append(item)
            for command in core.feed(clock(), *items):
                self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, RunBatch | Release | Drop):
            executor = self._executors.get(command.executor)
            if executor is not None:
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

    def _give_up(self, why: str) -> None:
        """Nobody may wait for an engine that is gone: every handle gets its last word."""
        with self._lock:
            self._stopped = why
            sinks, self._sinks = self._sinks, {}
        while not self._inbox.empty():
            if isinstance(item := self._inbox.get(), Question):
                item.answer(item.ask())
        for run, sink in sinks.items():
            story = "\n  ".join(self._core.story(run))
            sink.deliver(self._clock(), End(run, "stopped", f"{why}\n  {story}"))
