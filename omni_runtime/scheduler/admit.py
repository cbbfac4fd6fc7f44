"""Who may hold memory, and where: placement of a run's experts, and admission in order of seniority."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_runtime.orders import Admitted, Claim, Fail, Forget, Held, Refuse
from omni_runtime.scheduler.book import ExecBook, RunBook, Tenant
from omni_runtime.scheduler.memory import Memory, Pool
from omni_runtime.scheduler.supply import Supply

LOOK = (
    0.05  # seconds between two looks at promises while nobody comes or goes; a look costs microseconds for every run that waits
)


def hosts(executors: dict[str, ExecBook], experts: tuple[str, ...]) -> list[ExecBook]:
    """Executors that have all of these experts."""
    return [ex for ex in executors.values() if ex.experts.issuperset(experts)]


def place(executors: dict[str, ExecBook], run: RunBook, expert: str) -> str | None:
    """Executor of an expert for this run, chosen at its first need and kept while it is there. None: there is none that has room
    for what the run may hold.

    Experts that hand tensors to each other go together where one executor hosts them all; else a tensor is carried. Among
    several executors: the one that has most of their company, then one whose pools hold the claims best, then the one with the
    fewest experts of live runs, then the first that came up.
    """
    if (home := run.homes.get(expert)) is not None:
        return home
    company = run.together[expert]
    group = tuple(member for member in company if member not in run.homes)
    found = hosts(executors, group)
    if not found:
        group = (expert,)
        found = hosts(executors, group)
    claims = run.claims or ()
    if run.entered:  # where it must stop was said, and holds
        found = [ex for ex in found if not _lacks(ex, run, group)]
    if not found:
        return None

    def order(ex: ExecBook) -> tuple[int, list[int], int]:
        return -sum(run.homes.get(member) == ex.name for member in company), _shortage(ex, claims, group), ex.pinned

    best = min(found, key=order)
    for member in group:
        run.homes[member] = best.name
    best.pinned += len(group)
    return best.name


def _lacks(ex: ExecBook, run: RunBook, group: tuple[str, ...]) -> bool:
    """Whether an executor's pools are too small for what was granted to a run."""
    granted = run.granted or {}
    return any(
        sum(granted[c.loop] for c in run.claims or () if c.expert == expert) > ex.ledgers[expert].total for expert in group
    )


def _shortage(ex: ExecBook, claims: tuple[Claim, ...], group: tuple[str, ...]) -> list[int]:
    """Blocks that an executor's pools lack for the least that a run needs there, then for the most that it can use, expert by
    expert: executors that are equal in all of them give it equal room, so which one it gets never shows in its answer."""
    short = [0]
    for expert in group:
        total = ex.ledgers[expert].total
        short[0] += max(0, sum(c.least for c in claims if c.expert == expert) - total)
        short.append(max(0, sum(c.most for c in claims if c.expert == expert) - total))
    return short


def _rooms(executors: dict[str, ExecBook], run: RunBook) -> dict[str, int] | str:
    """Blocks that a run may hold, by loop; or the sentence that says why it can never fit.

    Depends on the totals of the pools only, never on who else is there: what a request may hold decides where it must stop.
    """
    granted: dict[str, int] = {}
    for expert in dict.fromkeys(c.expert for c in run.claims or ()):
        claims = [c for c in run.claims or () if c.expert == expert]
        total = executors[run.homes[expert]].ledgers[expert].total
        least = sum(c.least for c in claims)
        if least > total:
            return f"needs at least {least} KV blocks of expert {expert!r}, its pool on {run.homes[expert]!r} has {total}"
        spare = total - least
        for claim in claims:
            more = min(spare, claim.most - claim.least)
            granted[claim.loop] = claim.least + more
            spare -= more
    return granted


