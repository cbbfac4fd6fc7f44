"""Batches that are queued on a device: launched in the order of the messages, answered in the same order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from omni_runtime.work import Answer, Broken, Message, Report, RunBatch


class Flight(Protocol):
    """A batch that was launched and not collected."""

    def wait(self) -> None:
        """Until the device has done it; in any thread. What went wrong is for `collect` to say."""
        ...

    def collect(self) -> Answer | Broken: ...


Launch = Callable[[Message], Report | Flight | None]


class Flights:
    """What is on the device, oldest first.

    A message is carried out as soon as it comes, so that a batch is launched while others are still on the device; Release and
    Drop keep their place among the batches, since nothing that is launched asks for what they take away
    (`experts.base.Launched`). A batch that the thread has to wait for is begun when those before it have been answered: it would
    keep them waiting.

    Args:
        launch: carries out a message, or as much of a batch as does not wait for the device.
        report: is told what batches gave, in their order.
        watch: is given every flight, and calls `land` with it when it can be collected, in the thread of all other calls.
        most: batches on the device.
    """

    def __init__(self, launch: Launch, report: Callable[[Report], None], watch: Callable[[Flight], None], most: int = 1) -> None:
        self._launch, self._report, self._watch, self._most = launch, report, watch, most
        self._flying: deque[Flight] = deque()
        self._waits: set[tuple[str, str]] = set()  # expert and op of those that were over when their call was

    def __len__(self) -> int:
        return len(self._flying)

    def carry(self, message: Message) -> None:
        """Carries out a message."""
        if self._flying and isinstance(message, RunBatch):
            if (message.expert, message.op) in self._waits:
                self.rest()
            while len(self._flying) >= self._most:
                self._collect()
        found = self._launch(message)
        if found is None:
            return
        if isinstance(found, Report):
            if isinstance(found, Answer) and isinstance(message, RunBatch):
                self._waits.add((message.expert, message.op))
            self.rest()
            self._report(found)
        else:
            if isinstance(message, RunBatch):
                self._waits.discard((message.expert, message.op))
            self._flying.append(found)
            self._watch(found)

    def land(self, flight: Flight) -> None:
        """Answers a batch, and those before it; nothing if it has been."""
        if flight in self._flying:
            while self._collect() is not flight:
                pass

    def rest(self) -> None:
        """Answers all that is on the device."""
        while self._flying:
            self._collect()

    def _collect(self) -> Flight:
        flight = self._flying.popleft()
        self._report(flight.collect())
        return flight


class Watcher:
    """Waits for flights in a thread of its own, which begins with the first: whoever launches can then wait for both at once, the
    next message and the end of a batch.

    Args:
        name: of the executor.
        landed: is called in that thread with each flight that can be collected, in order.
    """

    def __init__(self, name: str, landed: Callable[[Flight], None]) -> None:
        self._name, self._landed = name, landed
        self._queue: SimpleQueue[Flight | None] = SimpleQueue()
        self._thread: Thread | None = None

    def watch(self, flight: Flight) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._loop, name=f"omni-{self._name}-watch", daemon=True)
            self._thread.start()
        self._queue.put(flight)

    def close(self) -> None:
        """Ends the thread after the flights that it knows; it is not waited for."""
        self._queue.put(None)

    def _loop(self) -> None:
        while (flight := self._queue.get()) is not None:
            flight.wait()
            self._landed(flight)
            del flight  # or it lives, with all that its batch holds, until the next one comes
