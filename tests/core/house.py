"""The scheduler alone at saturation: loops without a flow, which offer their next unit as soon as one is back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omni_runtime.card import OpCost, OpLimits
from omni_runtime.orders import BatchDone, Claimed, Closed, Dispatch, Event, Instruction, Submitted, UnitReady, Withdrawn
from omni_runtime.scheduler.check import check
from omni_runtime.scheduler.goal import Listener
from omni_runtime.scheduler.policy import policy_named
from omni_runtime.scheduler.scheduler import Scheduler
from omni_runtime.work import ExecutorUp, UnitKind, WorkUnit

Dues = Callable[[float], float]  # the moment of an offer -> its due


class Caller:
    """One request with one loop."""

    def __init__(self, run: int, tenant: str, op: str, lo: int, hi: int, due: Dues, units: int | None) -> None:
        self.run, self.tenant = run, tenant
        self.kind = UnitKind("e", op)
        self.lo, self.hi = lo, hi
        self.due = due
        self.units = units  # that it still wants; None: for ever
        self.ready: float | None = None  # since when an offer waits
        self.dated = 0.0  # its due
        self.sizes: list[int] = []


class House:
    """One executor with one expert, and callers.

    Args:
        ops: what fits into a batch of each; `seeds` are their prices.
        weights: of tenants; without, all are equal.
    """

    def __init__(
        self,
        ops: Mapping[str, tuple[int, int]],
        weights: Mapping[str, float] | None = None,
        seeds: Mapping[str, OpCost] | None = None,
        slots: int = 1,
        policy: str = "deadline",
    ) -> None:
        seeds = seeds or {}
        limits = {("e", op): OpLimits(units=u, size=s, cost=seeds.get(op, OpCost())) for op, (u, s) in ops.items()}
        self.scheduler = Scheduler(limits, policy=policy_named(policy), tenants=weights)
        self.now = 0.0
        self.callers: dict[int, Caller] = {}
        self.flying: list[Dispatch] = []
        self.batches: list[Dispatch] = []
        self.spent: dict[str, float] = {}  # by tenant, as predicted: the sum of its units' prices
        self.largest: dict[str, float] = {}  # by tenant: its part of a batch, at most
        self.orders: list[Instruction] = []
        self.fed = 0
        self.feed(ExecutorUp("x", ("e",), {}, slots))
        self.ex = self.scheduler.executors["x"]

    def feed(self, *events: Event) -> list[Dispatch]:
        """What the scheduler makes of events, all at once."""
        found = []
        for order in self.scheduler.handle(self.now, events):
            self.orders.append(order)
            if isinstance(order, Dispatch):
                found.append(order)
                self._saw(order)
        self.fed += 1
        if self.fed % 8 == 0:
            check(self.scheduler)
        return found

    def _saw(self, order: Dispatch) -> None:
        self.flying.append(order)
        self.batches.append(order)
        parts: dict[str, float] = {}
        for offer in self.ex.flying[order.batch]:
            name = offer.run.tenant.name
            parts[name] = parts.get(name, 0.0) + offer.cost
            self.callers[offer.run.id].ready = None
        for grant in order.grants:
            self.callers[grant.run].sizes.append(grant.size)
        for name, part in parts.items():
            self.spent[name] = self.spent.get(name, 0.0) + part
            self.largest[name] = max(self.largest.get(name, 0.0), part)

    # -- Events: each is to be fed

    def come(
        self,
        tenant: str = "",
        op: str = "op",
        lo: int = 1,
        hi: int = 1,
        due: Dues = lambda now: now,
        units: int | None = None,
        promised: tuple[Listener, ...] = (),
    ) -> list[Event]:
        run = len(self.callers) + 1
        caller = self.callers[run] = Caller(run, tenant, op, lo, hi, due, units)
        events: list[Event] = [Submitted(run, self.now, 1, (("e",),), tenant, promised)]
        if promised:
            events.append(Claimed(run, ()))
        return [*events, *self.offer(caller)]

    def offer(self, caller: Caller) -> list[Event]:
        """Its next unit, or its end where it wants none."""
        if caller.units == 0:
            return [Closed(caller.run)]
        if caller.units is not None:
            caller.units -= 1
        caller.ready, caller.dated = self.now, caller.due(self.now)
        return [UnitReady(WorkUnit(caller.run, "l", caller.kind, caller.lo, caller.hi), caller.dated)]

    def pause(self, caller: Caller) -> list[Event]:
        caller.ready = None
        return [Withdrawn(caller.run, "l")]

    def done(self, seconds: float, measured: float = 0.0, again: Callable[[Caller], bool] = lambda caller: True) -> list[Event]:
        """The batch in front is back after so long; whoever was in it offers again, if so."""
        self.now += seconds
        order = self.flying.pop(0)
        events: list[Event] = [BatchDone(order.batch, measured)]
        for grant in order.grants:
            caller = self.callers[grant.run]
            if again(caller):
                events += self.offer(caller)
        return events

    def shares(self) -> dict[str, float]:
        return {tenant.name: share for tenant, share in self.ex.shares.items()}

    def waiting(self) -> list[Any]:
        return [caller for caller in self.callers.values() if caller.ready is not None]
