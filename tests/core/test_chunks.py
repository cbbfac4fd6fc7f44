"""Chunked prefill beside decodes: the gap between a stream's tokens stays bounded, whatever arrives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from toys import CARD

from omni_runtime.card import ModelCard, OpLimits
from omni_runtime.executors.simulated import Cost, SimulatedExecutor
from omni_runtime.program import Program
from omni_runtime.sim import Simulation

TOKEN = 0.001  # seconds of one position


def card(chunk: int | None) -> ModelCard:
    """The toy card with a long context, 512 positions a batch, and this chunk."""
    fields: dict[str, Any] = {name: getattr(CARD, name) for name in ("name", "experts", "loops")}
    mot = CARD.experts["mot"]
    ops = {**mot.ops, "forward": OpLimits(units=16, size=512, chunk=chunk)}
    fields["experts"] = {**CARD.experts, "mot": mot.model_copy(update={"ops": ops})}
    fields["loops"] = {**CARD.loops, "think": CARD.loops["think"].model_copy(update={"context": 4096})}
    return ModelCard(**fields)


def worst_gap(chunk: int | None, intruder: int) -> tuple[float, float]:
    """(longest time between two tokens of a running stream, time of the intruder's first token), seconds."""
    made = card(chunk)
    program = Program("plain", made)
    program.output("tokens", program.loop("think", prompt=program.input("prompt")).tokens)
    cost = {("toy/mot", "forward"): Cost(fixed=0.01, per_size=TOKEN)}
    world = Simulation(SimulatedExecutor("x", made, blocks=4000, costs=cost, stops=0), cards=(made,))
    victim = world.submit(program, prompt=[1, 2, 3], max_tokens=200)
    for _ in range(10):
        world.complete("x")
    other = world.submit(program, prompt=[5] * intruder, max_tokens=3)
    world.run()
    assert victim.end and other.end and victim.end.reason == other.end.reason == "done"
    times = victim.times["tokens"]
    return max(b - a for a, b in itertools.pairwise(times)), other.times["tokens"][0] - other.submitted


@pytest.mark.parametrize("intruder", [100, 1000, 4000])
def test_the_gap_does_not_grow_with_the_intruder(intruder: int) -> None:
    """Case 3: ten times the prompt, the same gap; and the intruder is served all the same."""
    gap, first = worst_gap(32, intruder)
    assert gap <= 0.01 + 33 * TOKEN + 1e-9, "one batch: a token, and a chunk beside it"
    assert first <= (intruder // 31 + 2) * (0.01 + 33 * TOKEN)
    assert worst_gap(None, intruder)[0] > 0.01 + 99 * TOKEN, "without a chunk it does grow"


def test_a_prompt_that_is_alone_is_not_cut() -> None:
    made = card(8)
    program = Program("plain", made)
    program.output("tokens", program.loop("think", prompt=program.input("prompt")).tokens)
    world = Simulation(SimulatedExecutor("x", made, blocks=4000, stops=0), cards=(made,))
    handle = world.submit(program, prompt=[5] * 500, max_tokens=1)
    world.run()
    assert handle.end and handle.end.units["think"] == 1


def test_work_of_another_kind_counts_as_waiting() -> None:
    made = card(8)
    prompt = Program("plain", made)
    prompt.output("tokens", prompt.loop("think", prompt=prompt.input("prompt")).tokens)
    picture = Program("picture", made)
    hidden = picture.loop("encode", messages=picture.input("messages")).hidden
    latent = picture.loop("paint", conditioning=hidden)
    picture.output("progress", latent.progress)
    world = Simulation(SimulatedExecutor("x", made, blocks=4000, stops=0), cards=(made,))
    painting = world.submit(picture, messages="a cat", steps=20)
    world.complete("x")
    handle = world.submit(prompt, prompt=[5] * 200, max_tokens=1)
    world.run()
    assert painting.end and handle.end
    assert handle.end.units["think"] >= 10, "it gave way to the steps of the picture"
