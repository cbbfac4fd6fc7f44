"""What loops look at in what experts give: of arrays, nothing else has to be kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from omni_runtime.program import Plan
from omni_runtime.replay.encode import Part
from omni_runtime.work import StepResult

Looks = dict[str, tuple[int, ...] | None]  # port -> columns, or None for all


def looks(plan: Plan) -> dict[str, Looks]:
    """By step: ids of tokens, and the column of a frame that marks the end of a segment."""
    found: dict[str, Looks] = {step.name: {} for step in plan.steps}
    for step in plan.steps:
        for port, kind in step.spec.ports.items():
            if kind.type == "token":
                found[step.name][port] = None
    for step in plan.steps:
        mark = getattr(step.spec, "mark", None)
        for slot, edge, _ in step.reads:
            if mark is not None and slot == "frames" and edge.port.node:
                ports = found[edge.port.node]
                if (seen := ports.get(edge.port.port, ())) is not None:
                    ports[edge.port.port] = tuple(dict.fromkeys((*seen, mark)))
    return {name: ports for name, ports in found.items() if ports}


def told(result: StepResult, ports: Mapping[str, tuple[int, ...] | None]) -> StepResult:
    """A result with its arrays marked by what is looked at in them."""
    items = {port: _marked(value, ports[port]) if port in ports else value for port, value in result.items.items()}
    return replace(result, items=items)


def _marked(value: Any, columns: tuple[int, ...] | None) -> Any:
    if isinstance(value, np.ndarray):
        return Part(value, columns)
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return [Part(item, columns) if isinstance(item, np.ndarray) else item for item in value]
    return value
