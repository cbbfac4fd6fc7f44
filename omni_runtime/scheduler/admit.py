"""Who may hold memory, and where: placement of a run's experts, and admission in order of seniority."""

from __future__ import annotations

from typing import Any

from omni_runtime.orders import Admitted, Claim, Fail, Forget, Held, Refuse
from omni_runtime.scheduler.book import ExecBook, RunBook, Tenant
from omni_runtime.scheduler.supply import Supply

LOOK = (
    0.05  # seconds between two looks at promises while nobody comes or goes; a look costs microseconds for every run that waits
)


def hosts(executors: dict[str, ExecBook], experts: tuple[str, ...]) -> list[ExecBook]:
    """Executors that have all of these experts."""
    return [ex for ex in executors.values() if ex.experts.issuperset(experts)]


def place(executors: dict[str, ExecBook], run: RunBook, expert: str) -> str | None:
    """Executor of an expert for this run, chosen at its first need and kept.

    Experts that hand tensors to each other go together, since a tensor is read where it was made. Among several executors:
    one whose pools hold the claims best, then the one with the fewest experts of live runs, then the first that came up.
    """
    if (home := run.homes.get(expert)) is not None:
        return home
    group = run.together[expert]
    found = hosts(executors, group)
    if not found:
        return None
    claims = run.claims or ()
    best = min(found, key=lambda ex: (_shortage(ex, claims, group), ex.pinned))
    for member in group:
        run.homes[member] = best.name
    best.pinned += len(group)
    return best.name


def _shortage(ex: ExecBook, claims: tuple[Claim, ...], group: tuple[str, ...]) -> list[int]:
    """Blocks that an executor's pools lack for the least that a run needs there, then for the most that it can use, expert by
    expert: executors that are equal in all of them give it equal room, so which one it gets never shows in its answer."""
    short = [0]
    for expert in group:
        total = ex.ledgers[expert].total
        short[0] += max(0, sum(c.least for c in claims if c.expert == expert) - total)
        short.append(max(0, sum(c.most for c in claims if c.expert == expert) - total))
    return short


def rooms(executors: dict[str, ExecBook], run: RunBook) -> dict[str, int] | str:
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
    """The queue of runs that wait for memory, or until what they were promised can be kept.

    A run that does not fit blocks the pools it needs for all its juniors, and one whose promise cannot be kept yet blocks all
    promises after it.

    Args:
        supply: which promises can be kept.
        most: promised runs that may wait; more are refused with the time after which to try again.
    """

    def __init__(self, supply: Supply, most: int = 64) -> None:
        self.waiting: dict[int, tuple[RunBook, dict[str, int]]] = {}
        self.changed = False  # a run came, or memory was freed
        self.turn = 0.0  # of who was admitted last
        self.supply = supply
        self.most = most
        self.held: dict[int, float] = {}  # promised runs that wait for others to end -> seconds that they were told
        self.look = 0.0  # when to look again whether buffers have grown enough for the next of them

    def claim(self, executors: dict[str, ExecBook], run: RunBook, out: list[Any]) -> bool:
        """Places a run that told its claims, and queues or refuses it; returns whether it is queued."""
        if run.promised and (load := self.supply.never(run.promised)):
            out.append(
                Refuse(
                    run.id,
                    "too_slow",
                    f"guarantee: a second of its sound takes {load:.2f} s here even alone; send it without a guarantee, or "
                    "shorten what comes between two sounds",
                )
            )
            return False
        for claim in run.claims or ():
            if place(executors, run, claim.expert) is None:
                out.append(Fail(run.id, "lost", f"no executor hosts {', '.join(run.together[claim.expert])} any more"))
                return False
        granted = rooms(executors, run)
        if isinstance(granted, str):
            out.append(Refuse(run.id, "too_large", granted))
            return False
        self.waiting[run.id] = (run, granted)
        self.changed = True
        return True

    def forget(self, run: RunBook) -> None:
        if self.waiting.pop(run.id, None) is not None:
            self.changed = True
        self.held.pop(run.id, None)
        if self.supply.streams.pop(run.id, None) is not None:
            self.changed = True

    def order(self) -> list[tuple[RunBook, dict[str, int]]]:
        """Who comes first: tenants take turns, by weight, each with its most senior run. Who had nothing waiting takes the next
        turn; by who holds least, a heavy tenant without end would keep a light one out of a pool for one."""
        waiting = sorted(self.waiting.values(), key=lambda w: w[0].since)
        if len({w[0].tenant for w in waiting}) < 2:
            return waiting
        turns: dict[Tenant, float] = {}
        ranked = []
        for entry in waiting:
            tenant = entry[0].tenant
            turn = turns.get(tenant, max(tenant.turn, self.turn))
            turns[tenant] = turn + 1.0 / tenant.weight
            ranked.append((turn, entry[0].since, entry))
        return [entry for _, _, entry in sorted(ranked, key=lambda r: r[:2])]

    def admit(self, executors: dict[str, ExecBook], now: float, out: list[Any]) -> list[RunBook]:
        """Everybody who fits, in order."""
        self.changed = False
        self.look = now + LOOK
        admitted: list[RunBook] = []
        blocked: set[tuple[str, str]] = set()
        ahead = 0  # promised runs that go on waiting
        for run, granted in self.order():
            if run.promised and (ahead or not self.supply.fits(run.promised, now)):
                self._hold(run, ahead, now, out)
                ahead += run.id in self.held
                continue
            self.held.pop(run.id, None)  # from here on it may wait for memory, as anybody
            needs: dict[tuple[str, str], int] = {}
            for claim in run.claims or ():
                pool = (run.homes[claim.expert], claim.expert)
                needs[pool] = needs.get(pool, 0) + granted[claim.loop]
            if any(p in blocked or not executors[p[0]].ledgers[p[1]].can_reserve(n) for p, n in needs.items()):
                blocked.update(needs)
                continue
            for (home, expert), n in needs.items():
                if gone := executors[home].ledgers[expert].make_room(n):
                    out.append(Forget(home, tuple(gone)))
            for claim in run.claims or ():
                executors[run.homes[claim.expert]].ledgers[claim.expert].reserve(run.id, claim.loop, granted[claim.loop])
            del self.waiting[run.id]
            run.admitted = True
            tenant = run.tenant
            tenant.admitted += 1
            self.turn = max(tenant.turn, self.turn)
            tenant.turn = self.turn + 1.0 / tenant.weight
            if run.promised:
                self.supply.streams[run.id] = run.promised
            admitted.append(run)
            out.append(Admitted(run.id, granted))
        return admitted

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
