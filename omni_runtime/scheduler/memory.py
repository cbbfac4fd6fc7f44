"""Who gets KV blocks as loops grow, and from whom they are taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_runtime.orders import Forget, Parked
from omni_runtime.scheduler.book import ExecBook, Offer, RunBook
from omni_runtime.scheduler.ledger import Ledger

Pool = tuple[str, str]  # executor, expert


class Memory:
    """Growth by seniority: what is not free is taken from the most junior run that holds any of it.

    A victim with units in flight leaves when they are back. Until then the run that needs its blocks holds a *claim*: nobody
    junior takes what is claimed, or the senior could be passed for ever.

    Args:
        runs: by id.
        evict: takes everything from a run that has nothing in flight.
    """

    def __init__(self, runs: dict[int, RunBook], evict: Callable[[RunBook, str, list[Any]], None]) -> None:
        self.runs = runs
        self.evict = evict
        self.claims: dict[Pool, dict[RunBook, int]] = {}  # blocks that somebody waits for
        self.parked: dict[Pool, dict[Offer, None]] = {}  # offers that wait for blocks
        self.moved: set[Pool] = set()  # pools in which something was freed since parked offers were looked at

    def spare(self, pool: Pool, ledger: Ledger, run: RunBook | None) -> int:
        """Blocks that a run may take: those that nobody holds and no senior claims. Of None: those that nobody claims."""
        claims = self.claims.get(pool)
        if not claims:
            return ledger.spare
        return ledger.spare - sum(n for other, n in claims.items() if run is None or (other is not run and _junior(run, other)))

    def grow(self, ex: ExecBook, offer: Offer, picked: list[Offer], out: list[Any]) -> bool:
        """Gives an offer the blocks that its least needs, taken from juniors if need be; or parks it.

        Args:
            picked: offers of the batch that is being filled: they count as in flight.
        """
        n = offer.need
        if n <= 0:
            return True
        run, expert = offer.run, offer.unit.kind.expert
        ledger, pool = ex.ledgers[expert], (ex.name, expert)
        if (run.id, offer.unit.loop) in ledger.reserved or self.room(pool, ledger, run, n, picked, out):
            self.take(ex, offer, n, out)
            return True
        self.claims.setdefault(pool, {})[run] = n
        self.parked.setdefault(pool, {})[offer] = None
        offer.parked = True
        out.append(Parked(run.id, offer.unit.loop))
        return False

    def extra(self, ex: ExecBook, offer: Offer, n: int) -> int:
        """How many of n blocks a loop may take beyond its least: free ones, since a kept one may just have been copied from."""
        expert = offer.unit.kind.expert
        ledger = ex.ledgers[expert]
        if (offer.run.id, offer.unit.loop) in ledger.reserved:
            return n
        return min(n, ledger.free, max(0, self.spare((ex.name, expert), ledger, offer.run)))

    def take(self, ex: ExecBook, offer: Offer, n: int, out: list[Any]) -> None:
        """Blocks that are there, kept ones given up for them."""
        unit = offer.unit
        kind = unit.kind
        ledger = ex.ledgers[kind.expert]
        claims = self.claims.get((ex.name, kind.expert))
        if claims and claims.pop(offer.run, None):
            self.moved.add((ex.name, kind.expert))
        if (unit.run, unit.loop) not in ledger.reserved and (gone := ledger.make_room(n)):
            out.append(Forget(ex.name, tuple(gone)))
        ledger.take(unit.run, unit.loop, n)
        offer.held += n
        offer.cover = (offer.held - kind.fixed) * kind.block if kind.block else 1 << 62

    def room(
        self, pool: Pool, ledger: Ledger, run: RunBook, n: int, picked: list[Offer], out: list[Any], door: bool = False
    ) -> bool:
        """Whether n blocks are there for a run, after taking from its juniors what is missing; at the door, from those of its own
        tenant only: tenants take turns there.

        Nobody is evicted if that would still not be enough. Where somebody must leave first, the run holds a claim.
        """
        lacks = n - self.spare(pool, ledger, run)
        if lacks <= 0:
            return True
        holders: dict[RunBook, int] = {}
        for key in dict.fromkeys([*ledger.held, *ledger.reserved]):
            if key not in ledger.kept and (holder := self.runs[key[0]]) is not run:
                blocks = max(len(ledger.held.get(key, ())), ledger.reserved.get(key, 0))
                holders[holder] = holders.get(holder, 0) + blocks
        lacks -= sum(blocks for holder, blocks in holders.items() if holder.closing or holder.doomed or holder.leaving)
        victims = []
        juniors = [h for h in holders if not (h.closing or h.doomed or h.leaving or h.reserved) and _junior(h, run)]
        if door:
            juniors = [h for h in juniors if h.tenant is run.tenant]
        for victim in sorted(juniors, key=_rank, reverse=True):
            if lacks <= 0:
                break
            lacks -= holders[victim]
            victims.append(victim)
        if lacks > 0:
            return False
        for victim in victims:
            if victim.flying or any(offer.run is victim for offer in picked):
                self.dismiss(victim, "memory")
            else:
                self.evict(victim, "memory", out)
        if n <= self.spare(pool, ledger, run):
            return True
        self.claims.setdefault(pool, {})[run] = n
        return False

    def strand(self, run: RunBook) -> None:
        """A run waits for an executor: it is the most junior of all now, and others may have what it holds."""
        if not run.stranded:
            run.stranded = True
            self.moved.update(self.parked)

    def dismiss(self, run: RunBook, why: str) -> None:
        """A run that has units in flight is to leave: it begins nothing more."""
        run.leaving = why
        self.forget(run)
        for offer in run.offers.values():
            offer.live = False

    def seniors(self, ledger: Ledger, run: RunBook) -> int:
        """Loops of a run's seniors that hold blocks and may want more."""
        return sum(
            key not in ledger.kept and key not in ledger.reserved and _junior(run, self.runs[key[0]]) for key in ledger.held
        )

    def forget(self, run: RunBook) -> None:
        """A run claims nothing any more, and nothing of it is parked."""
        for pool, claims in self.claims.items():
            if claims.pop(run, None) is not None:
                self.moved.add(pool)
        for offers in self.parked.values():
            for offer in [offer for offer in offers if offer.run is run]:
                del offers[offer]
                offer.parked = False

    def lose(self, executor: str) -> None:
        """An executor is gone, with its pools."""
        for pool in [pool for pool in self.claims if pool[0] == executor]:
            del self.claims[pool]
        for pool in [pool for pool in self.parked if pool[0] == executor]:
            for offer in self.parked.pop(pool):
                offer.parked = False
        self.moved = {pool for pool in self.moved if pool[0] != executor}

    def wake(self) -> list[Offer]:
        """Parked offers that may try again, since something moved in their pool. Those that were withdrawn claim nothing."""
        awake = []
        for pool in sorted(self.moved):
            for offer in self.parked.pop(pool, ()):
                offer.parked = False
                if offer.live:
                    awake.append(offer)
                elif (claims := self.claims.get(pool)) is not None:
                    claims.pop(offer.run, None)
        self.moved.clear()
        return awake


def _rank(run: RunBook) -> tuple[bool, tuple[float, int]]:
    """Smaller is more senior: static, but for runs that wait for an executor, which would hold memory while nothing moves."""
    return run.stranded, run.since


def _junior(one: RunBook, other: RunBook) -> bool:
    return _rank(one) > _rank(other)
