"""What runs hold on executors: how they are placed there, how it is given back, and what is done when it is lost."""

from __future__ import annotations

from omni_runtime.orders import Evict, Fail, Finish, Forget, Instruction, Parked, Preempted, Rebuilt
from omni_runtime.scheduler.admit import Admission, place
from omni_runtime.scheduler.book import ExecBook, Offer, RunBook
from omni_runtime.scheduler.fill import Queues
from omni_runtime.scheduler.memory import Memory
from omni_runtime.scheduler.policy import Policy
from omni_runtime.work import ExecutorDown, ExecutorUp, WorkUnit, base

DEATHS = 3  # executors that die one after the other with a unit alone on them: then it is the unit
COMPANY = 2  # executors that die over a batch, before its members run alone
NOBODY = (0, 0, 0)


class Holdings:
    """The part of the scheduler that moves runs on to executors and off them."""

    now: float
    policy: Policy
    runs: dict[int, RunBook]
    executors: dict[str, ExecBook]
    awaited: dict[str, frozenset[str]]
    gone: dict[str, str]
    where: dict[int, ExecBook]
    billed: dict[int, float]
    queues: Queues
    memory: Memory
    admission: Admission

    # -- Placing

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
                    self.memory.strand(offer.run)
                    out.append(Parked(offer.run.id, offer.unit.loop))
                    self.admission.changed = True
                else:
                    self._fail(offer.run, "lost", self._nowhere(expert), out)
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

    def _coming(self, expert: str) -> bool:
        """Whether an executor that hosts an expert will be back."""
        return any(expert in experts for experts in self.awaited.values())

    # -- Giving back

    def _nowhere(self, expert: str) -> str:
        """Why an expert cannot run."""
        hosted = [ex.name for ex in self.executors.values() if expert in ex.experts]
        if hosted:
            return f"the pools of {expert!r} on {', '.join(hosted)} are too small for what was granted: {self.gone[expert]}"
        return f"no executor hosts {expert!r} any more: {self.gone[expert]}"

    def _back(self, run: RunBook, out: list[Instruction]) -> None:
        """A unit is back: if it was the last one, what waits for that is done."""
        if run.flying:
            return
        if run.closing:
            self._finish(run, out)
        elif run.leaving and not run.doomed:
            self._evict(run, run.leaving, out)

    def _preempted(self, event: Preempted, out: list[Instruction]) -> None:
        """Who was promised that nothing is taken from him gives it up for a moment, and comes in again first."""
        run = self.runs.get(event.run)
        if run is None or run.closing or run.doomed or run.stale or run.leaving or not run.rebuilds:
            return
        if run.flying:
            self.memory.dismiss(run, "preempted")
        else:
            self._evict(run, "preempted", out)

    def _rebuilt(self, event: Rebuilt, out: list[Instruction]) -> None:
        run = self.runs.get(event.run)
        if run is not None:
            run.stale = False

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

    @staticmethod
    def _fail(run: RunBook, reason: str, detail: str, out: list[Instruction]) -> None:
        """The run must end. Until its `Closed` comes, nothing of it may be placed or picked: it may have lost its home."""
        run.doomed = True
        for offer in run.offers.values():
            offer.live = False
        out.append(Fail(run.id, reason, detail))

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

    # -- Losing

    def _down(self, event: ExecutorDown, out: list[Instruction]) -> None:
        """Loops that kept something there go back to where they can make it again; the others never notice."""
        name = event.executor
        ex = self.executors.get(name)
        if ex is None:
            if not event.back and (experts := self.awaited.pop(base(name), None)) is not None:
                self.gone.update(dict.fromkeys(experts, f"executor {name!r} is gone: {event.reason}"))
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
        self.gone.update(dict.fromkeys(ex.experts, why))
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
