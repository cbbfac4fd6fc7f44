"""Tiny omni models whose thinker and talker keep pages, against transformers: media in, text, codes and sound out."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import omni25_oracle  # noqa: E402
import omni_oracle  # noqa: E402
from forced import Preempting  # noqa: E402
from omni_runtime.programs.omni import omni  # noqa: E402

from omni_runtime.card import ModelCard  # noqa: E402
from omni_runtime.executors.lineup import lineup  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402

torch.set_num_threads(1)


def paged(card: ModelCard) -> ModelCard:
    """The same with pages where an expert keeps KV."""
    experts = {
        name: spec.model_copy(update={"options": {**spec.options, "linear": "paged"}}) if spec.bytes_per_position else spec
        for name, spec in card.experts.items()
    }
    assert sum(spec.options.get("linear") == "paged" for spec in experts.values()) == 2
    return card.model_copy(update={"experts": experts})


@pytest.mark.parametrize("family", [omni_oracle, omni25_oracle], ids=["qwen3", "qwen2.5"])
def test_answers_are_the_references(family: Any) -> None:
    card = paged(family.CARD)
    forced = [Preempting(executor, share=0.5) for executor in lineup([card], "loopback", threads=1)]
    with Runtime([card], executors=forced) as runtime:
        handles = [(name, runtime.submit(omni(card), **family.wish(name))) for name in ("mixed",)]
        for name, handle in handles:
            family.same(handle.result(120), name)
        assert forced[-1].preempted > 2
        assert runtime.idle
