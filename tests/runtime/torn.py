"""Cards whose batches and chunks have drawn sizes."""

from __future__ import annotations

import random
from collections.abc import Mapping

from omni_runtime.card import ModelCard, OpLimits


def chopped(card: ModelCard, seed: int, most: Mapping[str, int]) -> ModelCard:
    """The card with drawn limits: places in a batch, its size, and a chunk of one prompt or stream. Prompts of these tests have
    30 to 150 tokens, so each is cut wherever it happens, in the middle of a picture too.

    Args:
        most: of one batch of an op: tokens, frames, calls.
    """
    dice = random.Random(seed)

    def limits(op: str, before: OpLimits) -> OpLimits:
        size = dice.randint(1, most[op])
        return OpLimits(units=dice.randint(1, size), size=size, chunk=dice.randint(1, size), cost=before.cost)

    experts = {
        name: spec.model_copy(update={"ops": {op: limits(op, before) for op, before in spec.ops.items()}})
        for name, spec in card.experts.items()
    }
    return card.model_copy(update={"experts": experts})
