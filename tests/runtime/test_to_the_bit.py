"""With our own kernels for a CPU a log probability is the same number alone, in a crowd, in any chunks and after a preemption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from forced import Preempting  # noqa: E402
from omni_runtime.cards.causal_lm import causal_lm  # noqa: E402
from omni_runtime.kernels import cpu_build  # noqa: E402
from omni_runtime.programs.chat import chat  # noqa: E402

from omni_runtime.card import ModelCard, OpLimits  # noqa: E402
from omni_runtime.executors.lineup import lineup  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402
from omni_runtime.weights.toy_folder import write_toy  # noqa: E402

torch.set_num_threads(1)
ASKED = [
    "Hello",
    "Tell me about the sea. " * 9,
    "One word, please.",
    "Hello",
    "A " * 40,
    "Why?",
    "And " * 7,
    "Name three colours.",
]


def card(folder: Path, size: int) -> ModelCard:
    made = causal_lm(str(folder), linear="native")
    (name,) = {loop.expert for loop in made.loops.values() if made.experts[loop.expert].bytes_per_position}
    thinker = made.experts[name].model_copy(update={"ops": {"forward": OpLimits(units=16, size=size, chunk=size)}})
    return made.model_copy(update={"experts": {**made.experts, name: thinker}})


def said(made: ModelCard, executors: Any, asked: list[str]) -> list[Any]:
    with Runtime([made], executors=executors) as runtime:
        program = chat(made)
        wishes = {"max_tokens": 24, "logprobs": 2, "temperature": 1.0, "seed": 5, "stop_tokens": []}
        handles = [runtime.submit(program, messages=question, **wishes) for question in asked]
        return [(h.result(60).outputs["tokens"], h.result(60).outputs["logprobs"]) for h in handles]


@pytest.mark.skipif(cpu_build.compiler() is None, reason="no C compiler here")
@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_logprobs_are_the_same_in_any_company(tmp_path: Path, kind: str) -> None:
    folder = write_toy(tmp_path, kind)
    made = card(folder, 256)
    alone = [said(made, lineup([made], threads=1), [question])[0] for question in ASKED]
    assert len({repr(one) for one in alone}) == len(set(ASKED)), "equal answers prove nothing"
    for size in (256, 7):
        chopped = card(folder, size)
        assert said(chopped, lineup([chopped], threads=1), ASKED) == alone, size
        forced = [Preempting(executor, 0.1) for executor in lineup([chopped], threads=1)]
        assert said(chopped, forced, ASKED) == alone, size
        assert sum(executor.preempted for executor in forced) > 3
