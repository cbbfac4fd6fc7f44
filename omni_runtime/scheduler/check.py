"""Every book of the scheduler again, from first principles."""

from __future__ import annotations

from omni_runtime.scheduler.scheduler import Scheduler


def check(s: Scheduler) -> None:
    """Raises AssertionError where two books disagree, or where something ready does not run though it could."""
    for ex in s.executors.values():
        assert len(ex.flying) <= ex.slots, f"{ex.name}: {len(ex.flying)} batches in {ex.slots} slots"
        assert set(ex.groups) == set(ex.flying) and len(set(ex.groups.values())) == len(ex.groups), "a group is in flight twice"
        assert ex.pinned == sum(home == ex.name for run in s.runs.values() for home in run.homes.values()), "pins"
        for expert, ledger in ex.ledgers.items():
            ledger.check()
            for run_id, loop in (ledger.held.keys() | ledger.reserved.keys()) - ledger.kept.keys():
                run = s.runs[run_id]
                assert run.admitted and run.homes[expert] == ex.name, f"run {run_id} holds memory it was not admitted to"
                offer = run.offers.get(loop)
                assert offer is None or offer.held == len(ledger.held.get((run_id, loop), ())), "held blocks"
                assert (run.granted or {})[loop] >= len(ledger.held.get((run_id, loop), ())), f"{loop} of {run_id} holds too much"
                assert not run.reserved or (run_id, loop) in ledger.reserved, f"run {run_id} was promised all"
            for other, n in s.memory.claims.get((ex.name, expert), {}).items():
                assert s.runs[other.id] is other and n > 0 and not other.closing, f"run {other.id} claims and is gone"
        for batch, members in ex.flying.items():
            assert s.where[batch] is ex
            limits = s.limits[ex.groups[batch][:2]]
            assert 0 < len(members) <= limits.units, f"batch of {len(members)}"
            for offer in members:
                assert not offer.live and offer.run.flying[offer.unit.loop] == batch
                assert offer.unit.kind.group == ex.groups[batch], "a batch of two groups"
                assert offer.unit.loop not in offer.run.solo or len(members) == 1, "a suspect has company"
        # `requests` and shares leave places empty on purpose, never all.
        suspects = any(o.unit.loop in o.run.solo for run in s.runs.values() for o in run.offers.values() if o.home == ex.name)
        if not suspects and len(ex.flying) < (1 if s.policy.whole or len(ex.shares) > 1 else ex.slots):
            head = s.queues.head(ex, ex.groups)
            waits = head is not None and bool(ex.flying) and s.policy.early(head, s.queues, ex, s.costs)
            assert head is None or waits, f"{ex.name} is idle beside ready work"
    assert set(s.where) == {b for ex in s.executors.values() for b in ex.flying}
    for run in s.runs.values():
        assert not run.closing or run.flying, f"run {run.id} is closed and its books are open"
        assert not run.stale, f"run {run.id} was evicted and the flow does not know"
        assert not run.leaving or run.flying or run.doomed, f"run {run.id} is to leave and nothing keeps it"
        assert (run.id in s.admission.waiting) == (run.claims is not None and not run.admitted and not run.closing), "the door"
        assert run.admitted or not any(offer.held for offer in run.offers.values()), f"run {run.id} holds memory at the door"
        for loop, batch in run.flying.items():
            assert any(o.run is run and o.unit.loop == loop for o in s.where[batch].flying[batch])
        for offer in run.offers.values():
            if offer.parked:
                pool = (offer.home or "", offer.unit.kind.expert)
                assert offer in s.memory.parked[pool] and run in s.memory.claims[pool], "a parked offer that nobody wakes"
                assert offer.live, "a withdrawn offer claims memory"
                ledger = s.executors[pool[0]].ledgers[pool[1]]
                assert offer.need > s.memory.spare(pool, ledger, run), "parked beside what it needs"
            elif offer.live and offer.queued:
                heap = s.queues.heaps[offer.home or ""][offer.unit.kind.group][run.tenant]
                assert any(e[2] is offer and e[1] == offer.seq for e in heap), "a lost offer"
            elif offer.live:
                assert not run.admitted or run.stranded, f"{offer.unit.loop} of run {run.id} is in no queue"
    assert s.admission.held.keys() <= s.admission.waiting.keys(), "a promise to somebody who is gone"
    for run_id in s.supply.streams:
        assert s.runs[run_id].entered and s.runs[run_id].promised, f"run {run_id} was promised nothing"
    for tenant in s.tenants.values():
        mine = [run for run in s.runs.values() if run.tenant is tenant]
        assert tenant.alive == len(mine) and tenant.admitted == sum(run.admitted for run in mine), f"runs of {tenant.name!r}"
    for run in s.admission.order():  # the first one waits for memory that somebody holds, or it would have been let in
        if run.id in s.admission.held or run.stranded or (needs := s.admission.needs(s.executors, run)) is None:
            continue
        short = [pool for pool, n in needs.items() if n > s.memory.spare(pool, s.executors[pool[0]].ledgers[pool[1]], run)]
        assert short, f"run {run.id} waits for nothing"
        break


def idle(s: Scheduler) -> None:
    """Raises AssertionError unless every book is at its baseline: nothing is alive."""
    assert not any(s.memory.claims.values()) and not any(s.memory.parked.values()), "claims of nobody"
    assert not s.supply.streams and not any(tenant.alive or tenant.admitted for tenant in s.tenants.values())
    assert not any(ex.shares for ex in s.executors.values()), "shares of tenants that have nothing"
    assert not s.runs and not s.where and not s.admission.waiting, (s.runs, s.where, s.admission.waiting)
    for ex in s.executors.values():
        assert not ex.flying and not ex.pinned
        for ledger in ex.ledgers.values():
            assert ledger.spare == ledger.total and not ledger.reserved and set(ledger.held) == set(ledger.kept)
            ledger.check()
    for groups in s.queues.heaps.values():
        for heap in (heap for heaps in groups.values() for heap in heaps.values()):
            assert not any(offer.live and offer.seq == seq for _, seq, offer in heap), "an offer of nobody"
