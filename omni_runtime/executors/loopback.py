"""An executor behind a wire that leads back here: everything is encoded and decoded both ways. The tests' default."""

from __future__ import annotations

from collections.abc import Callable

from omni_runtime.executors.base import Executor
from omni_runtime.executors.codec import Wire, decode_message, decode_report, encode, told
from omni_runtime.work import Broken, ExecutorUp, Message, Report, RunBatch


class LoopbackExecutor:
    """Wraps another executor, so that what would not survive a process boundary does not survive the tests either."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self._wire = Wire()
        self._report: Callable[[Report], None]

    @property
    def name(self) -> str:
        return self.inner.name

    def start(self, report: Callable[[Report], None]) -> ExecutorUp:
        self._report = report
        return self.inner.start(lambda found: report(decode_report(told(self._wire, found))))

    def send(self, message: Message) -> None:
        try:
            copy = decode_message(encode(message))
        except Exception as error:  # what cannot travel is its batch's fault, and in the end one request's
            if not isinstance(message, RunBatch):
                raise
            self._report(Broken(self.name, message.batch, f"cannot travel to an executor: {error}"))
            return
        self.inner.send(copy)

    def lose(self, reason: str) -> None:
        self.inner.lose(reason)

    def close(self) -> None:
        self.inner.close()
