"""Deadlines, tenants, promises and learned costs, through the public face."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from omni_runtime.programs.chat import chat
from omni_runtime.programs.speak import speak

from omni_runtime import CardError, CheckpointError, Overloaded, RequestError, Runtime, SimulatedExecutor, costs_file
from omni_runtime.executors.simulated import Cost

SPEAK = speak()
CARDS = list(SPEAK.cards.values())
COSTS = {("smollm2/thinker", "forward"): Cost(0.004), ("hibari/vocoder", "decode_audio"): Cost(0.001, per_size=1e-5)}


def simulated(**options: object) -> Runtime:
    executor = SimulatedExecutor("sim#1", *CARDS, costs=COSTS, stops=0, pace=1.0)
    return Runtime(CARDS, executors=[executor], **options)


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"guarantee": "never-late"}, "guarantee"),
        ({"guarantee": "no-underrun", "outputs": ["text"]}, "guarantee"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": "5"}, "deadline_s"),
        ({"deadline_s": float("nan")}, "deadline_s"),
        ({"first_output_s": -1.0}, "first_output_s"),
        ({"first_output_s": float("inf")}, "first_output_s"),
        ({"tenant": 7}, "tenant"),
        ({"tenant": "gold"}, "tenant"),
    ],
)
def test_a_wrong_wish_is_named(wrong: dict[str, object], names: str) -> None:
    with simulated(tenants={"silver": 1.0}) as runtime, pytest.raises(RequestError, match=names):
        runtime.submit(SPEAK, messages="m", max_tokens=2, **{"tenant": "silver", **wrong})


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ({"policy": "fastest"}, "policy"),
        ({"tenants": {"a": 0.0}}, "tenants"),
        ({"tenants": {"a": "much"}}, "tenants"),
        ({"max_waiting": -1}, "max_waiting"),
        ({"costs": {}}, "costs"),
        ({"costs": 7}, "costs"),
        ({"costs": {"version": 2}}, "costs"),
        ({"costs": {"version": 1, "gap": 0.0, "models": {"a": {}}, "paces": {}}}, "costs"),
    ],
)
def test_a_wrong_option_is_named(option: dict[str, object], names: str) -> None:
    with pytest.raises(CardError, match=names):
        simulated(**option)


def test_wishes_that_are_met_and_missed() -> None:
    with simulated() as runtime:
        met = runtime.submit(SPEAK, messages="m", max_tokens=4, deadline_s=60, first_output_s=60.0).result()
        late = runtime.submit(SPEAK, messages="m", max_tokens=40, deadline_s=0.02, first_output_s=0.001).result()
    assert met.missed == ()
    assert set(late.missed) == {"deadline_s", "first_output_s"}
    assert late.finish["text"] == "length", "what is late goes on"
    assert late.device_seconds > met.device_seconds > 0


@pytest.mark.parametrize("policy", ["deadline", "first_come", "stages", "requests"])
def test_every_policy_gives_the_same_answers(policy: str) -> None:
    with simulated() as runtime:
        alone = [runtime.submit(SPEAK, messages=f"m{i}", max_tokens=9, seed=i).result().text for i in range(6)]
    with simulated(policy=policy) as runtime:
        handles = [runtime.submit(SPEAK, messages=f"m{i}", max_tokens=9, seed=i) for i in range(6)]
        assert [handle.result(timeout=60).text for handle in handles] == alone
        assert runtime.accounts()[""]["requests"] == 6


def test_accounts_name_everybody() -> None:
    with simulated(tenants={"a": 1.0, "b": 2.0}) as runtime:
        spent = runtime.submit(chat(CARDS[0]), messages="m", max_tokens=9, tenant="b").result().device_seconds
        accounts = runtime.accounts()
    assert accounts["a"] == {"seconds": 0.0, "requests": 0, "alive": 0, "weight": 1.0}
    assert accounts["b"]["seconds"] == pytest.approx(spent, rel=1e-6)
    assert runtime.accounts()["b"]["requests"] == 1, "also after it is closed"


def test_what_was_learned_goes_on() -> None:
    with simulated() as runtime:
        runtime.submit(SPEAK, messages="m", max_tokens=60).result()
        learned = json.loads(json.dumps(runtime.costs()))
    model = learned["models"]["smollm2/thinker.forward"]
    assert model["batches"] >= 60
    assert model["mean"] == pytest.approx(0.004, rel=0.2)
    with simulated(costs=learned) as runtime:
        assert runtime.costs() == learned


def test_what_was_learned_comes_from_a_file(tmp_path: Path) -> None:
    with simulated() as runtime:
        runtime.submit(SPEAK, messages="m", max_tokens=20).result()
        learned = runtime.costs()
    costs_file.write(tmp_path / "costs.json", learned)
    with simulated(costs=tmp_path / "costs.json") as runtime:
        assert runtime.costs() == json.loads(json.dumps(learned))
    with pytest.raises(CheckpointError, match=r"nowhere.json"):
        simulated(costs=str(tmp_path / "nowhere.json"))


def test_promised_sound_waits_its_turn_and_is_whole() -> None:
    """Before anything is known of a program one promised stream is let in at a time; the others are told how long."""
    with simulated() as runtime:
        alone = runtime.submit(SPEAK, messages="m", max_tokens=40, seed=1).result()
    with simulated() as runtime:
        handles = [runtime.submit(SPEAK, messages="m", max_tokens=40, seed=1, guarantee="no-underrun") for _ in range(3)]
        waited = threading.Event()
        while not all(handle.done for handle in handles):
            if any(handle.waiting is not None for handle in handles):
                waited.set()
        results = [handle.result() for handle in handles]
    assert waited.is_set()
    assert all(handle.waiting is None for handle in handles)
    for result in results:
        assert result.audio.tolist() == alone.audio.tolist()
        assert result.silence.keys() == {"audio"}


def test_a_full_queue_says_when_to_come_again() -> None:
    with simulated(max_waiting=0) as runtime:
        first = runtime.submit(SPEAK, messages="m", max_tokens=200, guarantee="no-underrun")
        second = runtime.submit(SPEAK, messages="m", max_tokens=4, guarantee="no-underrun")
        with pytest.raises(Overloaded) as refused:
            second.result()
        assert refused.value.retry_after > 0
        first.cancel()


def test_played_is_checked() -> None:
    with simulated() as runtime:
        handle = runtime.submit(SPEAK, messages="m", max_tokens=20)
        handle.played("audio", 0.0)
        for wrong in (("text", 1.0), ("audio", -1.0), ("audio", float("nan")), ("audio", 1.0, 3)):
            with pytest.raises(ValueError, match=r"output|seconds"):
                handle.played(*wrong)
        handle.result()
        handle.played("audio", 1.0)