class Admission:
    """The door: the queue of runs that wait for memory, or until what they were promised can be kept.

    A run comes in with what its first unit needs and a block for every loop that is in the pool already, and grows from there;
    one that was promised something comes in with all that it may ever hold. Who does not fit blocks the pools it needs
    for all its juniors, and one whose promise cannot be kept yet blocks all promises after it.

    Args:
        supply: which promises can be kept.
        coming: whether an executor with an expert will be back.
        nowhere: a sentence for when none will.
        memory: gives blocks, and takes them from juniors of whoever is in front.
        most: promised runs that may wait; more are refused with the time after which to try again.
    """

    def __init__(
        self, supply: Supply, memory: Memory, coming: Callable[[str], bool], nowhere: Callable[[str], str], most: int = 64
    ) -> None:
        self.coming, self.nowhere = coming, nowhere
        self.waiting: dict[int, RunBook] = {}
        self.changed = False  # a run came, or memory was freed
        self.turn = 0.0  # of who was admitted last
        self.supply = supply
        self.memory = memory
        self.most = most
        self.held: dict[int, float] = {}  # promised runs that wait for others to end -> seconds that they were told
        self.look = 0.0  # when to look again whether buffers have grown enough for the next of them

    def claim(self, run: RunBook, out: list[Any]) -> None:
        """Queues a run that told its claims, or refuses it."""
        if run.promised and (load := self.supply.never(run.promised)):
            out.append(
                Refuse(
                    run.id,
                    "too_slow",
                    f"guarantee: a second of its sound takes {load:.2f} s here even alone; send it without a guarantee, or "
                    "shorten what comes between two sounds",
                )
            )
            return
        self.waiting[run.id] = run
        self.changed = True

    def forget(self, run: RunBook) -> None:
        if self.waiting.pop(run.id, None) is not None:
            self.changed = True
        self.held.pop(run.id, None)
        if self.supply.streams.pop(run.id, None) is not None:
            self.changed = True

    def order(self) -> list[RunBook]:
        """Who comes first: tenants take turns, by weight, each with its most senior run. Who had nothing waiting takes the next
        turn; by who holds least, a heavy tenant without end would keep a light one out of a pool for one."""
        waiting = sorted(self.waiting.values(), key=lambda run: run.since)
        if len({run.tenant for run in waiting}) < 2:
            return waiting
        turns: dict[Tenant, float] = {}
        ranked = []
        for run in waiting:
            turn = turns.get(run.tenant, max(run.tenant.turn, self.turn))
            turns[run.tenant] = turn + 1.0 / run.tenant.weight
            ranked.append((turn, run.since, run))
        return [run for _, _, run in sorted(ranked, key=lambda r: r[:2])]

    def admit(self, executors: dict[str, ExecBook], now: float, out: list[Any]) -> list[RunBook]:
        """Everybody who fits, in order."""
        self.changed = False
        self.look = now + LOOK
        admitted: list[RunBook] = []
        blocked: set[Pool] = set()
        claimed = [(pool, run) for pool, runs in self.memory.claims.items() for run in runs if run.id in self.waiting]
        for pool, run in claimed:  # only who is in front may claim: one behind him would keep him out, and wait for him
            del self.memory.claims[pool][run]
        ahead = 0  # promised runs that go on waiting
        for run in self.order():
            if run.stale or not self._placed(executors, run, out):
                continue
            if run.promised and run.id not in self.supply.streams and (ahead or not self.supply.fits(run.promised, now)):
                self._hold(run, ahead, now, out)
                ahead += run.id in self.held
                continue
            self.held.pop(run.id, None)  # from here on it may wait for memory, as anybody
            needs = self.needs(executors, run)
            if needs is None:
                continue
            if not blocked.isdisjoint(needs) or not all(
                self.memory.room(pool, executors[pool[0]].ledgers[pool[1]], run, n, [], out, True) for pool, n in needs.items()
            ):
                blocked.update(needs)
                continue
            self._enter(executors, run, out)
            admitted.append(run)
        self.memory.moved.update(pool for pool, run in claimed if run not in self.memory.claims[pool])
        self.changed = self.changed or bool(admitted)  # turns have moved: another tenant may be in front
        return admitted

    def _placed(self, executors: dict[str, ExecBook], run: RunBook, out: list[Any]) -> bool:
        """Whether a run knows where it will run and how much it may hold there. It ends where that can never be."""
        if run.granted is not None and all(claim.expert in run.homes for claim in run.claims or ()):
            return True
        for claim in run.claims or ():
            if place(executors, run, claim.expert) is None:
                if self.coming(claim.expert):
                    self.memory.strand(run)
                else:
                    del self.waiting[run.id]
                    run.doomed = True
                    out.append(Fail(run.id, "lost", self.nowhere(claim.expert)))
                return False
        if run.granted is None:
            granted = _rooms(executors, run)
            if isinstance(granted, str):
                del self.waiting[run.id]
                out.append(Refuse(run.id, "too_large", granted))
                return False
            run.granted = granted
        return True

    def needs(self, executors: dict[str, ExecBook], run: RunBook) -> dict[Pool, int] | None:
        """Blocks that must be there before a run comes in, by pool. None: it has nothing to do with them now."""
        needs: dict[Pool, int] = {}
        if run.whole:
            for claim in run.claims or ():
                pool = (run.homes[claim.expert], claim.expert)
                needs[pool] = needs.get(pool, 0) + (run.granted or {})[claim.loop]
            return needs
        for offer in run.offers.values():
            if offer.live and (n := offer.need) > 0:
                pool = (run.homes[offer.unit.kind.expert], offer.unit.kind.expert)
                needs[pool] = needs.get(pool, 0) + n
        for home, expert in needs:  # a block for every loop of a senior, or whoever comes in would soon be sent away
            needs[home, expert] += self.memory.seniors(executors[home].ledgers[expert], run)
        return needs or None

    def _enter(self, executors: dict[str, ExecBook], run: RunBook, out: list[Any]) -> None:
        """There is room: a run takes it."""
        for claims in self.memory.claims.values():
            claims.pop(run, None)
        if run.whole:
            for claim in run.claims or ():
                ledger = executors[run.homes[claim.expert]].ledgers[claim.expert]
                n = (run.granted or {})[claim.loop]
                if gone := ledger.make_room(n):
                    out.append(Forget(run.homes[claim.expert], tuple(gone)))
                ledger.reserve(run.id, claim.loop, n)
            run.reserved = True
        else:
            for offer in run.offers.values():
                if offer.live and (n := offer.need) > 0:
                    self.memory.take(executors[run.homes[offer.unit.kind.expert]], offer, n, out)
        del self.waiting[run.id]
        run.admitted = True
        tenant = run.tenant
        tenant.admitted += 1
        if run.promised:
            self.supply.streams[run.id] = run.promised
        if not run.entered:  # whoever was sent away does not come in at the cost of another turn
            run.entered = True
            self.turn = max(tenant.turn, self.turn)
            tenant.turn = self.turn + 1.0 / tenant.weight
        out.append(Admitted(run.id, run.granted or {}))

    def _hold(self, run: RunBook, ahead: int, now: float, out: list[Any]) -> None:
        """A promised run must wait: it is told how long, or refused where that is longer than it can use."""
        seconds = self.supply.wait(run.promised, ahead, now)
        if run.id in self.held:
            if abs(seconds - self.held[run.id]) > 0.25 * self.held[run.id]:
                self.held[run.id] = seconds
                out.append(Held(run.id, seconds))
            return
        if len(self.held) >= self.most or (run.first_output is not None and seconds > run.first_output):
            why = (
                f"{len(self.held)} promised requests wait already, the limit"
                if len(self.held) >= self.most
                else f"first_output_s={run.first_output}: its promise can be kept in about {seconds:.1f} s"
            )
            del self.waiting[run.id]
            out.append(Refuse(run.id, "overloaded", f"{why}; send it again then", max(seconds, 0.1)))
            return
        self.held[run.id] = seconds
        out.append(Held(run.id, seconds))
