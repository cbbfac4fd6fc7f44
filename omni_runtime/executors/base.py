"""What the engine asks of an executor, and an executor of an expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from omni_runtime.executors.memory import Slots
from omni_runtime.work import ExecutorUp, Message, Report, Row, StepResult

Op = Callable[[Sequence[Row], Slots], list[StepResult]]
"""Runs one batch: a result per row, in order.

An op may be called again with the same rows after it raised, so what it keeps must bear that: KV rows are written at the
positions that the payload names, other state is replaced only after the whole batch has succeeded. A result may depend on
its own row and slot only, never on its neighbours or on how much of the work was granted at once.
"""


class Expert(Protocol):
    """Resident weights and a few batched ops over them."""

    @property
    def ops(self) -> Mapping[str, Op]: ...


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
