"""Messages in, text and speech out: the voice begins with the first clause, while the rest is still being thought of."""

from __future__ import annotations

from typing import Literal

from omni_runtime.cards.hibari import hibari
from omni_runtime.cards.smollm2 import smollm2

from omni_runtime.card import ModelCard
from omni_runtime.program import Program

TWO_SECONDS = 160  # frames that the talker may be ahead of the vocoder


def speak(
    mind: ModelCard | None = None, voice: ModelCard | None = None, *, mode: Literal["stream", "full"] = "stream"
) -> Program:
    """Outputs: `text` and `audio` (samples).

    Args:
        mind: a card with loops `tokenize` and `think`.
        voice: a card with loops `utter` and `speak`.
        mode: "full" runs one loop after the other, as a staged server does; for comparison.
    """
    p = Program("speak" if mode == "stream" else "speak-staged", mind or smollm2(), voice or hibari())
    thought = p.loop("think", prompt=p.call("tokenize", p.input("messages")))
    p.output("text", thought.text)
    ahead = TWO_SECONDS if mode == "stream" else None
    frames = p.loop("utter", text=p.handoff(thought.text, mode=mode)).frames
    p.output("audio", p.loop("speak", frames=p.handoff(frames, mode=mode, capacity=ahead)).samples)
    return p
