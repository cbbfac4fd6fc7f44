"""How urgent a unit is: one number, fixed when it is offered."""

from __future__ import annotations

from collections.abc import Iterable

from omni_runtime.scheduler.goal import Leg

PATIENCE = (0.2, 0.5, 2.0)  # seconds that a ready unit of priority high, normal, low may wait before it outranks newer ones
CREDIT = (5.0, 0.0, -5.0)  # seconds of seniority that a priority is worth at admission
LAG = 10.0  # seconds that a deadline may put a unit before those that became ready when it did


def due(ready: float, priority: int) -> float:
    """The moment by which a unit that became ready at `ready` should run.

    Smaller runs first. Age counts from the unit's own readiness, not from the request's arrival, or an old stream with a full
    buffer would outrank a starving new one. Later offers have later dues, so no unit is passed for ever.
    """
    return ready + PATIENCE[priority]


def sooner(ready: float, due: float, legs: Iterable[Leg]) -> float:
    """`due`, or the moment by which one of the goals needs the unit, if that is before it: when its output runs dry, less what
    must happen until then, and later by the sound that lies in the channels on the way, which is heard first.

    Never more than LAG before the unit was ready: what becomes ready later than `d + LAG` cannot pass what is due at `d`.
    """
    for leg in legs:
        by = leg.goal.by - leg.lead
        if by < due and leg.pending:
            by += leg.waiting()
        if by < due:
            due = by
    return due if due > ready - LAG else ready - LAG


def seniority(arrival: float, priority: int, run: int) -> tuple[float, int]:
    """Order of admission: static and total, or two requests could pass each other for ever. Smaller is more senior."""
    return arrival - CREDIT[priority], run
