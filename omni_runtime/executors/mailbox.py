"""A thread that carries out messages in the order they come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from omni_runtime.work import ExecutorDown, Message, Report


class Mailbox:
    """The queue and the thread of an executor in this process.

    Args:
        name: of the executor.
        run: carries out a message; what it returns is reported.
        died: is told why, when the thread ends by something that `run` raised. Without it an `ExecutorDown` is reported.
    """

    def __init__(
        self, name: str, run: Callable[[Message], Report | None], died: Callable[[Mailbox, str], None] | None = None
    ) -> None:
        self._name, self._run, self._died = name, run, died
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        self._report: Callable[[Report], None] = lambda report: None
        self._thread: Thread | None = None
        self._abandoned = False

    def start(self, report: Callable[[Report], None]) -> None:
        self._report = report
        self._thread = Thread(target=self._loop, name=f"omni-{self._name}", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        self._queue.put(message)

    def close(self, wait_s: float | None = None) -> None:
        """Ends after the message that is being carried out, for which it waits so long; idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if threading.current_thread() is not thread:
                thread.join(wait_s)

    def abandon(self) -> None:
        """Ends as soon as the message that is being carried out lets it, and carries out no other."""
        self._abandoned, self._thread = True, None
        self._queue.put(None)

    def _loop(self) -> None:
        try:
            while (message := self._queue.get()) is not None and not self._abandoned:
                if (report := self._run(message)) is not None:
                    self._report(report)
                del message, report  # or the last batch's arrays live until the next one comes
        except BaseException as error:  # the thread is going: nobody may wait for it
            if self._died is None:
                self._report(ExecutorDown(self._name, repr(error)))
            else:
                self._died(self, repr(error))
