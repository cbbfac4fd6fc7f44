"""Promises: who is let in, who waits and how long, who is refused; and what the gate in front of a listener holds back.

The toys' sound is 2 samples a code at 8000 a second: 1 ms for a code of the thinker, the talker and the vocoder each
would be far too slow, and 10 µs and a µs a unit take some 13 % of the device for the first stream, and little for one more.
"""

from __future__ import annotations

from typing import Any

import pytest
from stage import CARDS, PROGRAMS
from test_fairness import admitted
from watch import Watch

from omni_runtime.executors.simulated import Cost, SimulatedExecutor
from omni_runtime.scheduler.supply import RESERVE
from omni_runtime.sim import SimHandle
from omni_runtime.work import StepResult

OPS = [(expert, op) for expert, op in SimulatedExecutor("x", *CARDS).specs]
CODES = 40


def house(fixed: float = 1e-5, unit: float = 1e-6, **options: Any) -> Watch:
    return Watch(costs={key: Cost(fixed=fixed, per_unit=unit) for key in OPS}, stops=0, **options)


def sing(sim: Watch, codes: int = CODES, seed: int = 3, **more: Any) -> SimHandle:
    given = {"think": {"max_tokens": codes}, "talk": {"max_tokens": codes}}
    return sim.submit(PROGRAMS["cascade2"], messages="m", outputs=("audio",), seed=seed, **given, **more)


def promised(sim: Watch, **more: Any) -> SimHandle:
    return sing(sim, guarantee="no-underrun", **more)


def taught(**options: Any) -> Watch:
    """Some requests have run, so paces and prices are known, of batches of one and of several."""
    sim = house(**options)
    for several in (1, 2, 3):
        for _ in range(several):
            sing(sim)
        sim.finish_all()
    return sim


def load(sim: Watch) -> float:
    return max(sim.core.scheduler.supply.load().values(), default=0.0)


def alone(codes: int = CODES) -> list[float]:
    sim = house()
    handle = sing(sim, codes)
    sim.finish_all()
    return handle.chunks["audio"]


def test_before_anything_is_known_one_stream_at_a_time_is_let_in() -> None:
    sim = house()
    handles = [promised(sim) for _ in range(4)]
    sim.finish_all()
    assert admitted(sim) == [1, 2, 3, 4]
    assert sim.waits.keys() <= {2, 3, 4}
    assert 2 in sim.waits
    assert all(told[-1] is None and None not in told[:-1] for told in sim.waits.values())
    assert all(handle.end is not None and handle.end.reason == "done" for handle in handles)


def test_promises_are_kept_to_the_devices_time() -> None:
    """As many streams as fit below 1 - RESERVE; the next ones wait in order and come when those before them have ended."""
    sim = taught(fixed=1e-5, unit=1.5e-5)
    handles = [promised(sim) for _ in range(8)]
    most = before = 0
    while sim.busy:
        playing = len(sim.core.scheduler.supply.streams)
        assert playing <= before or load(sim) <= 1.0 - RESERVE, "let in over the limit"
        most, before = max(most, playing), playing
        sim.step()
    assert 1 < most < 8, "all or one at a time: nothing is tried here"
    assert [run for run in admitted(sim) if run >= handles[0].run] == [handle.run for handle in handles]
    assert all(handle.end is not None and handle.end.reason == "done" for handle in handles)
    assert all(told[-1] is None and all(s is not None and s >= 0.0 for s in told[:-1]) for told in sim.waits.values())


def test_what_nobody_promised_passes_a_waiting_promise() -> None:
    sim = house()
    for _ in range(3):
        promised(sim)
    plain = sing(sim)
    sim.step(3)
    assert plain.run in admitted(sim)
    assert 2 not in admitted(sim)
    sim.finish_all()


def test_the_queue_of_promises_is_bounded() -> None:
    sim = house()
    sim.core.scheduler.admission.most = 2
    handles = [promised(sim) for _ in range(5)]
    sim.step(2)
    ends = [handle.end for handle in handles]
    assert [end is None for end in ends] == [True, True, True, False, False]
    for end in ends[3:]:
        assert end is not None
        assert end.reason == "overloaded"
        assert end.retry_after > 0.0
        assert "the limit" in end.detail
    sim.finish_all()
    assert admitted(sim) == [1, 2, 3]


def test_a_wait_that_is_longer_than_it_can_be_used_is_refused() -> None:
    """The estimate is what an equal stream takes from here on."""
    sim = house()
    promised(sim)
    sim.step(3)
    soon, late = promised(sim, first_output_s=1e-6), promised(sim, first_output_s=1e3)
    sim.step(6)
    assert soon.end is not None
    assert soon.end.reason == "overloaded"
    assert soon.end.retry_after >= 0.1
    assert "first_output_s" in soon.end.detail
    sim.finish_all()
    assert late.end is not None
    assert late.end.reason == "done"


