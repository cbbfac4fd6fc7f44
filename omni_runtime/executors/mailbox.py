"""A thread that carries out messages in the order they come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from omni_runtime.executors.flights import Flight, Flights, Launch, Watcher
from omni_runtime.work import ExecutorDown, Message, Report


class _Landed:
    """A flight that can be collected, as it lies among the messages."""

    __slots__ = ("flight",)

    def __init__(self, flight: Flight) -> None:
        self.flight = flight


class Mailbox:
    """The queue and the thread of an executor in this process.

    Args:
        name: of the executor.
        launch: carries out a message; what it returns is reported, or collected first.
        died: is told why, when the thread ends by something that was raised. Without it an `ExecutorDown` is reported.
        most: batches that may be on the device at once.
    """

    def __init__(self, name: str, launch: Launch, died: Callable[[Mailbox, str], None] | None = None, most: int = 1) -> None:
        self._name, self._died = name, died
        self._queue: SimpleQueue[Message | _Landed | None] = SimpleQueue()
        self._report: Callable[[Report], None] = lambda report: None
        self._thread: Thread | None = None
        self._abandoned = False
        self._watcher = Watcher(name, lambda flight: self._queue.put(_Landed(flight)))
        self._flights = Flights(launch, self._say, self._watcher.watch, most)

    def start(self, report: Callable[[Report], None]) -> None:
        self._report = report
        self._thread = Thread(target=self._loop, name=f"omni-{self._name}", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        self._queue.put(message)

    def close(self, wait_s: float | None = None) -> None:
        """Ends after the batches that are running, for which it waits so long; idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if threading.current_thread() is not thread:
                thread.join(wait_s)

    def abandon(self) -> None:
        """Ends as soon as the message that is being carried out lets it, carries out no other, and says nothing any more."""
        self._abandoned, self._thread = True, None
        self._queue.put(None)

    def _say(self, report: Report) -> None:
        if not self._abandoned:
            self._report(report)

    def _loop(self) -> None:
        try:
            while (item := self._queue.get()) is not None and not self._abandoned:
                if isinstance(item, _Landed):
                    self._flights.land(item.flight)
                else:
                    self._flights.carry(item)
                del item  # or the last batch's arrays live until the next one comes
            if not self._abandoned:
                self._flights.rest()
        except BaseException as error:  # the thread is going: nobody may wait for it
            if self._died is None:
                self._report(ExecutorDown(self._name, repr(error)))
            else:
                self._died(self, repr(error))
        finally:
            self._watcher.close()
