"""An executor behind a wire that leads back here: everything is encoded and decoded both ways. The tests' default."""

from __future__ import annotations

from collections.abc import Callable

from omni_runtime.executors.base import Executor
from omni_runtime.executors.codec import decode_message, decode_report, encode
from omni_runtime.work import ExecutorUp, Message, Report


class LoopbackExecutor:
    """Wraps another executor, so that what would not survive a process boundary does not survive the tests either."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.name = inner.name

    def start(self, report: Callable[[Report], None]) -> ExecutorUp:
        return self.inner.start(lambda found: report(decode_report(encode(found))))

    def send(self, message: Message) -> None:
        self.inner.send(decode_message(encode(message)))

    def close(self) -> None:
        self.inner.close()
