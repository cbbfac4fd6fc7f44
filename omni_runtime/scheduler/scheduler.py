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
    Evict,
    Fail,
    Finish,
    Forget,
    Instruction,
    LoopDone,
    Preempted,
    Rebuilt,
    Refuse,
    Submitted,
    UnitReady,
    Withdrawn,
)
from omni_runtime.scheduler.admit import Admission, hosts, place
from omni_runtime.scheduler.book import Bill, ExecBook, Offer, RunBook, Tenant
from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.fill import Queues, grants
from omni_runtime.scheduler.memory import Memory
from omni_runtime.scheduler.policy import Deadline, Policy
from omni_runtime.scheduler.supply import Supply
from omni_runtime.work import ExecutorDown, ExecutorUp, WorkUnit, base

DEATHS = 3  # executors that die one after the other with a unit alone on them: then it is the unit
COMPANY = 2  # executors that die over a batch, before its members run alone
NOBODY = (0, 0, 0)


class Scheduler:
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
        self.supply = Supply(self.costs, {key: (op.units, op.size) for key, op in limits.items()})
        self.memory = Memory(self.runs, self._evict)
        self.admission = Admission(self.supply, self.memory, self._coming)
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
        if self._may(run, unit):
            self._queue(offer, out)
        else:
            self.admission.changed = True  # it comes in with what its first unit needs

    @staticmethod
    def _may(run: RunBook, unit: WorkUnit) -> bool:
        """Whether a unit may run before its run is let in: it holds no memory, and nothing is promised."""
        return run.admitted or not (unit.kind.block or unit.kind.fixed or (run.promised and run.claims is not None))

    def _queue(self, offer: Offer, out: list[Instruction]) -> None:
        if offer.home is None:
            expert = offer.unit.kind.expert
            offer.home = place(self.executors, offer.run, expert)
            if offer.home is None:
                if self._coming(expert):
                    offer.run.stranded = True
                else:
                    self._fail(offer.run, "lost", f"no executor hosts {expert!r} any more, or with pools too small for it", out)
                return
        ex = self.executors[offer.home]
        tenant = offer.run.tenant
        if tenant not in ex.shares:
            # Where it would be by now; at the clock, newcomers without end with a unit each would all begin before who is a unit
            # ahead. Never behind everybody.
            ex.shares[tenant] = max(ex.clock, min(ex.even, max(ex.shares.values(), default=0.0)))
        elif len(ex.shares) > 1 and ex.shares[tenant] < ex.clock and not self.queues.waits(ex, tenant):
            ex.shares[tenant] = ex.clock  # for the time when it wanted nothing it has nothing to make up for
        offer.queued = True
        self.queues.push(offer)

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

    def _rebuilt(self, event: Rebuilt, out: list[Instruction]) -> None:
        run = self.runs.get(event.run)
        if run is not None:
            run.stale = False

    def _preempted(self, event: Preempted, out: list[Instruction]) -> None:
        """Who was promised that nothing is taken from him gives it up for a moment, and comes in again first."""
        run = self.runs.get(event.run)
        if run is None or run.closing or run.doomed or run.stale or run.leaving or not run.rebuilds:
            return
        if run.flying:
            self.memory.dismiss(run, "preempted")
        else:
            self._evict(run, "preempted", out)

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
            if offer.chain and ex.reuse and offer.held and not run.closing:  # of a closed run the unit may have been left out of the batch
                have = offer.chain[: (unit.cached + offer.size) // unit.kind.block]
                ex.ledgers[unit.kind.expert].prefixes.add((run.id, unit.loop), have)
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

    def _up(self, event: ExecutorUp, out: list[Instruction]) -> None:
        assert event.executor not in self.executors, f"executor {event.executor!r} is up twice; a restarted one needs a new name"
        self.executors[event.executor] = ExecBook(event)
        self.awaited.pop(base(event.executor), None)
        self._place_again(out)

    def _place_again(self, out: list[Instruction]) -> None:
        """An executor has come that runs may have waited for, or none will."""
        self.admission.changed = True
        for run in [run for run in self.runs.values() if run.stranded]:
            run.stranded = False
            for offer in list(run.offers.values()):
                if offer.live and not offer.queued and self._may(run, offer.unit):
                    self._queue(offer, out)

    def _down(self, event: ExecutorDown, out: list[Instruction]) -> None:
        """Loops that kept something there go back to where they can make it again; the others never notice."""
        name = event.executor
        ex = self.executors.get(name)
        if ex is None:
            if not event.back and self.awaited.pop(base(name), None) is not None:
                self._place_again(out)
            return
        if event.back:
            self.awaited[base(name)] = ex.experts
        guilty = self._suspect(ex)
        for batch in list(ex.flying):
            self._return(batch)
        del self.executors[name]
        self.queues.drop(name)
        self.memory.lose(name)
        self.policy.lose(name)
        why = f"executor {name!r} is gone: {event.reason}"
        for run in list(self.runs.values()):
            lost = [expert for expert, home in run.homes.items() if home == name]
            if not lost:
                continue
            for expert in lost:
                del run.homes[expert]
            if run.closing:
                self._finish(run, out)
            elif run.doomed:
                continue
            elif run in guilty:
                self._fail(run, "failed", f"{guilty[run]}; the last time {why}", out)
            else:
                self._lose(run, name, why, out)

    def _suspect(self, ex: ExecBook) -> dict[RunBook, str]:
        """Who ran when an executor died: at the second time alone from now on; fails if it happens DEATHS times that way."""
        guilty: dict[RunBook, str] = {}
        members = next(iter(ex.flying.values()), [])
        for offer in members:
            run, unit = offer.run, offer.unit
            all_, alone, furthest = run.deaths.get(unit.loop, NOBODY)
            all_, alone, furthest = all_ + 1, alone + (len(members) == 1), max(unit.at, furthest)
            run.deaths[unit.loop] = (all_, alone, furthest)
            if all_ >= COMPANY:
                run.solo[unit.loop] = max(unit.at, run.solo.get(unit.loop, 0))
            if alone >= DEATHS and not run.closing:
                guilty[run] = f"{unit.loop}: {alone} executors died with this step alone on them"
        return guilty

    def _lose(self, run: RunBook, executor: str, why: str, out: list[Instruction]) -> None:
        """What an executor kept for a run is gone; what others keep stays."""
        loops = [loop for loop, offer in run.offers.items() if offer.home == executor and (offer.ran or offer.held)]
        if not run.entered:
            run.granted = None
        for offer in run.offers.values():
            if offer.home == executor:
                offer.lose()
                offer.home = None
            offer.live = offer.queued = False
        self.memory.forget(run)
        run.reserved = False
        run.stale = True
        out.append(Evict(run.id, tuple(loops), "lost"))
        self._back(run, out)

    def _coming(self, expert: str) -> bool:
        """Whether an executor that hosts an expert will be back."""
        return any(expert in experts for experts in self.awaited.values())

    # -- Giving back

    def _back(self, run: RunBook, out: list[Instruction]) -> None:
        """A unit is back: if it was the last one, what waits for that is done."""
        if run.flying:
            return
        if run.closing:
            self._finish(run, out)
        elif run.leaving and not run.doomed:
            self._evict(run, run.leaving, out)

    def _evict(self, run: RunBook, why: str, out: list[Instruction]) -> None:
        """Takes everything from a run that executors keep for it, and sends it back to the door."""
        assert not run.flying and not run.closing, f"run {run.id} cannot be evicted"
        run.leaving = ""
        loops = [loop for loop, offer in run.offers.items() if offer.ran or offer.held]
        self.memory.forget(run)
        for loop in loops:
            offer = run.offers[loop]
            self._drop(offer, out)
        for claim in run.claims or ():  # what was reserved and not used
            if (ex := self.executors.get(run.homes.get(claim.expert, ""))) is not None:
                ex.ledgers[claim.expert].drop(run.id, claim.loop)
                self.memory.moved.add((ex.name, claim.expert))
        for offer in run.offers.values():
            offer.lose()
        run.stale, run.reserved = True, False
        out.append(Evict(run.id, tuple(loops), why))
        if run.admitted:
            run.admitted = False
            run.tenant.admitted -= 1
            self.admission.waiting[run.id] = run
        self.admission.changed = True

    def _drop(self, offer: Offer, out: list[Instruction]) -> None:
        """What an executor keeps for a loop may go."""
        ex = self.executors.get(offer.home or "")
        if ex is None:
            return
        expert = offer.unit.kind.expert
        if ex.ledgers[expert].drop(offer.run.id, offer.unit.loop):
            self.memory.moved.add((ex.name, expert))
            self.admission.changed = True
        if offer.ran:
            out.append(Forget(ex.name, ((offer.run.id, offer.unit.loop),)))

    @staticmethod
    def _fail(run: RunBook, reason: str, detail: str, out: list[Instruction]) -> None:
        """The run must end. Until its `Closed` comes, nothing of it may be placed or picked: it may have lost its home."""
        run.doomed = True
        for offer in run.offers.values():
            offer.live = False
        out.append(Fail(run.id, reason, detail))

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

    def _return(self, batch: int, part: float = 0.0) -> list[Offer]:
        """Takes a batch from its executor, and charges its units for `part` of what they were predicted to take: all of them
        before any book closes, since two may be of one run."""
        ex = self.where.pop(batch)
        members = ex.flying.pop(batch)
        del ex.groups[batch], ex.bills[batch]
        ex.since = self.now
        for offer in members:
            run = offer.run
            del run.flying[offer.unit.loop]
            run.seconds += offer.cost * part
        return members

    def _release(self, run: RunBook, loop: str, chain: tuple[bytes, ...], out: list[Instruction]) -> None:
        """The loop's blocks are free, or kept for others where its executor can copy from them."""
        offer = run.offers.pop(loop, None)
        for claim in run.claims or ():  # of what was promised to a loop that never had a step to do
            if claim.loop == loop and (ex := self.executors.get(run.homes.get(claim.expert, ""))) is not None:
                self._freed(ex, claim.expert)
                if offer is None or not offer.held:
                    ex.ledgers[claim.expert].drop(run.id, loop)
        if run.claims is not None:
            run.claims = tuple(c for c in run.claims if c.loop != loop)
        if offer is None:
            return
        ex = self.executors.get(offer.home or "")
        if ex is None:
            return
        ledger = ex.ledgers[offer.unit.kind.expert]
        if offer.held:
            self._freed(ex, offer.unit.kind.expert)
            if ex.reuse and not run.doomed:  # of a failed run nobody knows what the device holds
                ledger.prefixes.add((run.id, loop), chain)
                if ledger.keep(run.id, loop):
                    return
            ledger.drop(run.id, loop)
        if offer.ran:
            out.append(Forget(ex.name, ((run.id, loop),)))

    def _freed(self, ex: ExecBook, expert: str) -> None:
        """Blocks of a pool may be free: whoever waits for some looks again."""
        self.admission.changed = True
        if (ex.name, expert) in self.memory.parked:
            self.memory.moved.add((ex.name, expert))

    def _finish(self, run: RunBook, out: list[Instruction]) -> None:
        """Closes the books of an ended run once its last unit is back; two of its loops may come back in one batch."""
        if run.flying or run.id not in self.runs:
            return
        for loop in dict.fromkeys([*run.offers, *(c.loop for c in run.claims or ())]):
            self._release(run, loop, (), out)
        for home in run.homes.values():
            if home in self.executors:
                self.executors[home].pinned -= 1
        self.memory.forget(run)
        del self.runs[run.id]
        self.billed[run.id] = run.seconds
        tenant = run.tenant
        tenant.alive -= 1
        tenant.seconds += run.seconds
        tenant.admitted -= run.admitted
        if not tenant.alive:
            for ex in self.executors.values():
                ex.shares.pop(tenant, None)
        out.append(Finish(run.id))


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
