"""From ready offers to a batch: the most urgent group that the executor may take, filled by rank."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from omni_runtime.card import OpLimits
from omni_runtime.orders import Grant
from omni_runtime.scheduler.book import Bill, ExecBook, Group, Offer, Tenant
from omni_runtime.scheduler.cost import OpModel
from omni_runtime.scheduler.goal import NEVER
from omni_runtime.scheduler.memory import Memory
from omni_runtime.work import Fork

Heap = list[tuple[float, int, Offer]]
Grow = Callable[[Offer, list[Offer]], bool]


class Queues:
    """Ready offers by executor, group and tenant, each a heap of (rank, seq, offer); withdrawn ones are skipped when met."""

    def __init__(self) -> None:
        self.heaps: dict[str, dict[Group, dict[Tenant, Heap]]] = {}

    def push(self, offer: Offer) -> None:
        groups = self.heaps.setdefault(offer.home or "", {})
        group = offer.unit.kind.group
        heaps = groups.get(group)
        if heaps is None:
            heaps = groups[group] = {}
        heap = heaps.get(offer.run.tenant)
        if heap is None:
            heap = heaps[offer.run.tenant] = []
        heappush(heap, (offer.due, offer.seq, offer))

    def head(self, ex: ExecBook, busy: dict[int, Group], fair: bool = False) -> Group | None:
        """The group of the most urgent offer, of the tenant that is least served if it is to be fair.

        Groups that are in flight are left out: one of their batches is waited for anyway, and taking them again would split
        eight decodes into alternating fours at half the throughput.
        """
        best: tuple[float, float, int] | None = None
        chosen = None
        empty = []
        shares = ex.shares
        for group, heaps in self.heaps.get(ex.name, {}).items():
            taken = group in busy.values()
            for tenant, heap in list(heaps.items()) if len(heaps) > 1 else heaps.items():
                while heap and not (heap[0][2].live and heap[0][2].seq == heap[0][1]):
                    heappop(heap)
                if not heap:
                    empty.append((group, tenant))
                elif not taken:
                    rank = (shares.get(tenant, 0.0) if fair else 0.0, heap[0][0], heap[0][1])
                    if best is None or rank < best:
                        best, chosen = rank, group
        for group, tenant in empty:
            heaps = self.heaps[ex.name][group]
            del heaps[tenant]
            if not heaps:
                del self.heaps[ex.name][group]
        return chosen

    def promised(self, ex: ExecBook) -> Group | None:
        """The group of the most urgent offer of a promised run, leaving out groups that are in flight."""
        best: tuple[float, int] | None = None
        chosen = None
        for group, heaps in self.heaps.get(ex.name, {}).items():
            if group in ex.groups.values():
                continue
            for heap in heaps.values():
                for due, seq, offer in heap:
                    if offer.run.promised and offer.live and offer.seq == seq and (best is None or (due, seq) < best):
                        best, chosen = (due, seq), group
        return chosen

    def first(self, ex: ExecBook, group: Group) -> Offer:
        """The most urgent offer of a group that has one."""
        return min(heap[0] for heap in self.heaps[ex.name][group].values())[2]

    def waits(self, ex: ExecBook, tenant: Tenant) -> bool:
        """Whether anything of a tenant waits for an executor."""
        for heaps in self.heaps.get(ex.name, {}).values():
            for _, seq, offer in heaps.get(tenant, ()):  # the first is alive as a rule
                if offer.live and offer.seq == seq:
                    return True
        return False

    def drop(self, executor: str) -> None:
        self.heaps.pop(executor, None)


class Batch:
    """A batch that is being filled.

    Args:
        grow: gives an offer its blocks, or parks it. It is told who is in the batch already.
        slack: seconds that it may take before promised listeners suffer; then those that nobody promised anything stay out.
    """

    def __init__(self, limits: OpLimits, model: OpModel, grow: Grow, slack: float = NEVER) -> None:
        self.grow = grow
        self.picked: list[Offer] = []
        self.places, self.size = limits.units, limits.size
        self.model = model
        self.slack = slack
        self.seconds = model.speed * model.theta[0] if slack < NEVER else 0.0
        self.full = False
        self.extra = 0.0  # seconds of those that are in it beyond the slack

    @property
    def spare(self) -> int | None:
        """What those that nobody promised anything may share beyond their least; None: all that fits. A usual batch may always
        be, or a prompt would crawl."""
        if self.slack == NEVER:
            return None
        left = max(self.slack, self.model.mean) - self.seconds
        work = self.model.speed * self.model.theta[2]
        return max(0, int(left / work)) if work > 0.0 else None

    def price(self, offer: Offer) -> float:
        """Seconds that the least of an offer adds."""
        _, unit, work, reach = self.model.theta
        lo = offer.unit.lo
        seen = lo * (offer.unit.cached + lo) if offer.unit.kind.block else 0
        return self.model.speed * (unit + work * lo * offer.unit.weight + reach * seen)

    def fill(self, heap: Heap, aside: Heap, most: int = 1 << 30) -> int:
        """Takes offers from a heap that have room for their least, `most` of them; returns how many. Those that must stay out
        go aside.

        A suspect (its last batch broke) runs alone until it is past the step that failed.
        """
        picked, places, size = self.picked, self.places, self.size
        before = len(picked)
        places = min(places, before + most)
        while heap and len(picked) < places:
            entry = heappop(heap)
            offer = entry[2]
            if not offer.live or offer.seq != entry[1]:
                continue
            unit = offer.unit
            solo = bool(offer.run.solo) and unit.loop in offer.run.solo
            if unit.lo > size or (solo and picked):
                aside.append(entry)
                self.full = True
                break
            price = extra = 0.0
            if self.slack < NEVER:
                price = self.price(offer)
                if picked and not offer.run.promised and self.seconds + price > self.slack:
                    # Left out, it costs a batch of its own: so some may stay, as long as all of them cost less than that.
                    if self.extra + price > self.model.speed * self.model.theta[0]:
                        aside.append(entry)
                        continue
                    extra = price
            kind = unit.kind
            lacks = (kind.block or kind.fixed) and (not offer.held or unit.cached + unit.lo > offer.cover)
            if lacks and not self.grow(offer, picked):
                continue
            if self.slack < NEVER:
                self.extra += extra
                self.seconds += price
            offer.live = False
            size -= unit.lo
            picked.append(offer)
            if solo:
                self.full = True
                break
        self.size = size
        self.full = self.full or len(picked) >= self.places
        return len(picked) - before


def pick(heaps: dict[Tenant, Heap], batch: Batch, shares: dict[Tenant, float] | None = None) -> None:
    """The members of a batch, by rank. With `shares`, place by place of the tenant that is least served, who is charged at once
    for the least of his unit."""
    if len(heaps) == 1:
        (heap,) = heaps.values()
        left: Heap = []
        batch.fill(heap, left)
        for entry in left:
            heappush(heap, entry)
        return
    turns: list[tuple[float, float, int, Tenant]] = []
    for tenant, heap in heaps.items():
        if heap:
            turns.append((shares.get(tenant, 0.0) if shares is not None else 0.0, heap[0][0], heap[0][1], tenant))
    heapify(turns)
    lefts: dict[Tenant, Heap] = {tenant: [] for tenant in heaps}
    while turns and not batch.full:
        served, _, _, tenant = heappop(turns)
        heap = heaps[tenant]
        if batch.fill(heap, lefts[tenant], 1) and shares is not None:
            served += batch.price(batch.picked[-1]) / tenant.weight
        if heap:
            heappush(turns, (served, heap[0][0], heap[0][1], tenant))
    for tenant, left in lefts.items():
        for entry in left:
            heappush(heaps[tenant], entry)


def grants(
    ex: ExecBook, picked: list[Offer], limits: OpLimits, alone: bool, bill: Bill, memory: Memory, spare: int | None = None
) -> list[Grant]:
    """Everybody has the least, so a long prefill never stops the decodes beside it; what is left of the budget is shared.

    While anybody else waits (not `alone`), nobody is granted more than a chunk: the others' next step is then at most one
    batch of short units and a few chunks away, however long the prompt that came in between. With `spare`, those that nobody
    promised anything have no more than so much to share.
    """
    chunk = limits.size if alone or limits.chunk is None else limits.chunk
    room = limits.size
    wants: dict[int, int] = {}  # place in the batch -> how much more than its least a unit could use
    forks: dict[int, Fork] = {}
    for at, offer in enumerate(picked):
        unit = offer.unit
        room -= unit.lo
        want = unit.hi - unit.lo
        if offer.chain and not unit.cached and ex.reuse and (fork := _fork(ex, offer)) is not None:
            forks[at] = fork
            want -= fork.length  # what is copied costs no budget
        if want > 0 and chunk > unit.lo:
            wants[at] = min(want, chunk - unit.lo)
    if wants:
        several = len(ex.shares) > 1
        if spare is None:
            more = shares_of_tenants(wants, room, picked) if several else shares(wants, room)
        else:  # the promised first: what they make is what there is too little of
            first = {at: want for at, want in wants.items() if picked[at].run.promised}
            more = shares(first, room)
            rest = {at: want for at, want in wants.items() if at not in first}
            room = min(room - sum(more.values()), spare)
            more |= shares_of_tenants(rest, room, picked) if several else shares(rest, room)
    else:
        more = wants
    made = []
    each, heavy, far = bill.each, bill.heavy, bill.far
    work = reach = total = 0.0
    for at, offer in enumerate(picked):
        unit = offer.unit
        found = forks.get(at) if forks else None
        size = unit.lo + (more.get(at, 0) if more else 0) + (found.length if found is not None else 0)
        kind = unit.kind
        if kind.block and unit.cached + size > offer.cover:  # only what is free: nobody is sent away for more than the least
            more_blocks = memory.extra(ex, offer, -(-(unit.cached + size) // kind.block) + kind.fixed - offer.held)
            if more_blocks > 0:
                ex.ledgers[kind.expert].take(unit.run, unit.loop, more_blocks)
                offer.held += more_blocks
                offer.cover += more_blocks * kind.block
            size = min(size, offer.cover - unit.cached)
        blocks: tuple[int, ...] = ()
        if offer.sent < offer.held:
            blocks = tuple(ex.ledgers[kind.expert].held[unit.run, unit.loop][offer.sent :])
        offer.size = size
        computed = size if found is None else size - found.length
        mine = computed * unit.weight
        cost = each + heavy * mine
        work += mine
        if kind.block:
            seen = computed * (unit.cached + computed)
            reach += seen
            cost += far * seen
        offer.cost = cost
        total += cost
        made.append(Grant(unit.run, unit.loop, size, offer.sent, blocks, found))
    bill.work, bill.reach, bill.total = work, reach, max(total, 1e-9)
    return made


def shares(wants: dict[int, int], spare: int) -> dict[int, int]:
    """A budget among those who want more: equal parts, and what the modest leave goes to the others.

    By rank alone a long text in front leaves one frame a batch to a short one behind it: 86 batches for a second of sound.
    """
    given: dict[int, int] = {}
    left = len(wants)
    for at, want in sorted(wants.items(), key=lambda item: (item[1], -item[0])):  # the remainder goes by rank
        given[at] = min(want, spare // left)
        spare -= given[at]
        left -= 1
    return given


def shares_of_tenants(wants: dict[int, int], spare: int, picked: list[Offer]) -> dict[int, int]:
    """The same among tenants first, by weight, so that ten prompts of one leave half to the only one of another."""
    mine: dict[Tenant, dict[int, int]] = {}
    for at, want in wants.items():
        mine.setdefault(picked[at].run.tenant, {})[at] = want
    given: dict[int, int] = {}
    weight = sum(tenant.weight for tenant in mine)
    for tenant, places in sorted(mine.items(), key=lambda item: (sum(item[1].values()) / item[0].weight, min(item[1]))):
        part = min(sum(places.values()), int(spare * tenant.weight / weight + 1e-9))
        given |= shares(places, part)
        spare -= part
        weight -= tenant.weight
    return given


def _fork(ex: ExecBook, offer: Offer) -> Fork | None:
    """The longest beginning that another loop on this executor holds; at least one position is left to compute."""
    unit = offer.unit
    ledger = ex.ledgers[unit.kind.expert]
    found = ledger.prefixes.find(offer.chain)
    if found is None:
        return None
    key, blocks = found
    ledger.used(key)
    return Fork(*key, min(blocks * unit.kind.block, unit.hi - 1))
