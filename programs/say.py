"""Text in, speech out, clause by clause."""

from __future__ import annotations

from omni_runtime.cards.hibari import hibari
from omni_runtime.programs.speak import TWO_SECONDS

from omni_runtime.card import ModelCard
from omni_runtime.program import Program


def say(voice: ModelCard | None = None) -> Program:
    """Output: `audio` (samples) of the input `text`, of any length and punctuation. Nothing speakable in it is no sound.

    Args:
        voice: a card with loops `utter` and `speak`.
    """
    p = Program("say", voice or hibari())
    frames = p.loop("utter", text=p.input("text")).frames
    p.output("audio", p.loop("speak", frames=p.handoff(frames, capacity=TWO_SECONDS)).samples)
    return p
