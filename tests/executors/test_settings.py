"""What a process executor may be told, and closing from where nobody expects it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from omni_runtime.programs.speak import speak

from omni_runtime.errors import CardError
from omni_runtime.executors.process import ProcessExecutor
from omni_runtime.executors.simulated import Cost, SimulatedExecutor
from omni_runtime.runtime import Runtime


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"backoff_s": 5}, "backoff_s"),
        ({"backoff_s": (5, 1)}, "backoff_s"),
        ({"backoff_s": (-1, 2)}, "backoff_s"),
        ({"silence_s": float("nan")}, "silence_s"),
        ({"silence_s": 0}, "silence_s"),
        ({"stop_s": "x"}, "stop_s"),
        ({"stop_s": -1}, "stop_s"),
        ({"load_s": "x"}, "load_s"),
        ({"loads": 0}, "loads"),
        ({"slots": "x"}, "slots"),
        ({"threads": 0}, "threads"),
        ({"reuse": "no"}, "reuse"),
        ({"pools": {"x/y": 4}}, "pools"),
        ({"pools": None}, "pools"),
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
    ],
)
def test_a_wrong_argument_is_named(more: dict[str, Any], field: str) -> None:
    """A tuple that was a number ended the supervisor, and `start` waited for ever."""
    given: dict[str, Any] = {"name": "a#1", "experts": {}, "pools": {}} | more
    with pytest.raises(CardError, match=field):
        ProcessExecutor(**given)


def test_closing_in_the_engines_thread_lets_what_is_alive_finish() -> None:
    """An observer closes the runtime with grace: the executors were closed under the batch that ran, and its request was lost."""
    program = speak()
    cards = list(program.cards.values())
    costs = {(f"{c.name}/{n}", op): Cost(0.01) for c in cards for n, e in c.experts.items() for op in e.ops}

    class Closes:
        seen = 0

        def see(self, now: float, inputs: Any, said: Any, commands: Any) -> None:
            self.seen += 1
            if self.seen == 3:
                runtime.close(grace_s=5.0)

    runtime = Runtime(cards, executors=[SimulatedExecutor("sim#1", *cards, costs=costs, pace=1.0)], observers=[Closes()])
    handle = runtime.submit(program, messages="Hello.", max_tokens=4, seed=1)
    assert handle.result(10).text
    began = time.monotonic()
    runtime.close()
    assert time.monotonic() - began < 2.0
    assert runtime.idle


def test_a_pool_of_no_block_is_refused() -> None:
    with pytest.raises(CardError, match=r"kv_bytes=1: a block of 'smollm2/thinker' takes \d+ bytes"):
        Runtime(list(speak().cards.values()), kv_bytes=1)


@pytest.mark.parametrize("workers", [["a"], "a", {"a": None}, {"a": "smollm2/thinker"}])
def test_wrong_workers(workers: Any) -> None:
    with pytest.raises(CardError, match="workers"):
        Runtime(list(speak().cards.values()), workers=workers)
