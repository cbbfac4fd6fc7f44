"""How urgent a unit is: one number, fixed when it is offered."""

from __future__ import annotations

from collections.abc import Iterable

from omni_runtime.scheduler.goal import HEADS, Leg

PATIENCE = (0.2, 0.5, 2.0)  # seconds that a ready unit of priority high, normal, low may wait before it outranks newer ones
CREDIT = (5.0, 0.0, -5.0)  # seconds of seniority that a priority is worth at admission
# Seconds that a deadline may put a unit before others that became ready when it did: what becomes ready later than `d + LAG`
# cannot pass what is due at `d`.
LAG = max(HEADS) * max(PATIENCE)


def due(ready: float, priority: int) -> float:
    """The moment by which a unit that became ready at `ready` should run.

    Smaller runs first. Age counts from the unit's own readiness, not from the request's arrival, or an old stream with a full
    buffer would outrank a starving new one. Later offers have later dues, so no unit is passed for ever.
    """
    return ready + PATIENCE[priority]


def sooner(ready: float, due: float, legs: Iterable[Leg]) -> float:
    """`due`, or the moment by which one of the goals needs the unit, if that is before it.

    In time: when the goal's output runs dry, less what must happen until then, later by the sound that lies in the channels on
    the way and is heard first. Late: whoever is nearest to a piece goes first, and how much before others that became ready at
    the same moment is the goal's `head`. By how much somebody is late does not count: with that, a crowd that waited to begin
    silenced those who played, and ten steps of one late thinker passed the vocoder batches that twelve others needed.
    """
    patience = due - ready
    for leg in legs:
        goal, lead = leg.goal, leg.lead
        by = goal.by - lead
        if by >= due:
            continue
        if leg.pending:  # also before the first sound: what feeds the second piece would only keep the first one waiting
            by += leg.waiting()
        late = ready + min(lead, 0.5 * patience) - goal.head * patience
        if by < late:
            by = late
        if by < due:
            due = by
    return due


def seniority(arrival: float, priority: int, run: int) -> tuple[float, int]:
    """Order of admission: static and total, or two requests could pass each other for ever. Smaller is more senior."""
    return arrival - CREDIT[priority], run
