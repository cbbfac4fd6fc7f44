"""Requests through the whole runtime by a decoder with pages: what the one without says, however its blocks come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from forced import Preempting  # noqa: E402
from omni_runtime.cards.causal_lm import causal_lm  # noqa: E402
from omni_runtime.programs.chat import chat  # noqa: E402

from omni_runtime.card import ModelCard  # noqa: E402
from omni_runtime.errors import CardError  # noqa: E402
from omni_runtime.executors.lineup import lineup  # noqa: E402
from omni_runtime.handle import Result  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402
from omni_runtime.weights.toy_folder import write_toy  # noqa: E402

WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 20, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.2, "logprobs": 2},
    {"temperature": 0.8, "min_tokens": 12, "logit_bias": {5: 2.0}},
]
ASKED = [
    {
        "messages": ("On and on. " * 4 if i % 2 else "Hi. ") + f"Tell me of {i}",
        "max_tokens": 8 + 22 * (i % 3),
        "seed": i,
        **WAYS[i % 5],
    }
    for i in range(8)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("paged") / "toy", "qwen3", seed=3)


def card(folder: Path, linear: str) -> ModelCard:
    return causal_lm(folder, linear=linear, context=120, max_bytes=1 << 30)


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> list[Result]:
    of = card(folder, "plain")
    with Runtime([of], threads=1) as runtime:
        return [runtime.submit(chat(of), **given).result(60) for given in ASKED]


def same(results: list[Result], alone: list[Result]) -> None:
    for found, expected in zip(results, alone, strict=True):
        assert found.outputs["tokens"] == expected.outputs["tokens"]
        assert (found.text, found.finish) == (expected.text, expected.finish)
        for one, two in zip(found.outputs.get("logprobs", ()), expected.outputs.get("logprobs", ()), strict=True):
            assert [i for i, _ in one.top] == [i for i, _ in two.top]


@pytest.mark.parametrize("kind", ["loopback", "process"])
def test_a_crowd(folder: Path, undisturbed: list[Result], kind: Any) -> None:
    of = card(folder, "paged")
    with Runtime([of], executor=kind, threads=1) as runtime:
        handles = [runtime.submit(chat(of), **given) for given in ASKED]
        same([handle.result(60) for handle in handles], undisturbed)
        again = [runtime.submit(chat(of), **given).result(60) for given in ASKED[:3]]
        assert all(found.usage["think"]["cached_tokens"] >= 16 for found in again[1::2])  # copied from a loop that has ended
        same(again, undisturbed[:3])


def test_blocks_go_from_one_to_the_next(folder: Path, undisturbed: list[Result]) -> None:
    of, blocks = card(folder, "paged"), 11
    with Runtime([of], threads=1, kv_bytes=blocks * 16 * of.experts["thinker"].bytes_per_position) as runtime:
        handles = [runtime.submit(chat(of), **given) for given in ASKED]
        results = [handle.result(60) for handle in handles]
        same(results, undisturbed)
    tokens = [sum(result.usage["think"][kind] for kind in ("prompt_tokens", "completion_tokens")) for result in results]
    assert sum(count // 16 for count in tokens) > 2 * blocks


def test_preempted_after_a_third_of_all_units(folder: Path, undisturbed: list[Result]) -> None:
    of = card(folder, "paged")
    forced = [Preempting(executor, share=0.3) for executor in lineup([of], "loopback", threads=1)]
    with Runtime([of], executors=forced) as runtime:
        handles = [runtime.submit(chat(of), **given) for given in ASKED]
        same([handle.result(60) for handle in handles], undisturbed)
        assert forced[-1].preempted > 20


def test_steps_are_there_before_they_are_asked_for(folder: Path, undisturbed: list[Result]) -> None:
    """Of requests whose draws look at no other token: most steps of a crowd, and nothing is different."""
    of = card(folder, "paged")
    executors = lineup([of], "loopback", threads=1)
    plain = [i for i, way in enumerate(WAYS * 2) if i < len(ASKED) and way.keys() <= {"temperature", "top_p"}]
    with Runtime([of], executors=executors) as runtime:
        handles = [runtime.submit(chat(of), **ASKED[i]) for i in plain]
        results = [handle.result(60) for handle in handles]
    same(results, [undisturbed[i] for i in plain])
    inner: Any = executors[-1]
    (expert,) = inner.inner.experts.values()
    steps = sum(len(result.outputs["tokens"]) for result in results) - len(results)
    assert expert.ahead.counts.hits > steps / 2, (expert.ahead.counts, steps)


def test_the_exact_mode_is_for_kernels(folder: Path) -> None:
    with (
        pytest.raises(CardError, match="over pages on cpu the definitions in torch compute"),
        Runtime([card(folder, "paged")], batch_invariant=True),
    ):
        pass
