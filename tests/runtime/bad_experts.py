"""Experts that give back what they should not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omni_runtime.work import StepResult

RESULTS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda rows: None,
    "generator": lambda rows: (StepResult(items={"text": ["a"]}) for _ in rows),
    "none_inside": lambda rows: [None for _ in rows],
    "number_inside": lambda rows: [5 for _ in rows],
    "mapping_inside": lambda rows: [{"text": ["a"]} for _ in rows],
    "too_few": lambda rows: [],
    "no_items": lambda rows: [StepResult() for _ in rows],
    "items_none": lambda rows: [StepResult(items={"text": None}) for _ in rows],
    "bytes": lambda rows: [StepResult(items={"text": [b"hi"]}) for _ in rows],
    "tensors_none": lambda rows: [StepResult(items={"text": ["a"]}, tensors={"text": None}) for _ in rows],  # type: ignore[dict-item]
    "raises": lambda rows: 1 / 0,
    "good": lambda rows: [StepResult(items={"text": ["fine"]}) for _ in rows],
}


class Bad:
    """One op that gives what it is told to."""

    def __init__(self, kind: str) -> None:
        self.ops = {"op": lambda rows, slots: RESULTS[kind](rows), "good": lambda rows, slots: RESULTS["good"](rows)}


def build(options: Mapping[str, Any], device: str) -> Bad:
    return Bad(options["kind"])
