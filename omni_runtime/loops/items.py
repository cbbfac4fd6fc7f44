"""What a call works through, and whether what it gave is what its port promises."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from omni_runtime.channel import Reader
from omni_runtime.errors import ResultError
from omni_runtime.messages import heft
from omni_runtime.work import TensorRef


def weight(readers: Mapping[str, Reader], at: Mapping[str, int | None] = {}) -> float:
    """What a call has to work through, as a cost: characters of texts and conversations, elements of tensors, other items as one
    each. `at` says how many items of a reader the call takes; all by default."""
    found = 0.0
    for name, reader in readers.items():
        for item in reader.peek(at.get(name)):
            if isinstance(item, str):
                found += len(item)
            elif isinstance(item, TensorRef):
                found += prod(item.shape)
            elif isinstance(item, list | tuple):
                found += sum(heft(turn.get("content", "")) if isinstance(turn, Mapping) else 1 for turn in item)
            else:
                found += 1
    return max(1.0, found)


def checked(port: str, kind: str, items: Any) -> Any:
    """The items, if they are of the port's type; of types that only the model knows, any.

    Raises:
        ResultError: naming the port and what was found.
    """
    if kind == "text":
        wrong = next((item for item in items if not isinstance(item, str)), None)
    elif kind == "token":
        wrong = next((item for item in items if not isinstance(item, int | np.integer)), None)
    elif kind == "samples":
        wrong = None if np.ndim(items) == 1 and np.asarray(items).dtype.kind in "fiu" else items
        if wrong is None and not _finite(np.asarray(items)):
            raise ResultError(f"port {port!r}: not all samples are numbers; its decoder's weights are damaged, or another's")
    else:
        return items
    if wrong is not None:
        raise ResultError(f"port {port!r} promises {kind}, but a {type(wrong).__name__} came: {str(wrong)[:60]!r}")
    return items


def _finite(samples: np.ndarray[Any, Any]) -> bool:
    """Whether all of them are numbers. Of a view that repeats one, as simulated sound is, one look tells."""
    return bool(np.isfinite(samples[:1] if samples.strides == (0,) else samples).all())
