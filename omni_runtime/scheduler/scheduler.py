"""The scheduler: `handle(now, events) -> instructions`. Pure: the same events give the same instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from omni_runtime.card import OpLimits
from omni_runtime.orders import (
    BatchDone,
    BatchFailed,
    Claimed,
    Closed,
    Dispatch,
    Event,
    Finish,
    Instruction,
    LoopDone,
    Preempted,
    Rebuilt,
    Refuse,
    Submitted,
    UnitReady,
    Withdrawn,
)
from omni_runtime.scheduler.admit import Admission, hosts
from omni_runtime.scheduler.book import Bill, ExecBook, Offer, RunBook, Tenant
from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.fill import Queues, grants
from omni_runtime.scheduler.holdings import Holdings
from omni_runtime.scheduler.memory import Memory
from omni_runtime.scheduler.policy import Deadline, Policy
from omni_runtime.scheduler.supply import Supply
from omni_runtime.work import ExecutorDown, ExecutorUp


class Scheduler(Holdings):
    """Ranks offers, fills batches and keeps the books.

    Args:
        limits: (expert, op) -> what fits into one batch.
        max_runs: live runs before new ones are refused as overload.
        costs: what is known of prices and paces; it goes on learning.
        policy: what is done in which order.
        tenants: weights by name. Without any, every tenant that comes has weight 1; with some, others are not known.
    """

    def __init__(
        self,
        limits: Mapping[tuple[str, str], OpLimits],
        max_runs: int = 20_000,
        costs: Costs | None = None,
        policy: Policy | None = None,
        tenants: Mapping[str, float] | None = None,
    ) -> None:
        self.limits = dict(limits)
        self.policy = policy or Deadline()
        self.tenants = {name: Tenant(name, weight) for name, weight in (tenants or {}).items()}
        self.closed = bool(tenants)  # others than these are not known
        self.billed: dict[int, float] = {}  # device-seconds of runs whose books closed, until somebody asks
        self.costs = costs or Costs({key: op.cost for key, op in limits.items()})
        self.now = 0.0
        self.max_runs = max_runs
        self.runs: dict[int, RunBook] = {}
        self.executors: dict[str, ExecBook] = {}
        self.awaited: dict[str, frozenset[str]] = {}  # executors that will be back, by their base name: what they host
        self.gone: dict[str, str] = {}  # expert -> how the last executor that hosted it went
        self.supply = Supply(self.costs, {key: (op.units, op.size) for key, op in limits.items()})
        self.memory = Memory(self.runs, self._evict)
        self.admission = Admission(self.supply, self.memory, self._coming, self._nowhere)
        self.queues = Queues()
        self.seq = 0
        self.batches = 0
        self.where: dict[int, ExecBook] = {}  # batch in flight -> executor

    def handle(self, now: float, events: Iterable[Event]) -> list[Instruction]:
        """Applies all events, then admits, then plans once: planning after each would make batches of one."""
        out: list[Instruction] = []
        self.now = now
        for event in events:
            HANDLERS[type(event)](self, event, out)
        while True:
            if self.memory.moved:
                self.admission.changed = True
                for offer in self.memory.wake():
                    self.seq += 1
                    offer.seq = self.seq  # what lies in a queue of its old date is void
                    self.queues.push(offer)
            if self.admission.changed or (self.admission.held and now >= self.admission.look):
                for run in self.admission.admit(self.executors, now, out):
                    for offer in run.offers.values():
                        if offer.live and not offer.queued:
                            self._queue(offer, out)
            for ex in self.executors.values():
                while len(ex.flying) < ex.slots and self._fill(ex, out):
                    pass
            if not (self.memory.moved or self.admission.changed):  # whoever made room for somebody may have made more
                return out

    # -- Events of the flow

    def _submitted(self, event: Submitted, out: list[Instruction]) -> None:
        if len(self.runs) >= self.max_runs:
            out.append(Refuse(event.run, "overloaded", f"{len(self.runs)} requests are alive, the limit; send it again later"))
            return
        for expert in (expert for group in event.together for expert in group):
            if not hosts(self.executors, (expert,)) and not self._coming(expert):
                out.append(Refuse(event.run, "lost", f"no executor hosts {expert!r}; known: {sorted(self.executors)}"))
                return
        tenant = self.tenants.get(event.tenant)
        if tenant is None:
            tenant = self.tenants[event.tenant] = Tenant(event.tenant, 1.0)
        elif self.closed and tenant.alive >= (most := self._most(tenant)):
            why = f"tenant {tenant.name!r} has {tenant.alive} requests alive, its share of {self.max_runs} is {most}"
            out.append(Refuse(event.run, "overloaded", f"{why}; send it again later"))
            return
        tenant.alive += 1
        tenant.requests += 1
        self.runs[event.run] = RunBook(event, tenant)

    def _most(self, tenant: Tenant) -> int:
        """Live runs that a tenant may have: nobody can fill the house alone."""
        return max(1, int(self.max_runs * tenant.weight / sum(t.weight for t in self.tenants.values())))

    def _claimed(self, event: Claimed, out: list[Instruction]) -> None:
        run = self.runs.get(event.run)
        if run is None or run.closing:
            return
        assert run.claims is None, "a run claims once"
        run.claims = event.claims
        self.admission.claim(run, out)

    def _ready(self, event: UnitReady, out: list[Instruction]) -> None:
        unit = event.unit
        run = self.runs.get(unit.run)
        if run is None or run.closing or run.doomed or run.stale or run.leaving:
            return
        assert unit.loop not in run.flying, f"run {unit.run}: two units of loop {unit.loop!r}"
        offer = run.offers.get(unit.loop)
        if offer is None:
            offer = run.offers[unit.loop] = Offer(run, unit)
        offer.unit = unit
        if unit.at > run.solo.get(unit.loop, 1 << 62):  # past the step that failed
            del run.solo[unit.loop]
        if run.deaths and unit.loop in run.deaths and unit.at > run.deaths[unit.loop][2]:
            del run.deaths[unit.loop]
        if offer.live:  # it grew while it waited: it keeps its place
            return
        self.seq += 1
        offer.seq, offer.due, offer.live, offer.queued = self.seq, self.policy.rank(run, event.due), True, False
        if run.admitted or self._may(run, unit):
            self._queue(offer, out)
        else:
            self.admission.changed = True  # it comes in with what its first unit needs

    def _withdrawn(self, event: Withdrawn, out: list[Instruction]) -> None:
        run = self.runs.get(event.run)
        if run is not None and (offer := run.offers.get(event.loop)) is not None:
            offer.live = False
            if offer.parked:
                self.memory.moved.add((offer.home or "", offer.unit.kind.expert))

    def _loop_done(self, event: LoopDone, out: list[Instruction]) -> None:
        run = self.runs.get(event.run)
        if run is not None:
            self._release(run, event.loop, event.chain, out)

    def _closed(self, event: Closed, out: list[Instruction]) -> None:
        run = self.runs.get(event.run)
        if run is None:  # it was refused before it had a book
            out.append(Finish(event.run))
            return
        assert not run.closing, f"run {event.run} is closed twice"
        run.closing = True
        for offer in run.offers.values():
            offer.live = False
        self.admission.forget(run)
        self.memory.forget(run)
        self._finish(run, out)

    # -- Events of executors

    def _batch_done(self, event: BatchDone, out: list[Instruction]) -> None:
        ex = self.where[event.batch]
        bill = ex.bills[event.batch]
        seconds = event.seconds
        if seconds > 0.0:
            bill.model.learn(bill.units, bill.work, bill.reach, seconds)
            if bill.alone:
                self.costs.between(max(0.0, self.now - bill.sent - seconds))
        part = seconds / bill.total
        for offer in self._return(event.batch, part):
            run, unit = offer.run, offer.unit
            offer.sent = offer.held
            # Of a closed run the unit may have been left out of the batch.
            if offer.chain and ex.reuse and offer.held and not run.closing:
                have = offer.chain[: (unit.cached + offer.size) // unit.kind.block]
                ex.ledgers[unit.kind.expert].prefixes.add((run.id, unit.loop), have)
            if run.closing or run.leaving:
                self._back(run, out)

    def _batch_failed(self, event: BatchFailed, out: list[Instruction]) -> None:
        """One member is guilty and nobody knows which: each runs alone until it is past the step that failed."""
        members = self._return(event.batch)
        for offer in members:
            run, unit = offer.run, offer.unit
            if len(members) == 1 and not run.closing:
                self._fail(run, "failed", event.error, out)
            else:
                run.solo[unit.loop] = max(unit.at, run.solo.get(unit.loop, 0))
                self._back(run, out)

    # -- Planning

    def _fill(self, ex: ExecBook, out: list[Instruction]) -> bool:
        def grow(offer: Offer, picked: list[Offer]) -> bool:
            return self.memory.grow(ex, offer, picked, out)

        while True:
            chosen = self.policy.choose(self.queues, ex, self.limits, self.costs, self.supply, grow, self.now)
            if chosen is None:
                return False
            if chosen[1].picked:
                break  # else whoever was in front lacks memory and is parked now
        group, filled = chosen
        limits, picked = self.limits[group[:2]], filled.picked
        self.batches = batch = self.batches + 1
        for offer in picked:
            offer.run.flying[offer.unit.loop] = batch
            offer.ran = True
        ex.flying[batch] = picked
        ex.groups[batch] = group
        self.where[batch] = ex
        # Only a unit that wants more than a chunk makes it matter who else waits.
        alone = limits.chunk is None or (
            len(picked) == 1 and (picked[0].unit.hi <= limits.chunk or self.queues.head(ex, {0: group}) is None)
        )
        bill = ex.bills[batch] = Bill(filled.model, len(picked), self.now, len(ex.flying) == 1)
        granted = grants(ex, picked, limits, alone, bill, self.memory, filled.spare)
        if len(ex.shares) > 1:
            for offer in picked:
                tenant = offer.run.tenant
                share = ex.shares[tenant]
                if share > ex.clock:
                    ex.clock = share
                ex.shares[tenant] = share + offer.cost / tenant.weight
            even = ex.even + bill.total / sum(tenant.weight for tenant in ex.shares)
            ex.even = max(ex.clock, even)
        if len(ex.flying) == 1:
            ex.since = self.now
        out.append(Dispatch(batch, ex.name, group[0], group[1], granted))
        return True

    # -- Books

    def accounts(self) -> dict[str, dict[str, float]]:
        """What every tenant has had: device-seconds, requests, and how many are alive."""
        alive = dict.fromkeys(self.tenants.values(), 0.0)
        for run in self.runs.values():
            alive[run.tenant] += run.seconds
        return {
            t.name: {"seconds": t.seconds + alive[t], "requests": t.requests, "alive": t.alive, "weight": t.weight}
            for t in self.tenants.values()
        }

    def spent(self, run: int) -> float:
        """Device-seconds of a run that is alive or has just ended."""
        book = self.runs.get(run)
        return self.billed.get(run, 0.0) if book is None else book.seconds


Handler = Callable[[Scheduler, Any, list[Instruction]], None]
HANDLERS: dict[type, Handler] = {
    Submitted: Scheduler._submitted,
    Claimed: Scheduler._claimed,
    UnitReady: Scheduler._ready,
    Withdrawn: Scheduler._withdrawn,
    LoopDone: Scheduler._loop_done,
    Closed: Scheduler._closed,
    Rebuilt: Scheduler._rebuilt,
    Preempted: Scheduler._preempted,
    BatchDone: Scheduler._batch_done,
    BatchFailed: Scheduler._batch_failed,
    ExecutorUp: Scheduler._up,
    ExecutorDown: Scheduler._down,
}
