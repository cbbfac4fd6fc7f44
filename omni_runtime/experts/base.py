"""What an executor asks of an expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from omni_runtime.errors import ResultError
from omni_runtime.experts.slots import Slots
from omni_runtime.work import Row, StepResult, TensorRef


class Launched(Protocol):
    """A batch whose work is queued on a device, and of which the host has read nothing yet.

    The op's call queues all of its work, and asks `slots` for all that it needs: state, tensors, names of what it keeps.
    `collect` is called at most once, in the order of the calls, with other batches perhaps queued behind this one: so it queues
    nothing, takes nothing from `slots`, and waits for nothing but its own work (`staging.Reading`). State that must bear that the
    batch raises is replaced there.

    One that queues more than its own work, or had queued that before, has `marks`: where its work begins and ends in the queue.
    """

    def collect(self) -> list[StepResult]:
        """A result per row, in order. What it raises counts as raised by the op."""
        ...


Op = Callable[[Sequence[Row], Slots], list[StepResult] | Launched]
"""Runs one batch: a result per row, in order, or what will give them.

An op may be called again with the same rows after it raised, so what it keeps must bear that: KV rows are written at the
positions that the payload names, other state is replaced only after the whole batch has succeeded. A result may depend on
its own row and slot only, never on its neighbours or on how much of the work was granted at once.
"""


def verified(results: object, rows: Sequence[Row]) -> list[StepResult]:
    """What an op gave, if it can be read: what cannot is a fault of the op's batch, and of nobody else.

    Raises:
        ResultError: it is no list of one StepResult per row, or a port's value has no length.
    """
    if not isinstance(results, list) or len(results) != len(rows):
        found = f"{len(results)} results" if isinstance(results, list) else type(results).__name__
        raise ResultError(f"returned {found}; a list of one StepResult for each of the {len(rows)} rows is needed")
    for result in results:
        if type(result) is not StepResult:
            raise ResultError(f"returned a {type(result).__name__} among its results; each must be a StepResult")
        for port, value in result.items.items():
            if not isinstance(value, list | tuple | np.ndarray) or (isinstance(value, np.ndarray) and value.ndim == 0):
                raise ResultError(f"gave {type(value).__name__} for items[{port!r}]; a list or array of items is needed")
        for port, refs in result.tensors.items():
            if not isinstance(refs, tuple) or not all(type(ref) is TensorRef for ref in refs):
                raise ResultError(
                    f"gave {type(refs).__name__} for tensors[{port!r}]; a tuple of what slots.keep returned is needed"
                )
    return results


class Expert(Protocol):
    """Resident weights and a few batched ops over them.

    It may also have `invariant`, names of ops of which a row's results are the same to the bit in any company and for any
    granted size when `slots.batch_invariant` is set; and `varies`, a sentence for users on why an op is not among them.
    """

    @property
    def ops(self) -> Mapping[str, Op]: ...


def invariant(expert: Expert) -> frozenset[str]:
    """Ops that an expert says are exact in any company and size; see `Expert`."""
    found: frozenset[str] = getattr(expert, "invariant", frozenset())
    return found
