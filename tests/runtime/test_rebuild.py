"""Real weights lose their state again and again, and say what they say undisturbed: tokens exactly, sound to 1e-4, once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forced import Killing, Preempting
from omni_runtime.programs.chat import chat
from omni_runtime.programs.speak import speak

from omni_runtime.executors.lineup import lineup
from omni_runtime.handle import Handle, Result
from omni_runtime.runtime import Runtime

pytestmark = [pytest.mark.oracle, pytest.mark.torch, pytest.mark.slow]

ASKED: list[tuple[Any, dict[str, Any]]] = [
    (speak, {"messages": "Name three colours.", "temperature": 0.8, "top_p": 0.9, "seed": 5, "max_tokens": 14}),
    (speak, {"messages": "Say hello, and count to five.", "temperature": 1.0, "top_k": 40, "seed": 6, "max_tokens": 18}),
    (chat, {"messages": "What do bees make?", "temperature": 0.7, "frequency_penalty": 0.5, "seed": 7, "max_tokens": 16}),
]
CARDS = list(speak().cards.values())


@pytest.fixture(scope="module")
def undisturbed() -> list[Result]:
    with Runtime(CARDS, threads=1) as runtime:
        return [runtime.submit(program(), **given).result(120) for program, given in ASKED]


def told_once(handle: Handle) -> dict[str, list[Any]]:
    """All chunks by output; each begins where the one before ended."""
    got: dict[str, list[Any]] = {}
    for chunk in handle:
        mine = got.setdefault(chunk.output, [])
        if chunk.samples is not None:
            assert chunk.start == sum(map(len, mine)), f"{chunk.output} goes on at {chunk.start}"
            mine.append(chunk.samples)
        else:
            assert chunk.seq == len(mine)
            mine.append(chunk.text)
    return got


def same(handle: Handle, alone: Result) -> None:
    got = told_once(handle)
    result = handle.result(1)
    assert result.rebuilt > 0, "nothing was lost"
    assert "".join(got["text"]) == result.text == alone.text
    if "audio" in alone.outputs:
        sound = np.concatenate(got["audio"])
        assert len(sound) == len(alone.audio) > 24_000
        np.testing.assert_allclose(sound, alone.audio, atol=1e-4)
    assert result.finish == alone.finish
    for usage in (result.usage, alone.usage):
        usage["think"].pop("cached_tokens", None)  # whether a prompt's beginning was there already depends on who came before
    assert result.usage == alone.usage, "what was done twice is counted once"


@pytest.fixture
def executors(request: Any) -> list[Any]:
    return lineup(CARDS, request.param, threads=1)


@pytest.mark.parametrize("executors", ["loopback"], indirect=True)
def test_preempted_after_every_unit_that_made_progress(executors: list[Any], undisturbed: list[Result]) -> None:
    """Case 23 among others: a talker and a vocoder go back after every chunk, and nothing of it is heard."""
    forced = [Preempting(executor) for executor in executors]
    with Runtime(CARDS, executors=forced) as runtime:
        handles = [runtime.submit(program(), **given) for program, given in ASKED]
        for handle, alone in zip(handles, undisturbed, strict=True):
            same(handle, alone)
        assert forced[-1].preempted > 60
        assert runtime.idle


@pytest.mark.parametrize("executors", ["process"], indirect=True)
@pytest.mark.parametrize("seed", [1])
def test_a_worker_is_killed_at_a_random_unit_of_every_request(seed: int, executors: list[Any], undisturbed: list[Result]) -> None:
    forced = [executors[0], Killing(executors[1], seed, most=20)]
    with Runtime(CARDS, executors=forced) as runtime:
        handles = [runtime.submit(program(), **given) for program, given in ASKED]
        for handle, alone in zip(handles, undisturbed, strict=True):
            same(handle, alone)
        assert len(forced[1].killed) == len(ASKED), forced[1].killed
        assert runtime.idle
