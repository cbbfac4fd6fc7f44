"""What stands in a sequence beside token ids: rows of tensors, and positions of three numbers.

A plan says what the placeholders of a prompt are: an item (at, count, source, index, first) for each stretch of them, in the
order of the prompt. Positions at .. at+count are the rows first .. of tensor number `index` of the slot that `source` names.

Suffixes: N positions, 3 axes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from omni_runtime.channel import Reader
from omni_runtime.work import Inset, TensorRef

FEATURES = {"picture": "features"}  # slot of what is added after the first layers, by source


class Media:
    """Insets and positions of one sequence, in order."""

    __slots__ = ("ends", "insets", "positions", "shift")

    def __init__(self, insets: Sequence[Inset], positions: Any = None, shift: float = 0.0) -> None:
        self.insets = list(insets)
        self.ends = [inset.at + inset.count for inset in insets]
        self.positions = positions  # float32 [3, N], of the first N positions; None: i + shift for each
        self.shift = shift

    def add(self, inset: Inset) -> None:
        """One more, after all others."""
        self.insets.append(inset)
        self.ends.append(inset.at + inset.count)

    def overlapping(self, start: int, end: int) -> tuple[Inset, ...]:
        """Insets with a position in start .. end."""
        found = []
        for inset in self.insets[bisect_right(self.ends, start) :]:
            if inset.at >= end:
                break
            found.append(inset)
        return tuple(found)

    def at(self, start: int, end: int) -> Any:
        """Positions of start .. end; None: i + shift for each i."""
        if self.positions is None or start >= self.positions.shape[1]:
            return None
        part_3N = self.positions[:, start:end]
        if end > self.positions.shape[1]:
            later = np.arange(self.positions.shape[1], end, dtype=np.float32) + np.float32(self.shift)
            part_3N = np.concatenate([part_3N, np.broadcast_to(later, (3, len(later)))], 1)
        return np.ascontiguousarray(part_3N)


def placed(item: Any) -> tuple[Any, float]:
    """Positions and shift, as a host's op gave them; None where they count as those of text do.

    Raises:
        ValueError: it is something else.
    """
    positions, shift = item
    if positions is None:
        return None, float(shift)
    positions = np.asarray(positions, np.float32)
    if positions.ndim != 2 or positions.shape[0] != 3 or not np.isfinite(positions).all():
        raise ValueError(f"positions of shape {positions.shape}; three finite numbers for each token are needed")
    if not shift and (positions == np.arange(positions.shape[1], dtype=np.float32)).all():
        return None, 0.0
    return positions, float(shift)


def read(readers: Mapping[str, Reader], prompt: int) -> Media | None:
    """The media of a prompt of so many tokens, from the slots of a loop; None where there are none.

    Raises:
        ValueError: the plan names what is not there, or positions are not as many as tokens.
    """
    plan = readers["insets"].peek() if "insets" in readers else ()
    told = readers["positions"].peek() if "positions" in readers else ()
    positions, shift = placed(told[0]) if told else (None, 0.0)
    if positions is not None and positions.shape[1] != prompt:
        raise ValueError(f"{positions.shape[1]} positions for a prompt of {prompt} tokens")
    if not plan and positions is None and not shift:
        return None
    insets, end = [], 0
    for at, count, source, index, first in plan:
        if not end <= at < at + count <= prompt:
            raise ValueError(f"an inset at {at}, of {count}, after one that ends at {end} of {prompt}")
        vectors = _tensor(readers, source, index)
        if vectors.shape and not 0 <= first < first + count <= vectors.shape[0]:
            raise ValueError(f"an inset of rows {first} to {first + count} of {vectors.shape[0]} of {source} {index}")
        features = FEATURES.get(source)
        insets.append(
            Inset(at, count, vectors, first, _tensor(readers, features, index) if features and features in readers else None)
        )
        end = at + count
    return Media(insets, positions, shift)


def _tensor(readers: Mapping[str, Reader], slot: str, index: int) -> TensorRef:
    items = readers[slot].peek() if slot in readers else ()
    if not 0 <= index < len(items):
        raise ValueError(f"an inset is number {index} of {slot!r}, which has {len(items)}")
    found: TensorRef = items[index]
    return found
