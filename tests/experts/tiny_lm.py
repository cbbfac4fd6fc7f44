"""A tiny text model as a card's builder, and one whose batches break after they have run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tiny import CONFIGS, random_weights

from omni_runtime.card import ArDecode, ExpertSpec, ModelCard, OpLimits
from omni_runtime.experts.decoder import DecoderLM
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.text_lm import TextLM
from omni_runtime.program import Program
from omni_runtime.work import Row, StepResult

CONFIG = CONFIGS["qwen2"]
PIECES = [bytes([65 + i % 26]) + b" " * (i % 3 == 0) for i in range(CONFIG.vocab)]
BROKEN: list[int] = []  # rows of every batch that was broken


class Fragile(TextLM):
    """Every third batch of several rows raises, when all of it has been computed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._batches = 0

    def forward(self, rows: Sequence[Row], slots: Slots) -> list[StepResult]:
        results = super().forward(rows, slots)
        self._batches += len(rows) > 1
        if len(rows) > 1 and self._batches % 3 == 0:
            BROKEN.append(len(rows))
            raise RuntimeError("a fault of the device")
        return results


def build(options: Mapping[str, Any], device: str) -> TextLM:
    kind = Fragile if options.get("fragile") else TextLM
    return kind(DecoderLM(CONFIG, random_weights(CONFIG), device), PIECES)


def card(size: int = 512, fragile: bool = False, vocabulary: int = 0) -> ModelCard:
    expert = ExpertSpec(
        build="tiny_lm:build",
        ops={"forward": OpLimits(units=16, size=size)},
        options={"fragile": True} if fragile else {},
        block=8,
        bytes_per_position=CONFIG.layers * 2 * CONFIG.kv_heads * CONFIG.head_dim * 4,
    )
    loop = ArDecode(expert="lm", context=CONFIG.positions, stop_tokens=(5,), vocabulary=vocabulary)
    return ModelCard(name="tiny", experts={"lm": expert}, loops={"think": loop})


def say(of: ModelCard) -> Program:
    p = Program("say", of)
    thought = p.loop("think", prompt=p.input("prompt"))
    for port in ("text", "tokens", "logprobs"):
        p.output(port, getattr(thought, port))
    return p
