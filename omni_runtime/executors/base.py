"""What the engine asks of an executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from omni_runtime.work import ExecutorUp, Message, Report


class Executor(Protocol):
    """A mailbox with a device behind it. Messages are executed in the order given.

    `name` is that of the incarnation that lives now ("cpu#2" after one death). A message for another incarnation is dropped in
    silence, and nothing that an incarnation says after its `ExecutorDown` is passed on.
    """

    @property
    def name(self) -> str: ...

    def start(self, report: Callable[[Report], None]) -> ExecutorUp:
        """Loads the experts and says what is hosted. `report` may be called from any thread."""
        ...

    def send(self, message: Message) -> None: ...

    def lose(self, reason: str) -> None:
        """Declares what lives now to be lost, with all that it keeps: `ExecutorDown` at once, and then a next incarnation."""
        ...

    def close(self) -> None:
        """Ends after the batch that is running, or without it if that takes too long; idempotent."""
        ...
