"""What the engine asks of an executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from omni_runtime.work import ExecutorUp, Message, Report


class Executor(Protocol):
    """A mailbox with a device behind it. Messages are executed in the order given."""

    name: str

    def start(self, report: Callable[[Report], None]) -> ExecutorUp:
        """Loads the experts and says what is hosted. `report` may be called from any thread."""
        ...

    def send(self, message: Message) -> None: ...

    def close(self) -> None:
        """Ends after the batch that is running; idempotent."""
        ...
