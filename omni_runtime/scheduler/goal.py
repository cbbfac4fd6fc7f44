"""What a request is waited for: the moments by which its outputs are wanted, and what must still happen until then.

The flow keeps these up to date; the scheduler reads them.
"""

from __future__ import annotations

from typing import Any

from omni_runtime.scheduler.cost import OpModel
from omni_runtime.scheduler.pace import Pace

NEVER = float("inf")
# What being late is worth, in patiences of the request: of what has not begun, is heard, was promised; of all of a request.
HEADS = (0.0, 0.25, 1.0, 4.0)


class Leg:
    """One loop on the way to a goal."""

    __slots__ = ("channels", "goal", "lead", "limits", "model", "node", "op", "pace", "pending", "readers")

    def __init__(self, goal: Goal, node: Any, op: tuple[str, str], model: OpModel, pace: Pace, readers: list[Leg]) -> None:
        self.goal = goal
        self.node = node  # with `units`, the number that ran
        self.op = op  # expert, op
        self.model = model
        self.pace = pace
        self.readers = readers  # legs of the loops on the way that read it
        self.channels: list[Any] = []  # readers in those loops
        # Channels between here and the goal: what lies there is heard before anything that is made here now. (reader, seconds of
        # sound an item)
        self.pending: list[tuple[Any, float]] = []
        self.lead = 0.0  # seconds from a unit of this loop to what comes of it at the goal

    def begun(self) -> int:
        """Items that lie in front of a reader which needs more of them for its next step."""
        return max((len(r.channel.items) - r.cursor for r in self.channels if r.node.unit is None), default=0)

    def waiting(self) -> float:
        """Seconds of sound in the channels between here and the goal. A reader that has no step to do lacks something: half a
        clause is no sound."""
        found = 0.0
        for reader, seconds in self.pending:
            node = reader.node
            if node.unit is not None or node.busy:
                found += (len(reader.channel.items) - reader.cursor) * seconds
        return found


class Goal:
    """By when something of an output is wanted."""

    __slots__ = ("begun", "by", "head", "legs")

    def __init__(self, by: float, begun: bool = False) -> None:
        self.by = by
        self.begun = begun  # something is there, and more must follow in time
        self.head = HEADS[3] if begun else HEADS[0]
        self.legs: list[Leg] = []  # the loops on the way, readers before what they read

    def refresh(self) -> None:
        """Leads as they are by what is known now: a loop's units for one unit of its reader, times a usual batch."""
        for leg in self.legs:
            lead = 0.0
            for reader in leg.readers:
                if reader.lead > lead:
                    lead = reader.lead
            leg.lead = lead + max(1.0, leg.pace.next) * leg.model.mean


class Whole(Goal):
    """By when all of a request is wanted: a loop's lead is what it and those after it still have to do."""

    __slots__ = ()

    def refresh(self) -> None:
        for leg in self.legs:
            lead = max((reader.lead for reader in leg.readers), default=0.0)
            leg.lead = lead + max(1.0, leg.pace.units - leg.node.units) * leg.model.mean


class Listener(Goal):
    """Who hears one sound output. It plays from the first delivery on, unless told otherwise by `played`.

    Args:
        rate: samples a second.
        by: until when the first sound is wanted.
        promised: it must not run dry; what is made is held back until the start is safe.
    """

    __slots__ = ("delivered", "held", "homes", "made", "over", "promised", "rate", "shown", "silence")

    def __init__(self, rate: float, by: float, promised: bool) -> None:
        super().__init__(by)
        self.rate = rate
        self.promised = promised
        self.made = 0.0  # seconds of sound that the loops gave
        self.delivered = 0.0  # of them, those that went out
        self.shown = 0  # samples that went out
        self.silence = 0.0  # seconds in which there was nothing to play
        self.held: list[Any] = []  # made, and not delivered before the start is safe
        self.over = False  # nothing more comes
        self.homes: dict[str, str] = {}  # expert -> executor, as far as its run is placed

    def home(self, leg: Leg) -> str:
        """The executor of a loop on the way; of one that is not placed yet, that of any other."""
        found = self.homes.get(leg.op[0])
        return found if found is not None else next(iter(self.homes.values()), "")

    def uses(self, executor: str) -> bool:
        return not self.homes or executor in self.homes.values()

    def hear(self, now: float, seconds: float) -> None:
        """More sound is delivered."""
        self.delivered += seconds
        if not self.begun:
            self.begun, self.by = True, now + seconds
            self.head = HEADS[2] if self.promised else HEADS[1]
            return
        if now > self.by:
            self.silence += now - self.by
            self.by = now
        self.by += seconds

    def played(self, now: float, seconds: float) -> None:
        """The caller says how much has been heard."""
        if self.begun and not self.over:
            self.by = now + max(0.0, self.delivered - seconds)

    def buffered(self, now: float) -> float:
        """Seconds of sound that the listener, or the gate before him, still has."""
        return max(0.0, self.by - now) if self.begun else self.made

    def ready(self, now: float) -> float:
        """The same, and what lies in the channels in front of him and only has to be decoded."""
        return self.buffered(now) + (self.legs[-1].waiting() if self.legs else 0.0)

    def end(self) -> None:
        self.over, self.by = True, NEVER


def asked(listener: Listener, leg: Leg, now: float, seconds: float, weight: float, beside: float, most: int) -> int:
    """How much of its offer the loop in front of a listener wants: what his buffer holds, and at least the least chunk that
    plays for twice as long as it takes until the next one is there.

    Args:
        seconds: of sound for one of its size.
        beside: seconds of the batch that may come between.
        most: what it could do now.
    """
    speed = leg.model.speed
    batch, unit, work, _ = leg.model.theta
    gain = seconds - 2.0 * speed * work * weight
    if gain <= 0.0:
        return most
    least = 2.0 * (speed * (batch + unit) + beside) / gain
    size = max(least, listener.buffered(now) / seconds)
    return most if size >= most else max(1, int(size) + 1)