def test_the_estimate_is_of_the_right_size() -> None:
    """A stream that waits for a longer one is told a time within a factor of four of what it becomes."""
    sim = taught(fixed=1e-5, unit=4e-5)
    first, second = promised(sim), promised(sim)
    while second.waiting is None:
        assert second.end is None
        assert second.run not in admitted(sim)
        sim.step()
    told, came = second.waiting, sim.now
    while first.end is None:
        sim.step()
    sim.step(2)
    assert second.run in admitted(sim)
    assert (sim.now - came) / 4 <= told <= (sim.now - came) * 4
    sim.finish_all()


def test_a_stream_that_is_too_slow_even_alone_is_refused() -> None:
    sim = taught(fixed=1e-3)
    handle = promised(sim)
    sim.finish_all()
    assert handle.end is not None
    assert handle.end.reason == "too_slow"
    assert "a second of its sound takes" in handle.end.detail
    assert handle.end.units.get("talk", 0) == 0, "refused before it holds anything"
    assert not handle.chunks


def test_sound_is_held_back_until_the_start_is_safe_and_then_comes_whole() -> None:
    """Nothing is known: it must give as much sound as time has passed, and a second of it, before any is heard; so all of this is
    held to its end, and comes as it would have come."""
    sim = house()
    handle = promised(sim)
    while sim.busy:
        sim.step()
        assert handle.end is not None or not handle.chunks, "heard before it is safe"
    assert handle.chunks["audio"] == alone()
    assert len(handle.times["audio"]) > 1, "as it was made"
    assert handle.end is not None
    assert handle.end.silence == {"audio": 0.0}


def test_the_gate_opens_when_what_is_made_covers_the_longest_wait() -> None:
    sim = taught(fixed=1e-5, unit=4e-5)
    handle = promised(sim, codes=60)
    (listener,) = sim.core.flow.runs[handle.run].listeners.values()
    supply = sim.core.scheduler.supply
    early = 0
    while not listener.begun:
        early += listener.made > 0.0
        assert not handle.chunks
        sim.step()
    assert early, "it opens with the first sound"
    assert handle.end is None, "it opens at the end only"
    assert listener.made >= supply.need(listener, supply.load()) / 2
    assert listener.delivered == pytest.approx(listener.made)
    sim.finish_all()
    assert handle.chunks["audio"] == alone(60)


def breaking(at: int) -> Any:
    """A talker that says codes and raises at one of them."""

    def forward(row: Any, slots: Any) -> StepResult:
        index = row.payload.index
        if index == at:
            raise RuntimeError("breaks")
        return StepResult(1000 + index, b"x") if index >= 0 else StepResult()

    return forward


def test_what_was_held_is_delivered_when_the_request_fails() -> None:
    whole, broken = (house(fakes={("toy/talker", "forward"): breaking(at)}) for at in (99, 20))
    handles = [sing(whole), promised(broken)]
    whole.finish_all()
    broken.finish_all()
    assert [handle.end.reason for handle in handles if handle.end is not None] == ["done", "failed"]
    got, all_ = handles[1].chunks["audio"], handles[0].chunks["audio"]
    assert len(got) >= 2 * 15, "what was made is lost"
    assert got == all_[: len(got)]


def test_what_was_held_is_not_delivered_after_a_cancel() -> None:
    sim = house()
    handle = promised(sim)
    (listener,) = sim.core.flow.runs[handle.run].listeners.values()
    while listener.made == 0.0:
        sim.step()
    sim.cancel(handle.run)
    sim.finish_all()
    assert handle.end is not None
    assert handle.end.reason == "cancelled"
    assert not handle.chunks


def test_a_stream_that_ended_makes_room() -> None:
    """Cancelled ones as well, those in the queue included."""
    sim = house()
    handles = [promised(sim) for _ in range(4)]
    sim.step(2)
    sim.cancel(2)
    sim.cancel(1)
    sim.finish_all()
    assert admitted(sim) == [1, 3, 4]
    assert [handle.end.reason for handle in handles if handle.end is not None] == ["cancelled", "cancelled", "done", "done"]


def test_no_junior_passes_a_waiting_promise() -> None:
    """The second needs more than there is, the third would fit beside the first: it waits all the same, or the second would wait
    for ever."""
    sim = taught(fixed=1e-5, unit=2e-5)
    first = promised(sim)
    supply = sim.core.scheduler.supply
    fits = supply.fits
    supply.fits = lambda listeners, now: not supply.streams or (len(second) == 1 and listeners is not second[0])
    second: list[Any] = []
    big = promised(sim)
    second.append(None)
    while big.run not in sim.core.scheduler.admission.held:
        second[0] = sim.core.scheduler.runs[big.run].promised if big.run in sim.core.scheduler.runs else None
        sim.step()
    small = promised(sim)
    while first.end is None:
        assert small.run not in admitted(sim), "it passes"
        sim.step()
    supply.fits = fits
    sim.finish_all()
    order = admitted(sim)
    assert order.index(big.run) < order.index(small.run)


