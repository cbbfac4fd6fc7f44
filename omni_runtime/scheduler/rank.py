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
    """`due`, or the moment by which one of the goals needs the unit, if that is before it.

    - Of what is heard already, or has to be complete: when it runs dry, less what must happen until then, later by the sound that
      lies in the channels on the way and is heard first. Who is promised nothing cannot be more than dry.
    - Of what has not begun: now, whoever is nearest to its first piece first. Old wishes count no more than new ones, or a crowd
      that waits to begin would silence those who play: 46 tokens of one passed while its next clause lay ready.

    Never more than LAG before the unit was ready: what becomes ready later than `d + LAG` cannot pass what is due at `d`.
    """
    patience = due - ready
    for leg in legs:
        goal = leg.goal
        lead = leg.lead
        by = goal.by - lead
        if by >= due:
            continue
        if goal.begun:
            if by < ready - lead and not goal.promised:
                by = ready - lead
            if leg.pending:
                by += leg.waiting()
        else:
            near = ready + min(lead, 0.5 * patience)
            if by < near:
                by = near
        if by < due:
            due = by
    return due if due > ready - LAG else ready - LAG


def seniority(arrival: float, priority: int, run: int) -> tuple[float, int]:
    """Order of admission: static and total, or two requests could pass each other for ever. Smaller is more senior."""
    return arrival - CREDIT[priority], run
