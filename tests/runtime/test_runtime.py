"""The runtime in front of simulated executors, every message encoded both ways: handles, errors, cancels, shutdown."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_runtime.errors import (
    EngineStopped,
    ExecutorLost,
    Overloaded,
    RequestCancelled,
    RequestError,
    RequestFailed,
    RequestTooLarge,
)
from omni_runtime.executors.loopback import LoopbackExecutor
from omni_runtime.executors.simulated import Cost, SimulatedExecutor
from omni_runtime.handle import Handle
from omni_runtime.runtime import Runtime

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from toys import CARD, CHOICES, PROGRAMS


class Stage:
    """A runtime, and the simulated executor behind it."""

    def __init__(self, **options: Any) -> None:
        runtime = {k: options.pop(k) for k in ("max_requests", "slots") if k in options}
        self.executor = SimulatedExecutor("sim#1", CARD, **{"blocks": 4000, **options})
        self.runtime = Runtime([CARD], executors=[LoopbackExecutor(self.executor)], **runtime)

    def submit(self, name: str = "text", **given: Any) -> Handle:
        return self.runtime.submit(PROGRAMS[name], **{"messages": "hi", "seed": 1, **given})

    def wait_idle(self) -> None:
        """Nothing of any request is left, on either side of the wire."""
        deadline = time.monotonic() + 10
        while not (self.runtime.idle and self.executor.slots.counts == (0, 0)):
            assert time.monotonic() < deadline, f"left over: {self.executor.slots.counts}, idle {self.runtime.idle}"
            time.sleep(0.001)
        self.runtime._engine._core.check_idle()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.runtime.close()


def whole(handle: Handle) -> dict[str, Any]:
    """What the chunks of a handle add up to, checked as they come."""
    got: dict[str, list[Any]] = {}
    counts: dict[str, int] = {}
    for chunk in handle:
        items: Any = chunk.text if chunk.text is not None else chunk.samples if chunk.samples is not None else None
        items = items if items is not None else chunk.tokens if chunk.tokens is not None else chunk.items
        assert chunk.seq == counts.get(chunk.output, 0), "chunks are numbered"
        counts[chunk.output] = chunk.seq + 1
        got.setdefault(chunk.output, []).append(items)
    return {
        name: "".join(parts) if isinstance(parts[0], str) else [x for part in parts for x in part] for name, parts in got.items()
    }


@pytest.mark.parametrize(("name", "outputs"), CHOICES)
def test_streamed_equals_whole(stage: Stage, name: str, outputs: tuple[str, ...]) -> None:
    streamed = whole(stage.submit(name, outputs=outputs))
    result = stage.submit(name, outputs=outputs).result(10)
    assert set(result.outputs) == set(outputs)
    assert set(result.finish) == set(outputs)
    for output, value in result.outputs.items():
        assert streamed[output] == (value.tolist() if isinstance(value, np.ndarray) else value)
    stage.wait_idle()


def test_a_handle_can_be_read_twice_and_by_several(stage: Stage) -> None:
    handle = stage.submit("cascade2")
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(whole(handle))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(results) == 4
    assert all(r == results[0] for r in [*results, whole(handle)])


def test_crowd_gives_what_each_gives_alone(stage: Stage) -> None:
    alone = {}
    for seed in range(4):
        for name, outputs in CHOICES:
            result = stage.submit(name, outputs=outputs, seed=seed).result(10)
            alone[seed, name, outputs] = {k: np.asarray(v).tolist() for k, v in result.outputs.items()}
    handles = {key: stage.submit(key[1], outputs=key[2], seed=key[0]) for key in alone}
    for key, handle in handles.items():
        assert {k: np.asarray(v).tolist() for k, v in handle.result(10).outputs.items()} == alone[key]
    stage.wait_idle()


def test_async(stage: Stage) -> None:
    async def main() -> None:
        handles = [stage.submit("clauses3", seed=s) for s in range(10)]
        results = await asyncio.gather(*handles)
        for handle, result in zip(handles, results, strict=True):
            text = ""
            async for chunk in handle:
                text += chunk.text or ""
            assert text == result.text
            assert (await handle).audio.tolist() == result.audio.tolist()

    asyncio.run(main())
    stage.wait_idle()


def test_async_does_not_block_the_loop() -> None:
    stage = Stage(pace=1.0, costs={("toy/mot", "forward"): Cost(0.05)})
    ticks = 0

    async def main() -> None:
        nonlocal ticks
        task = asyncio.ensure_future(_wait(stage.submit("text", max_tokens=4)))
        while not task.done():
            ticks += 1
            await asyncio.sleep(0.001)
        await task

    with stage.runtime:
        asyncio.run(main())
    assert ticks > 20


async def _wait(handle: Handle) -> Any:
    return await handle


def test_seed_is_returned_and_repeats(stage: Stage) -> None:
    first = stage.submit("text", seed=None)
    again = stage.submit("text", seed=first.result(10).seed)
    assert first.result(10).text == again.result(10).text
    assert stage.submit("text", seed=0).result(10).seed == 0
    assert len({stage.submit("text", seed=None).seed for _ in range(20)}) == 20


def test_timings_and_usage(stage: Stage) -> None:
    result = stage.submit("cascade2", think={"max_tokens": 5}, talk={"max_tokens": 7}).result(10)
    assert 0 < result.timings.first["text"] <= result.timings.last["text"] <= result.timings.total
    assert result.usage["think"]["completion_tokens"] <= 5
    assert result.usage["chant"]["samples"] == len(result.audio)
    assert result.units["think"] == result.usage["think"]["completion_tokens"]
    assert result.sample_rates == {"audio": 8000}
    for output in ("text", "audio"):
        came, items = zip(*result.timings.chunks[output], strict=True)
        assert list(came) == sorted(came)
        assert (came[0], came[-1]) == (result.timings.first[output], result.timings.last[output])
        assert min(items) > 0
    assert sum(items) == len(result.audio)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_tokns": 3}, ["max_tokns", "did you mean 'max_tokens'"]),
        ({"max_tokens": -1}, ["max_tokens", "-1", "greater than or equal to 0"]),
        ({"max_tokens": "5"}, ["max_tokens", "'5'", "integer"]),
        ({"max_tokens": 2.5}, ["max_tokens", "2.5", "integer"]),
        ({"max_tokens": True}, ["max_tokens", "True", "integer"]),
        ({"temperature": float("nan")}, ["temperature", "finite"]),
        ({"temperature": -0.1}, ["temperature", "-0.1"]),
        ({"top_p": 0.0}, ["top_p", "0.0"]),
        ({"top_p": 1.1}, ["top_p", "1.1"]),
        ({"stop": ["a", ""]}, ["stop", "empty"]),
        ({"stop": 3}, ["stop", "3"]),
        ({"outputs": ["txt"]}, ["txt", "did you mean 'text'"]),
        ({"outputs": []}, ["outputs", "at least"]),
        ({"outputs": ["text", "text"]}, ["outputs", "once"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"seed": 2**63}, ["seed", "less than"]),
        ({"seed": "7"}, ["seed", "'7'"]),
        ({"priority": "urgent"}, ["priority", "urgent", "high"]),
        ({"messages": None}, ["messages", "needs this input"]),
        ({"think": {"max_tokns": 1}}, ["think", "max_tokns", "max_tokens"]),
        ({"think": 5}, ["think", "mapping", "5"]),
    ],
)
def test_wrong_requests_are_refused_by_name(stage: Stage, given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        stage.submit("text", **given)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert stage.submit("text").result(10).text, "the runtime goes on"


def test_ambiguous_parameter_names_the_loops(stage: Stage) -> None:
    with pytest.raises(RequestError, match=r"think.*talk"):
        stage.submit("cascade2", max_tokens=3)


@pytest.mark.parametrize(("given", "tokens"), [(0, 0), (1, 1), (None, None), (10**9, None)])
def test_max_tokens_at_its_borders(stage: Stage, given: int | None, tokens: int | None) -> None:
    """Case 12: 0 is accepted and gives nothing; None is as long as the context allows."""
    stage.executor.stops = 0
    result = stage.submit("clauses3", max_tokens=given).result(10)
    assert result.finish["text"] == "length"
    used = result.usage["think"]
    assert used["completion_tokens"] == (64 - used["prompt_tokens"] if tokens is None else tokens)
    if tokens == 0:
        assert result.text == ""
        assert len(result.audio) == 0
        assert result.finish["audio"] == "done"
    stage.wait_idle()


def test_too_large_is_refused_with_need_and_capacity() -> None:
    stage = Stage(blocks=2)  # 8 positions
    with stage.runtime:
        ok = [stage.submit("text", max_tokens=2) for _ in range(3)]
        big = stage.submit("diamond")
        with pytest.raises(RequestTooLarge, match=r"at least \d+ KV blocks.*has 2"):
            big.result(10)
        with pytest.raises(RequestTooLarge):
            whole(big)
        for handle in ok:
            assert handle.result(10).finish["text"] in ("stop", "length")
        stage.wait_idle()


def test_overload_is_refused_and_passes() -> None:
    stage = Stage(max_requests=2, pace=1.0, costs={("toy/mot", "forward"): Cost(0.02)})
    with stage.runtime:
        handles = [stage.submit("text") for _ in range(4)]
        for handle in handles[2:]:
            with pytest.raises(Overloaded, match="limit"):
                handle.result(10)
        for handle in handles[:2]:
            assert handle.result(10).text
        assert stage.submit("text").result(10).text
        stage.wait_idle()


@pytest.mark.parametrize("where", ["host.tokenize", "mot.forward", "voice.utter", "voice.decode_audio"])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_failure_ends_its_request_and_no_other(where: str, streamed: bool) -> None:
    """Case 2: exactly one terminal error, partial results kept, the others untouched, shutdown at once."""
    expert, op = f"toy/{where.split('.')[0]}", where.split(".")[1]
    stage = Stage()
    healthy = stage.submit("text", seed=5).result(10).text

    def fake(row: Any, slots: Any) -> Any:
        if row.run == poisoned:
            raise RuntimeError("out of memory")
        return stage.executor._row(expert, stage.executor.specs[expert, op], row)

    stage.executor.fakes[expert, op] = fake
    with stage.runtime:
        poisoned = 2
        bad, good = stage.submit("clauses3", seed=1), stage.submit("text", seed=5)
        with pytest.raises(RequestFailed, match="out of memory") as caught:
            whole(bad) if streamed else bad.result(10)
        with pytest.raises(RequestFailed):
            bad.result(10)
        assert stage.submit("clauses3", seed=1).result(10).text.startswith(caught.value.partial.text)
        assert good.result(10).text == healthy
        stage.wait_idle()
        start = time.monotonic()
    assert time.monotonic() - start < 2


def test_late_failure_keeps_finished_outputs() -> None:
    def fake(row: Any, slots: Any) -> Any:
        raise RuntimeError("vocoder broke")

    stage = Stage(fakes={("toy/voice", "decode_audio"): fake})
    with stage.runtime:
        handle = stage.submit("clauses3", seed=3)
        with pytest.raises(RequestFailed, match="vocoder broke") as caught:
            handle.result(10)
        alone = stage.submit("clauses3", outputs="text", seed=3).result(10)
    partial = caught.value.partial
    assert alone.text.startswith(partial.text)
    assert "audio" not in partial.finish


def test_an_executor_that_is_gone_for_good_fails_its_requests() -> None:
    def fake(row: Any, slots: Any) -> Any:
        raise SystemExit("the device is gone")

    stage = Stage(fakes={("toy/voice", "utter"): fake})
    with stage.runtime:
        handle = stage.submit("clauses3")
        with pytest.raises(ExecutorLost, match="the device is gone"):
            handle.result(10)
        with pytest.raises(ExecutorLost):
            stage.submit("text").result(10)


# -- Cancel


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.005, 0.02, 0.05, 0.2])
@pytest.mark.parametrize("name", ["clauses3", "cascade1", "diamond", "paint"])
def test_cancel_at_any_moment_returns_every_book(name: str, delay: float) -> None:
    stage = Stage(pace=1.0, costs={(e, op): Cost(0.004) for e, op in SimulatedExecutor("x", CARD).specs})
    with stage.runtime:
        other = stage.submit("text", seed=4)
        handle = stage.submit(name)
        time.sleep(delay)
        handle.cancel()
        handle.cancel()
        began = time.monotonic()
        list(handle)  # ends, and does not raise
        assert time.monotonic() - began < 0.1, "the end comes at once"
        assert handle.done
        assert other.result(10).text
        handle.cancel()
        stage.wait_idle()


def test_cancelled_work_stops() -> None:
    """Case 4: at most the unit in flight and a few more run for a caller who has gone."""
    stage = Stage(pace=1.0, stops=0, costs={("toy/mot", "forward"): Cost(0.01)})
    with stage.runtime:
        handle = stage.submit("text", max_tokens=60)
        next(iter(handle))
        handle.cancel()
        before = stage.executor.calls["forward"]
        assert stage.submit("text", max_tokens=2, seed=2).result(10).text
        assert stage.executor.calls["forward"] - before <= 2 + 2
        stage.wait_idle()


def test_cancel_while_queued() -> None:
    stage = Stage(blocks=5, pace=1.0, stops=0, costs={("toy/mot", "forward"): Cost(0.01)})
    with stage.runtime:
        first = stage.submit("text", max_tokens=12)
        queued = stage.submit("text", max_tokens=12)
        time.sleep(0.03)
        queued.cancel()
        with pytest.raises(RequestCancelled):
            queued.result(10)
        result = first.result(10)
        assert result.usage["think"]["completion_tokens"] == 12
        stage.wait_idle()


# -- Shutdown


def test_close_ends_everything_in_good_time() -> None:
    stage = Stage(pace=1.0, costs={("toy/mot", "forward"): Cost(0.02)})
    handles = [stage.submit("cascade2", seed=s) for s in range(20)]
    time.sleep(0.05)
    start = time.monotonic()
    stage.runtime.close()
    stage.runtime.close()
    assert time.monotonic() - start < 2
    for handle in handles:
        assert handle.done
    with pytest.raises(EngineStopped, match="closed"):
        stage.submit("text")
    assert stage.executor.slots.counts == (0, 0)
    assert not [t for t in threading.enumerate() if t.name.startswith("omni-")]


def test_submits_race_with_close() -> None:
    for _ in range(20):
        stage = Stage()
        handles: list[Handle] = []

        def go(stage: Stage = stage, handles: list[Handle] = handles) -> None:
            try:
                while True:
                    handles.append(stage.submit("text"))
            except EngineStopped:
                pass

        thread = threading.Thread(target=go)
        thread.start()
        time.sleep(0.002)
        stage.runtime.close()
        thread.join(5)
        assert not thread.is_alive()
        assert all(handle.done for handle in handles)


def test_a_broken_core_gives_everybody_a_last_word(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = stage.submit("text")
    handle.result(10)

    def broken(*args: Any) -> Any:
        raise AssertionError("books disagree")

    monkeypatch.setattr(stage.runtime._engine._core, "feed", broken)
    lost = stage.submit("text")
    with pytest.raises(EngineStopped, match="books disagree"):
        lost.result(10)
    with pytest.raises(EngineStopped, match="bug of omni_runtime"):
        stage.submit("text")


def test_result_times_out_and_goes_on() -> None:
    stage = Stage(pace=1.0, costs={("toy/mot", "forward"): Cost(0.05)})
    with stage.runtime:
        handle = stage.submit("text", max_tokens=4)
        with pytest.raises(TimeoutError, match="goes on"):
            handle.result(0.01)
        assert handle.result(10).text


def test_story_tells_what_happened(stage: Stage) -> None:
    handle = stage.submit("text")
    handle.result(10)
    story = "\n".join(stage.runtime.story(handle))
    for word in ("submit text", "tokenize", "admitted", "think"):
        assert word in story


def test_a_program_of_another_card_is_refused(stage: Stage) -> None:
    from omni_runtime.card import ArDecode, ExpertSpec, ModelCard, OpLimits
    from omni_runtime.program import Program

    card = ModelCard(
        name="other",
        experts={"e": ExpertSpec(build="a:b", ops={"forward": OpLimits()})},
        loops={"think": ArDecode(expert="e", context=8)},
    )
    program = Program("p", card)
    program.output("text", program.loop("think", prompt=program.input("prompt")).text)
    with pytest.raises(RequestError, match=r"other.*load it"):
        stage.runtime.submit(program, prompt=[1])
