"""A batch that was launched, as most ops make one: what it reads, and what its results are then."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from omni_runtime.experts.base import Launched
from omni_runtime.experts.device_queue import queue_of
from omni_runtime.experts.staging import Reading
from omni_runtime.work import StepResult


class Later(NamedTuple):
    """See `base.Launched`."""

    reading: Reading
    then: Callable[..., list[StepResult]]  # of the tensors that were read; it also replaces state

    def collect(self) -> list[StepResult]:
        return self.then(*self.reading.get())


def launches(device: torch.device) -> bool:
    """Whether ops return before their work is done: where the device has a queue."""
    return queue_of(device) is not None


def settled(later: Later, late: bool) -> list[StepResult] | Launched:
    """The batch, to be collected later; or its results."""
    return later if late else later.collect()