@pytest.mark.parametrize("policy", ["deadline", "first_come"])
def test_a_chunk_is_what_the_buffer_asks_for(policy: str) -> None:
    """The vocoder has all frames of a clause before it: it decodes one for who has heard nothing. Others take all."""
    sim = house(policy=policy)
    for _ in range(2):  # the first teaches the price
        handle = sim.submit(PROGRAMS["clauses3"], messages="m", outputs=("audio",), seed=3, think={"max_tokens": 60})
        sim.finish_all()
    sizes = [row.size for batch in sim.batches if batch.op == "decode_audio" for row in batch.rows if row.run == handle.run]
    assert handle.end is not None
    assert handle.end.reason == "done"
    assert (sizes[0] == 1) == (policy == "deadline"), sizes
    assert max(sizes) > 1


# -- The door


def test_tenants_take_turns_at_the_door() -> None:
    """Ten big requests of one do not make the only one of another wait for ten; within a tenant the order is by age."""
    sim = Watch(costs={("toy/mot", "forward"): Cost(fixed=0.01)}, stops=0, blocks=6)
    fill = {"prompt": list(range(1, 21)), "outputs": ("text",), "think": {"max_tokens": 4}}
    for _ in range(10):
        sim.submit(PROGRAMS["prompted"], tenant="many", **fill)
    for _ in range(2):
        sim.submit(PROGRAMS["prompted"], tenant="one", **fill)
    sim.finish_all()
    order = admitted(sim)
    assert order[:4] == [1, 11, 2, 12], order
    assert [run for run in order if run <= 10] == list(range(1, 11))


def test_who_weighs_more_has_more_at_the_door() -> None:
    """Three pools' worth: two of the heavy tenant's for one of the light one's."""
    sim = Watch(costs={("toy/mot", "forward"): Cost(fixed=0.01)}, stops=0, blocks=18, tenants={"light": 1.0, "heavy": 2.0})
    for tenant in ("light", "heavy"):
        for _ in range(6):
            given = {"prompt": list(range(1, 21)), "outputs": ("text",), "think": {"max_tokens": 4}}
            sim.submit(PROGRAMS["prompted"], tenant=tenant, **given)
    light = heavy = 0
    while sim.busy:
        live = sim.core.scheduler.tenants
        if len(sim.core.scheduler.admission.waiting) >= 3 and sim.handles[1].end is not None:
            light, heavy = light + live["light"].admitted, heavy + live["heavy"].admitted
        sim.step()
    assert 1.5 * light <= heavy <= 2.5 * light, (light, heavy)


def test_a_heavy_tenant_without_end_leaves_a_light_one_its_turn() -> None:
    """A pool for one, five turns to one, and a heavy request more whenever one has ended."""
    sim = Watch(costs={("toy/mot", "forward"): Cost(fixed=0.01)}, stops=0, blocks=6, tenants={"light": 1.0, "heavy": 5.0})
    given = {"prompt": list(range(1, 21)), "outputs": ("text",), "think": {"max_tokens": 4}}
    heavy = [sim.submit(PROGRAMS["prompted"], tenant="heavy", **given) for _ in range(8)]
    light = [sim.submit(PROGRAMS["prompted"], tenant="light", **given) for _ in range(2)]
    while light[-1].end is None:
        assert len(heavy) < 40, "starves"
        sim.step()
        if sum(handle.end is None for handle in heavy) < 8:
            heavy.append(sim.submit(PROGRAMS["prompted"], tenant="heavy", **given))
    assert sum(handle.end is not None for handle in heavy) >= 5, "weights mean nothing"
    for handle in heavy:
        sim.cancel(handle.run)
    sim.finish_all()


def test_nobody_fills_the_house_alone() -> None:
    """With declared tenants each has its part of `max_runs`; others keep theirs."""
    sim = Watch(stops=0, max_runs=8, tenants={"a": 1.0, "b": 3.0})
    given = {"prompt": [1], "outputs": ("text",), "think": {"max_tokens": 20}}
    mine = [sim.submit(PROGRAMS["prompted"], tenant="a", **given) for _ in range(4)]
    other = [sim.submit(PROGRAMS["prompted"], tenant="b", **given) for _ in range(7)]
    refused = [handle.end.detail for handle in (*mine, *other) if handle.end is not None]
    assert [handle.end is None for handle in mine] == [True, True, False, False]
    assert [handle.end is None for handle in other] == [True] * 6 + [False]
    assert "tenant 'a' has 2 requests alive" in refused[0]
    sim.finish_all()
    again = sim.submit(PROGRAMS["prompted"], tenant="a", **given)
    sim.finish_all()
    assert again.end is not None
    assert again.end.reason == "done"
