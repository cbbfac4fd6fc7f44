"""Prices and paces in a JSON file: learned by one runtime, taken over by the next, or by a simulation."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_runtime.errors import CheckpointError
from omni_runtime.scheduler.cost import Costs

REMEDY = "make one with `omni calibrate`, or costs_file.write(path, runtime.costs())"


def write(path: str | Path, costs: Costs | Mapping[str, Any]) -> None:
    """Writes all that was learned, as it is or as `runtime.costs()` gives it. A file that is there is replaced at once, so no
    reader ever sees half of one.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(json.dumps(costs.save() if isinstance(costs, Costs) else costs, indent=1), encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read(path: str | Path, into: Costs | None = None) -> Costs:
    """What `write` wrote.

    Args:
        path: of the file.
        into: takes it over and is returned; what it knew of other ops stays. None: new ones.

    Raises:
        CheckpointError: the file is missing, or no such file; says where it is wrong.
        OSError: it cannot be read.
    """
    costs = into if into is not None else Costs()
    try:
        saved = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file; {REMEDY}") from None
    except ValueError as e:  # also of what is no UTF-8
        raise CheckpointError(f"{path}: no JSON ({e}); {REMEDY}") from None
    if not isinstance(saved, dict):
        raise CheckpointError(f"{path}: an object is needed, not {str(saved)[:60]!r}; {REMEDY}")
    try:
        costs.load(saved)
    except ValueError as e:
        raise CheckpointError(f"{path}: {e}; {REMEDY}") from None
    return costs
