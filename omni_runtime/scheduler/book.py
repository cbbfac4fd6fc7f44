"""The scheduler's records: one per run, per loop that offers, and per executor."""

from __future__ import annotations

from typing import Any

from omni_runtime.orders import Claim, Submitted
from omni_runtime.scheduler.cost import OpModel
from omni_runtime.scheduler.goal import Listener
from omni_runtime.scheduler.ledger import Ledger
from omni_runtime.scheduler.rank import seniority
from omni_runtime.work import ExecutorUp, WorkUnit

Group = tuple[str, str, tuple[Any, ...]]  # expert, op, batch key


class Offer:
    """What a loop offers now. One object for the life of the loop; heaps hold (due, seq, offer) and `seq` dates an entry."""

    __slots__ = (
        "chain",
        "cost",
        "cover",
        "due",
        "held",
        "home",
        "live",
        "parked",
        "queued",
        "ran",
        "run",
        "sent",
        "seq",
        "size",
        "unit",
    )

    def __init__(self, run: RunBook, unit: WorkUnit) -> None:
        self.run = run
        self.unit = unit
        self.due = 0.0
        self.seq = 0
        self.live = False  # waits to be picked
        self.queued = False  # it is in the queue of its executor, or parked
        self.parked = False  # it waits for blocks
        self.ran = False  # the executor may keep state of it
        self.size = 0  # granted to the unit in flight
        self.cost = 0.0  # seconds that it adds to its batch, as predicted
        self.chain = unit.chain  # digests of the text that it begins with
        self.home: str | None = None  # executor, once its expert is placed
        self.held = 0  # blocks
        self.sent = 0  # of them, those that the executor surely has: what a broken batch brought is brought again
        self.cover = 0  # positions that these blocks hold: a token asks the ledger only when it leaves them

    @property
    def need(self) -> int:
        """Blocks that it lacks for its least; where it holds none yet, for all positions that are known: a loop that came in with
        less would be sent away again at once."""
        unit = self.unit
        kind = unit.kind
        if not (kind.block or kind.fixed):
            return 0
        blocks = kind.fixed - self.held
        if kind.block:
            blocks += -(-(unit.cached + (unit.lo if self.held else unit.hi)) // kind.block)
        return blocks

    def lose(self) -> None:
        """What the executor kept for the loop is gone."""
        self.live = self.queued = self.ran = False
        self.held = self.sent = self.cover = 0

    def __lt__(self, other: Offer) -> bool:
        raise AssertionError("two heap entries with one sequence number")


class Tenant:
    """Whose requests they are."""

    __slots__ = ("admitted", "alive", "name", "requests", "seconds", "turn", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.alive = 0  # runs
        self.admitted = 0  # of them, those that hold memory
        self.requests = 0  # that ever came
        self.seconds = 0.0  # of devices, as measured, of runs whose books are closed
        self.turn = 0.0  # when it is its turn at the door: admissions over weight


class RunBook:
    """What the scheduler knows of a run."""

    __slots__ = (
        "admitted",
        "claims",
        "closing",
        "deaths",
        "doomed",
        "entered",
        "first_output",
        "flying",
        "granted",
        "homes",
        "id",
        "leaving",
        "offers",
        "promised",
        "rebuilds",
        "reserved",
        "seconds",
        "since",
        "solo",
        "stale",
        "stranded",
        "tenant",
        "together",
    )

    def __init__(self, event: Submitted, tenant: Tenant) -> None:
        self.id = event.run
        self.tenant = tenant
        self.promised: list[Listener] = list(event.promised)
        self.first_output = event.first_output
        self.since = seniority(event.arrival, event.priority, event.run)
        self.together = {expert: group for group in event.together for expert in group}
        self.homes: dict[str, str] = {}  # expert -> executor
        for listener in self.promised:
            listener.homes = self.homes
        self.offers: dict[str, Offer] = {}
        self.flying: dict[str, int] = {}  # loop -> batch
        self.solo: dict[str, int] = {}  # loop -> progress that it must pass alone, since a batch with it broke
        self.claims: tuple[Claim, ...] | None = None
        self.granted: dict[str, int] | None = None  # blocks that each loop may come to hold; set once
        self.rebuilds = event.rebuilds
        self.entered = False  # it has been admitted; where it must stop was said
        self.admitted = False
        self.reserved = False  # all that it may ever hold is promised: it never waits for memory, and nothing is taken from it
        self.leaving = ""  # why it gives back what it holds, once its units in flight are back
        self.stale = False  # it was evicted, and the flow has not said yet that it knows
        self.stranded = False  # an expert of it is on no executor, and one is to come
        # loop -> executors that died over a step of it: in all, with it alone, and how far it was
        self.deaths: dict[str, tuple[int, int, int]] = {}
        self.doomed = False  # it was told to fail; that it is closed has not come yet
        self.closing = False
        self.seconds = 0.0  # of devices, its share of every batch that it was in

    @property
    def whole(self) -> bool:
        """It comes in with all that it may ever hold."""
        return bool(self.promised) or not self.rebuilds


class Bill:
    """What a batch in flight is predicted to take, and from what. `fill.grants` adds up its units, which it looks at anyway.

    Args:
        units: their number.
        alone: nothing else was in its executor's mailbox.
    """

    __slots__ = ("alone", "each", "far", "heavy", "model", "reach", "sent", "total", "units", "work")

    def __init__(self, model: OpModel, units: int, now: float, alone: bool) -> None:
        speed = model.speed
        fixed, each, heavy, far = model.theta
        self.each = speed * (each + fixed / units)  # seconds of a unit: its own, and its part of what a batch takes anyway
        self.heavy = speed * heavy  # of one of its work
        self.far = speed * far  # of one of its reach
        self.model, self.units, self.sent, self.alone = model, units, now, alone
        self.work = self.reach = self.total = 0.0


class ExecBook:
    """What the scheduler knows of an executor."""

    __slots__ = (
        "bills",
        "clock",
        "credit",
        "credited",
        "even",
        "experts",
        "flying",
        "groups",
        "ledgers",
        "name",
        "pinned",
        "reuse",
        "shares",
        "since",
        "slots",
    )

    def __init__(self, up: ExecutorUp) -> None:
        self.name = up.executor
        self.experts = frozenset(up.experts)
        self.slots = up.slots
        self.reuse = up.reuse
        self.shares: dict[Tenant, float] = {}  # virtual time: predicted device-seconds over weight
        self.clock = 0.0  # virtual time of the unit that was served last, before it was charged
        self.credit = 0.0  # seconds that work which was promised nothing may take from late promises, so that it gets on as well
        self.credited = 0.0  # until when it was counted
        self.even = 0.0  # where everybody would be if what was done had been shared evenly
        self.ledgers = {expert: Ledger(up.pools.get(expert, 0)) for expert in up.experts}  # without a pool: of nothing
        self.flying: dict[int, list[Offer]] = {}
        self.groups: dict[int, Group] = {}  # batch in flight -> its group
        self.bills: dict[int, Bill] = {}
        self.pinned = 0  # experts of live runs that are placed here
        self.since = 0.0  # when the batch that is at the head of its mailbox began, as far as can be told from here
