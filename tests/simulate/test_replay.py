"""Ghosts behind the real core: exact lengths, exact times without noise, what was learned, the same for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plays
import pytest

from omni_runtime.card import seeds
from omni_runtime.errors import RequestError
from omni_runtime.program import Program
from omni_runtime.scheduler.cost import Costs
from omni_runtime.simulate.generate import generate, lengths, mix
from omni_runtime.simulate.measures import measure
from omni_runtime.simulate.outcome import Outcome
from omni_runtime.simulate.replay import Busy, Replay, answers, cards_of
from omni_runtime.simulate.workload import Arrival

PLAYS = str(Path(plays.__file__))


def replay(costs: Costs | None = None, count: int = 1, **options: Any) -> Replay:
    return Replay([plays.CARD], costs or Costs(), count, **({"seed": None, "kv_bytes": 1 << 14} | options))


def alone(program: Program, **asked: Any) -> tuple[Outcome, Replay]:
    """One request, to its end."""
    play = replay()
    outcome = play.ask(program, Arrival(at=0.0, program=program.name, **asked))
    play.run()
    play.core.check()
    play.core.check_idle()
    assert outcome.reason == "done", play.core.story(1)
    return outcome, play


def test_an_answer_takes_what_its_batches_take() -> None:
    outcome, play = alone(plays.talk(), outputs=("text",), prompt_tokens=10, tokens=7)
    prefill, token = 0.010 + 0.001 + 10 * 0.0005, 0.010 + 0.001 + 0.0005
    assert outcome.first_token == pytest.approx(0.0005 + prefill)
    assert outcome.ended == pytest.approx(0.0005 + prefill + 6 * token)
    assert outcome.units == play.units == 1 + 7
    assert sum(play.busy_by.by["play/llm"].values()) == pytest.approx(prefill + 6 * token)


def test_the_gap_comes_between_batches_and_is_no_work() -> None:
    costs = Costs(seeds(plays.CARD))
    costs.gap = 0.002
    play = replay(costs)
    outcome = play.ask(plays.talk(), Arrival(at=0.0, program="talk", outputs=("text",), prompt_tokens=10, tokens=7))
    play.run()
    assert outcome.ended == pytest.approx(0.0005 + 0.016 + 6 * 0.0115 + 8 * 0.002)
    assert sum(play.busy_by.by["play/llm"].values()) == pytest.approx(0.016 + 6 * 0.0115)


def test_sound_is_as_long_as_its_text() -> None:
    outcome, _ = alone(plays.talk(), prompt_tokens=10, tokens=60)
    characters = 60 * 4.4
    assert outcome.sound == pytest.approx(characters * 5.0 * plays.HOP / plays.RATE, rel=0.15)  # 5 frames a character
    assert outcome.first_token is not None and outcome.first_sound is not None
    assert outcome.first_token < outcome.first_sound < (outcome.ended or 0.0)


def test_what_was_learned_is_used() -> None:
    costs = Costs(seeds(plays.CARD))
    think, utter = costs.pace("talk", "think"), costs.pace("talk", "utter")
    think.learn(units=50.0, work=1.2)
    think.learn_items({"text": 5.0})  # 6 characters a unit
    utter.learn(units=4.0, work=40.0)
    utter.learn_items({"frames": 2.0})
    for length in (30.0, 50.0):
        utter.weigh(length)
    play = replay(costs)
    outcome = play.ask(plays.talk(), Arrival(at=0.0, program="talk", prompt_tokens=10, tokens=100))
    play.run()
    assert outcome.sound == pytest.approx(100 * 6.0 * 2.0 * plays.HOP / plays.RATE, rel=0.05)


def test_tensors_and_codes() -> None:
    outcome, play = alone(plays.chant(), prompt_tokens=9, tokens=20)
    assert outcome.sound == pytest.approx(20 * plays.HOP / plays.RATE)
    assert outcome.units > 40
    assert play.core.flow.runs == {}


def test_a_picture_weighs_its_cells_and_its_latent() -> None:
    outcome, play = alone(plays.picture(), params={"width": 64, "height": 32, "steps": 5})
    cells, elements = 8 * 4, 3 * 8 * 4
    assert outcome.ended == pytest.approx(0.001 * (5 * cells + elements))
    assert outcome.units == 6
    assert set(play.busy_by.by) == {"play/brush"}


def test_what_prompts_share_is_computed_once() -> None:
    play = replay()
    asked = Arrival(at=0.0, program="talk", outputs=("text",), prompt_tokens=20, shared_tokens=12, tokens=1)
    first, second = [], []
    for heard in (first, second):
        outcome = play.ask(plays.talk(), asked)
        play.run()
        heard.append((outcome.ended or 0.0) - outcome.arrival)
    assert first[0] == pytest.approx(0.0005 + 0.011 + 20 * 0.0005)
    assert second[0] == pytest.approx(0.0005 + 0.011 + 8 * 0.0005)


def test_samples_each_speak() -> None:
    outcome, _ = alone(plays.talk(), prompt_tokens=10, tokens=30, n=3)
    once, _ = alone(plays.talk(), prompt_tokens=10, tokens=30)
    assert outcome.sound == pytest.approx(3 * once.sound)


def load(requests: int = 60, rate: float = 8.0, **more: Any) -> list[Arrival]:
    asked = [
        *generate(mix(f"{PLAYS}:talk=3,{PLAYS}:chant=1"), rate=rate, requests=requests, tokens=lengths("8-30"), **more),
    ]
    return asked


def seen(outcome: Outcome) -> tuple[Any, ...]:
    return outcome.arrival, outcome.first_token, outcome.first_sound, outcome.ended, outcome.sound, outcome.silence, outcome.units


def test_the_same_seed_plays_the_same() -> None:
    found = []
    for seed in (5, 5, 6):
        play = replay(seed=seed)
        found.append([seen(o) for o in play.play(load())])
        play.core.check_idle()
    assert found[0] == found[1] != found[2]


def test_more_devices_are_sooner_done() -> None:
    spans = []
    for count in (1, 2, 4):
        play = replay(count=count)
        outcomes = play.play(load(requests=240, rate=400.0))
        assert {o.reason for o in outcomes} == {"done"}
        busy = {e: sum(c.values()) for e, c in play.busy_by.by.items()}
        found = measure(outcomes, busy, play.hosts())
        assert max(found.utilisation.values()) <= 1.0
        on_devices = sum(s for e, s in busy.items() if e != "play/host")
        assert on_devices <= found.span * count * (1 + 1e-9)
        spans.append(found.span)
    assert spans[0] > 1.3 * spans[1] > 1.3 * 1.3 * spans[2]


def test_a_busy_machine_is_bounded_by_its_batches() -> None:
    """At saturation the devices are never idle, and no more is done than they can do."""
    play = replay()
    outcomes = play.play(load(requests=120, rate=500.0))
    busy = sum(s for e, c in play.busy_by.by.items() if e != "play/host" for s in c.values())
    span = max(o.ended or 0.0 for o in outcomes) - outcomes[0].arrival
    assert 0.97 < busy / span <= 1.0 + 1e-9


def test_noise_has_mean_one_and_the_models_spread() -> None:
    costs = Costs(seeds(plays.CARD))
    for model in costs.models.values():
        model.spread = 0.2
    play = replay(costs, seed=1)
    ghost: Any = play.executors["sim0#1"]
    spent = []
    complete = play.complete

    def note(name: str) -> None:
        head = play.mail[name][0]
        if name == "sim0#1":
            bill = ghost.bills[head.batch]  # type: ignore[union-attr]
            told = play.truth.model(head.expert, head.op).predict(bill.units, bill.work, bill.reach)  # type: ignore[union-attr]
            spent.append(ghost.spent / told)
        complete(name)

    play.complete = note  # type: ignore[method-assign]
    play.play(load(requests=80))
    factors = np.array(spent)
    assert len(factors) > 700
    assert factors.mean() == pytest.approx(1.0, abs=0.03)
    assert np.abs(factors - 1.0).mean() == pytest.approx(0.2, rel=0.1)


def test_what_was_not_measured_is_named() -> None:
    costs = Costs(seeds(plays.CARD))
    costs.model("play/llm", "forward").learn(1, 1, 0, 0.5)
    assert "play/llm.forward" not in replay(costs).assumed
    assert "play/voice.utter" in replay(costs).assumed


def test_later_loops_draw_in_the_learned_proportion() -> None:
    costs = Costs()
    plan = plays.chant().plan(None)
    assert answers(plan, costs, 40) == {"think": 40, "talk": 40}
    costs.pace("chant", "think").learn(units=20.0)
    costs.pace("chant", "talk").learn(units=60.0)
    assert answers(plan, costs, 40) == {"think": 40, "talk": 120}


def test_busy_is_split_at_the_borders() -> None:
    busy = Busy(0.5)
    busy.add("a", 0.4, 1.7)
    assert busy.by["a"] == {0: pytest.approx(0.1), 1: pytest.approx(0.5), 2: pytest.approx(0.5), 3: pytest.approx(0.2)}


def test_a_card_is_no_program() -> None:
    with pytest.raises(RequestError, match="is a card"):
        cards_of([Arrival(at=0.0, program="smollm2")])
