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
        run: carries out a message; what it returns is reported. If it raises, the executor is lost.
    """

    def __init__(self, name: str, run: Callable[[Message], Report | None]) -> None:
        self._name, self._run = name, run
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        self._report: Callable[[Report], None] = lambda report: None
        self._thread: Thread | None = None

    def start(self, report: Callable[[Report], None]) -> None:
        self._report = report
        self._thread = Thread(target=self._loop, name=f"omni-{self._name}", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        self._queue.put(message)

    def close(self) -> None:
        """Ends after the message that is being carried out; idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if threading.current_thread() is not thread:
                thread.join()

    def _loop(self) -> None:
        try:
            while (message := self._queue.get()) is not None:
                if (report := self._run(message)) is not None:
                    self._report(report)
                del message, report  # or the last batch's arrays live until the next one comes
        except BaseException as error:  # the thread is going: nobody may wait for it
            self._report(ExecutorDown(self._name, repr(error)))
