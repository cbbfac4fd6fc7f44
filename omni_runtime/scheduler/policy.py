"""What is done in which order: the policies. Small, so that they can be compared and swapped."""

from __future__ import annotations

from typing import ClassVar

from omni_runtime.card import OpLimits
from omni_runtime.errors import CardError, unknown
from omni_runtime.scheduler.book import ExecBook, Group, Offer, RunBook
from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.fill import Batch, Grow, Queues, pick
from omni_runtime.scheduler.goal import NEVER
from omni_runtime.scheduler.supply import RESERVE, Supply

SHORT = 20  # gaps: a batch that is shorter is queued early, or the executor would stand idle for 5 % of the time


class Policy:
    """First come, first served, step by step: units rank by the arrival of their request. The others refine it.

    Attributes:
        whole: hand-offs wait until all of them is there, whatever the program says.
        sized: loops that are listened to are granted what their listener's buffer asks for.
        fair: tenants have equal shares of a device, by weight.
    """

    name: ClassVar[str] = "first_come"
    whole: ClassVar[bool] = False
    sized: ClassVar[bool] = False
    fair: ClassVar[bool] = False

    def rank(self, run: RunBook, due: float) -> float:
        """Where an offer goes in the order: smaller runs first. Asked once, when it is made."""
        return run.since[0]

    def choose(
        self,
        queues: Queues,
        ex: ExecBook,
        limits: dict[tuple[str, str], OpLimits],
        costs: Costs,
        supply: Supply,
        grow: Grow,
        now: float,
    ) -> tuple[Group, Batch] | None:
        """The next batch of an executor, with its members, or None where nothing may run."""
        group = queues.head(ex, ex.groups)
        if group is None:
            return None
        batch = Batch(limits[group[:2]], costs.model(group[0], group[1]), grow, busy=bool(ex.flying))
        pick(queues.heaps[ex.name][group], batch)
        return group, batch

    def early(self, group: Group, queues: Queues, ex: ExecBook, costs: Costs) -> bool:
        """Whether a group waits on purpose while another is in flight."""
        return False

    def lose(self, executor: str) -> None:
        """An executor is gone."""


class FirstCome(Policy):
    """Step by step, oldest request first."""


class Deadline(Policy):
    """Ours: by deadline, shares fair among tenants, chunks as listeners need them, promises kept."""

    name = "deadline"
    sized = True
    fair = True

    def rank(self, run: RunBook, due: float) -> float:
        return due

    def choose(
        self,
        queues: Queues,
        ex: ExecBook,
        limits: dict[tuple[str, str], OpLimits],
        costs: Costs,
        supply: Supply,
        grow: Grow,
        now: float,
    ) -> tuple[Group, Batch] | None:
        several = len(ex.shares) > 1
        group = queues.head(ex, ex.groups, several)
        if group is None:
            return None
        if several and ex.flying:  # rather an empty slot than that whoever is ahead gets further ahead in it
            flying = min(ex.shares.get(offer.run.tenant, 0.0) for members in ex.flying.values() for offer in members)
            if min(ex.shares.get(tenant, 0.0) for tenant in queues.heaps[ex.name][group]) > flying:
                return None
        if supply.streams:
            group = self._kept(group, queues, ex, costs, supply, now)
        if ex.flying and not several and self.early(group, queues, ex, costs):
            return None
        slack = supply.allowed(ex.name, group[:2], now) if supply.streams else NEVER
        batch = Batch(limits[group[:2]], costs.model(group[0], group[1]), grow, slack, bool(ex.flying))
        pick(queues.heaps[ex.name][group], batch, ex.shares)
        return group, batch

    def early(self, group: Group, queues: Queues, ex: ExecBook, costs: Costs) -> bool:
        """Whether it is too early to decide: a loop in flight comes back with a step that is more urgent than this one, and what
        is queued behind it now would run before that. An executor that stands idle for the gap between two batches loses less,
        unless batches are short."""
        unit = (first := queues.first(ex, group)).unit
        seen = unit.lo * (unit.cached + unit.lo) if unit.kind.block else 0
        seconds = costs.model(group[0], group[1]).predict(1, unit.lo * unit.weight, seen)
        if seconds < SHORT * costs.gap:
            return False
        return any(offer.due + ex.bills[n].total < first.due for n, members in ex.flying.items() for offer in members)

    def _kept(self, group: Group, queues: Queues, ex: ExecBook, costs: Costs, supply: Supply, now: float) -> Group:
        """The group that runs now, where a promise would be broken by the most urgent one: a promised one instead.

        Work that was promised nothing has credit for a RESERVE of the time, so a unit of T seconds waits at most T / RESERVE for
        late promises: a picture's step of a second may run, but not before every 100 ms step of the listeners.
        """
        first = queues.first(ex, group)
        kept = queues.promised(ex)
        if kept is None or kept == group or first.run.promised:
            return group
        unit = first.unit
        seen = unit.lo * (unit.cached + unit.lo) if unit.kind.block else 0
        seconds = costs.model(group[0], group[1]).predict(1, unit.lo * unit.weight, seen)
        ex.credit = min(ex.credit + RESERVE * (now - ex.credited), max(seconds, 1.0))
        ex.credited = now
        if seconds <= supply.slack(ex.name, now):
            return group
        if ex.credit >= seconds:
            ex.credit -= seconds
            return group
        return kept


class Stages(Policy):
    """As staged servers do: a stage gives on a request when all of it is there; inside a stage requests come and go; the stage of
    the oldest request that has anything to do goes first, so what was begun is finished before more is begun."""

    name = "stages"
    whole = True


class Requests(Policy):
    """Each loop to its end: the loops of a batch stay together until all of them have ended, and nobody joins them."""

    name = "requests"
    whole = True

    def __init__(self) -> None:
        self.captured: dict[str, tuple[Group, dict[Offer, None]]] = {}  # executor -> group, its loops

    def lose(self, executor: str) -> None:
        self.captured.pop(executor, None)

    def choose(
        self,
        queues: Queues,
        ex: ExecBook,
        limits: dict[tuple[str, str], OpLimits],
        costs: Costs,
        supply: Supply,
        grow: Grow,
        now: float,
    ) -> tuple[Group, Batch] | None:
        group, loops = self.captured.get(ex.name, (None, {}))
        here = [offer for offer in loops if offer.home == ex.name]  # who was preempted may have gone elsewhere
        ready = [offer for offer in here if offer.live and offer.queued and not offer.parked]
        if group is not None and ready:
            if group in ex.groups.values():
                return None
            heaps = {ready[0].run.tenant: sorted((offer.due, offer.seq, offer) for offer in ready)}
            batch = Batch(limits[group[:2]], costs.model(group[0], group[1]), grow, busy=bool(ex.flying))
            pick(heaps, batch)
            return group, batch
        if ex.flying:  # some of them may be about to offer their next step
            return None
        found = super().choose(queues, ex, limits, costs, supply, grow, now)
        if found is not None:
            self.captured[ex.name] = (found[0], dict.fromkeys(found[1].picked))
        return found


POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Deadline, FirstCome, Stages, Requests)}


def policy_named(name: str) -> Policy:
    """
    Raises:
        CardError: there is none of that name.
    """
    if name not in POLICIES:
        raise CardError("policy: " + unknown("policy", name, POLICIES))
    return POLICIES[name]()
