"""How urgent a unit is: one number, fixed when it is offered."""

from __future__ import annotations

PATIENCE = (0.2, 0.5, 2.0)  # seconds that a ready unit of priority high, normal, low may wait before it outranks newer ones
CREDIT = (5.0, 0.0, -5.0)  # seconds of seniority that a priority is worth at admission


def due(ready: float, priority: int) -> float:
    """The moment by which a unit that became ready at `ready` should run.

    Smaller runs first. Age counts from the unit's own readiness, not from the request's arrival, or an old stream with a full
    buffer would outrank a starving new one. Later offers have later dues, so no unit is passed for ever.
    """
    return ready + PATIENCE[priority]


def seniority(arrival: float, priority: int, run: int) -> tuple[float, int]:
    """Order of admission: static and total, or two requests could pass each other for ever. Smaller is more senior."""
    return arrival - CREDIT[priority], run
