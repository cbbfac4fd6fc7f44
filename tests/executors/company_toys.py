"""An expert whose results tell what was called with them, or how often: what batch-invariant mode must hide.

Op `tell`: rows of the call and what its tensor looks like. Op `count`: calls of its loop so far; params "raise" raises, after
the count went up. Op `keep`: a tensor with gaps that begins at an odd address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_runtime.work import StepResult


@dataclass
class Count:
    calls: int = 0


class Telling:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self.ops = {"tell": self.tell, "count": self.count, "keep": self.keep}
        self.invariant = frozenset(options.get("invariant", ()))
        self.varies = options.get("varies", "")

    def tell(self, rows: Any, slots: Any) -> Any:
        import torch

        found = []
        for row in rows:
            told: list[Any] = [len(rows), slots.batch_invariant, torch.get_num_threads()]
            for ref in row.payload.tensors.get("in", ()):
                given = slots.read(ref)
                told += [given.is_contiguous(), given.data_ptr() % 64]
            found.append(StepResult(items={"out": told}))
        return found

    def count(self, rows: Any, slots: Any) -> Any:
        found = []
        for row in rows:
            state = slots.state(row, Count)
            state.calls += 1
            if row.payload.params.get("raise"):
                raise RuntimeError("asked to")
            found.append(StepResult(items={"out": [state.calls]}))
        return found

    def keep(self, rows: Any, slots: Any) -> Any:
        import torch

        whole = torch.arange(64.0)
        odd = whole[1:61].view(10, 6).T[1:4]
        return [StepResult(tensors={"out": (slots.keep(row, "out", row.payload.index, odd),)}) for row in rows]


def build(options: Mapping[str, Any], device: str) -> Telling:
    return Telling(options)
