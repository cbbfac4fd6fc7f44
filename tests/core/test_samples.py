"""Several samples of one request: sample i is the request for one sample with seed + i, and the prompt is computed once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from toys import CARD, CHOICES, PROGRAMS

from omni_runtime.errors import RequestError
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.program import Program
from omni_runtime.sim import SimHandle, Simulation


def sim(blocks: int = 2000, reuse: bool = True) -> Simulation:
    return Simulation(SimulatedExecutor("x", CARD, blocks=blocks, reuse=reuse), cards=(CARD,))


def done(world: Simulation) -> None:
    while world.busy:
        world.complete(world.busy[0])
        world.core.check()
    world.core.check_idle()


def of_sample(handle: SimHandle, sample: int) -> dict[str, list[Any]]:
    tail = f"#{sample}" if sample else ""
    return {n.removesuffix(tail): v for n, v in handle.chunks.items() if n.endswith(tail) and ("#" in n) == bool(sample)}


@pytest.mark.parametrize(("name", "outputs"), CHOICES)
@pytest.mark.parametrize("reuse", [True, False])
def test_each_sample_can_be_made_again_alone(name: str, outputs: tuple[str, ...], reuse: bool) -> None:
    world = sim(reuse=reuse)
    handle = world.submit(PROGRAMS[name], messages="hi", seed=7, n=3, outputs=outputs)
    done(world)
    assert handle.end and handle.end.reason == "done"
    assert len(handle.ends) == 3 * len(outputs)
    for sample in range(3):
        alone = sim()
        single = alone.submit(PROGRAMS[name], messages="hi", seed=7 + sample, outputs=outputs)
        done(alone)
        assert of_sample(handle, sample) == single.chunks


def test_the_prompt_is_computed_once() -> None:
    p = Program("plain", CARD)
    p.output("tokens", p.loop("think", prompt=p.input("prompt")).tokens)
    world = sim()
    prompt = list(range(1, 31))  # 7 full blocks of 4, and 2
    sizes: list[int] = []
    executor = world.executors["x"]
    spec = executor.specs["toy/mot", "forward"]

    def counted(row: Any, slots: Any) -> Any:
        sizes.append(len(row.payload.tokens))
        return executor._row("toy/mot", spec, row)

    executor.fakes["toy/mot", "forward"] = counted
    handle = world.submit(p, prompt=prompt, seed=1, n=4, max_tokens=1)
    done(world)
    assert handle.end and handle.end.reason == "done"
    assert sum(sizes) == 30 + 3 * 2, "each further sample computes what is left after the last full block"
    assert [handle.end.usage[f"think#{i}"]["cached_tokens"] for i in (1, 2, 3)] == [28] * 3


def test_what_comes_before_the_first_draw_runs_once() -> None:
    world = sim()
    handle = world.submit(PROGRAMS["clauses3"], messages="hi", seed=1, n=5)
    done(world)
    assert handle.end
    assert handle.end.units["tokenize"] == 1
    assert {name for name in handle.end.units if name.startswith("speak")} == {"speak", *(f"speak#{i}" for i in range(1, 5))}


@pytest.mark.parametrize("seed", range(30))
def test_any_moment_of_cancel_and_fault(seed: int) -> None:
    draw = random.Random(seed)
    world = sim(blocks=draw.choice([120, 400]))
    executor = world.executors["x"]
    if seed % 3 == 0:
        spec = executor.specs["toy/voice", "decode_audio"]

        def flaky(row: Any, slots: Any) -> Any:
            if draw.random() < 0.2:
                raise RuntimeError("once")
            return executor._row("toy/voice", spec, row)

        executor.fakes["toy/voice", "decode_audio"] = flaky
    asked = []
    for _ in range(6):
        name, outputs = draw.choice(CHOICES)
        n, number = draw.randrange(1, 5), draw.randrange(5)
        asked.append((world.submit(PROGRAMS[name], messages="hi", seed=number, n=n, outputs=outputs), name, outputs, n, number))
    cancelled = draw.choice(asked)[0]
    steps = draw.randrange(60)
    while world.busy:
        world.complete(draw.choice(world.busy))
        world.core.check()
        steps -= 1
        if steps == 0:
            world.cancel(cancelled.run)
    world.core.check_idle()
    for handle, name, outputs, n, number in asked:
        assert handle.end
        for sample in range(n):
            alone = sim()
            single = alone.submit(PROGRAMS[name], messages="hi", seed=number + sample, outputs=outputs)
            alone.run()
            got = of_sample(handle, sample)
            for output, items in got.items():
                assert items == single.chunks[output][: len(items)]
            assert handle.end.reason != "done" or got == single.chunks


def test_seeds_do_not_run_over() -> None:
    world = sim()
    with pytest.raises(RequestError, match=r"seed.*n is 2"):
        world.submit(PROGRAMS["text"], messages="hi", seed=2**63 - 1, n=2)
    for bad in (0, -1, 65, 1.5, "2", True):
        with pytest.raises(RequestError, match="n:"):
            world.submit(PROGRAMS["text"], messages="hi", n=bad)
