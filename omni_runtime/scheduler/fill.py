"""From ready offers to a batch: the most urgent group that the executor may take, filled by rank."""

from __future__ import annotations

from heapq import heappop, heappush

from omni_runtime.card import OpLimits
from omni_runtime.orders import Grant
from omni_runtime.scheduler.book import ExecBook, Group, Offer
from omni_runtime.work import Fork

Heap = list[tuple[float, int, Offer]]


class Queues:
    """Ready offers by executor and group, each a heap of (due, seq, offer); withdrawn ones are skipped when met."""

    def __init__(self) -> None:
        self.heaps: dict[str, dict[Group, Heap]] = {}

    def push(self, offer: Offer) -> None:
        groups = self.heaps.setdefault(offer.home or "", {})
        group = offer.unit.kind.group
        heap = groups.get(group)
        if heap is None:
            heap = groups[group] = []
        heappush(heap, (offer.due, offer.seq, offer))

    def head(self, executor: str, busy: dict[int, Group]) -> Group | None:
        """The group of the most urgent offer, leaving out groups that are in flight: one of their batches is waited for
        anyway, and taking them again would split eight decodes into alternating fours at half the throughput."""
        best: tuple[float, int, Offer] | None = None
        chosen = None
        empty = []
        for group, heap in self.heaps.get(executor, {}).items():
            while heap and not (heap[0][2].live and heap[0][2].seq == heap[0][1]):
                heappop(heap)
            if not heap:
                empty.append(group)
            elif (best is None or heap[0] < best) and group not in busy.values():
                best, chosen = heap[0], group
        for group in empty:
            del self.heaps[executor][group]
        return chosen

    def drop(self, executor: str) -> None:
        self.heaps.pop(executor, None)


def pick(heap: Heap, limits: OpLimits) -> list[Offer]:
    """The members of a batch, by rank, each with room for its least.

    A suspect (its last batch broke) runs alone until it is past the step that failed.
    """
    budget, put_back = limits.size, None
    picked: list[Offer] = []
    while heap and len(picked) < limits.units:
        entry = heappop(heap)
        offer = entry[2]
        if not offer.live or offer.seq != entry[1]:
            continue
        unit = offer.unit
        solo = bool(offer.run.solo) and unit.loop in offer.run.solo
        if unit.lo > budget or (solo and picked):
            put_back = entry
            break
        offer.live = False
        budget -= unit.lo
        picked.append(offer)
        if solo:
            break
    if put_back is not None:
        heappush(heap, put_back)
    return picked


def grants(ex: ExecBook, picked: list[Offer], limits: OpLimits, alone: bool) -> list[Grant]:
    """Everybody has the least, so a long prefill never stops the decodes beside it; what is left of the budget is shared.

    While anybody else waits (not `alone`), nobody is granted more than a chunk: the others' next step is then at most one
    batch of short units and a few chunks away, however long the prompt that came in between.
    """
    chunk = limits.size if alone or limits.chunk is None else limits.chunk
    spare = limits.size
    wants: dict[int, int] = {}  # place in the batch -> how much more than its least a unit could use
    forks: dict[int, Fork] = {}
    for at, offer in enumerate(picked):
        unit = offer.unit
        spare -= unit.lo
        want = unit.hi - unit.lo
        if offer.chain and not unit.cached and ex.reuse and (fork := _fork(ex, offer)) is not None:
            forks[at] = fork
            want -= fork.length  # what is copied costs no budget
        if want > 0 and chunk > unit.lo:
            wants[at] = min(want, chunk - unit.lo)
    more = shares(wants, spare) if wants else wants
    made = []
    for at, offer in enumerate(picked):
        unit = offer.unit
        found = forks.get(at) if forks else None
        size = unit.lo + (more.get(at, 0) if more else 0) + (found.length if found is not None else 0)
        kind = unit.kind
        if (kind.block or kind.fixed) and (not offer.held or unit.cached + size > offer.cover):
            need = kind.fixed - offer.held
            if kind.block:
                need += -(-(unit.cached + size) // kind.block)
            if need > 0:
                ex.ledgers[kind.expert].take(unit.run, unit.loop, need)
                offer.held += need
            offer.cover = (offer.held - kind.fixed) * kind.block if kind.block else 1 << 62
        blocks: tuple[int, ...] = ()
        if offer.sent < offer.held:
            blocks = tuple(ex.ledgers[kind.expert].held[unit.run, unit.loop][offer.sent :])
        offer.size, offer.copied = size, found.length if found is not None else 0
        made.append(Grant(unit.run, unit.loop, size, offer.sent, blocks, found))
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
