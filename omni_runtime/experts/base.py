"""What an executor asks of an expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from omni_runtime.experts.slots import Slots
from omni_runtime.work import Row, StepResult

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
