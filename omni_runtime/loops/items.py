"""Whether what a call gave is what its port promises."""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_runtime.errors import ResultError


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
    else:
        return items
    if wrong is not None:
        raise ResultError(f"port {port!r} promises {kind}, but a {type(wrong).__name__} came: {str(wrong)[:60]!r}")
    return items
