"""Messages with text, pictures, clips and sounds in; text and speech out, all loops advancing together."""

from __future__ import annotations

from omni_runtime.cards.qwen3_omni import qwen3_omni

from omni_runtime.card import ModelCard
from omni_runtime.program import Program

TWO_SECONDS = 25  # frames that the talker may be ahead of the vocoder
SILENT = "the checkpoint has no voice (enable_audio_output is false in its config.json); ask for text, or load one that has"


def omni(card: ModelCard | None = None) -> Program:
    """Outputs: `text`, `tokens`, `logprobs`; and, where the card has a voice, `audio` (samples) and `codes` (a frame an item).

    Args:
        card: as `qwen3_omni(checkpoint)` makes it. Without one the program can be drawn and simulated.
    """
    model = card or qwen3_omni()
    p = Program("omni", model)
    asked = p.loop("prepare", messages=p.input("messages"))
    heard = p.loop("hear", sounds=asked.sounds)
    seen = p.loop("see", pictures=asked.pictures)
    thought = p.loop(
        "think",
        prompt=asked.tokens,
        positions=asked.positions,
        insets=asked.insets,
        sound=heard.vectors,
        picture=seen.vectors,
        features=seen.features,
    )
    p.output("text", thought.text)
    p.output("tokens", thought.tokens)
    p.output("logprobs", thought.logprobs)
    if "talk" not in model.loops:
        p.lacks("audio", SILENT)
        p.lacks("codes", SILENT)
        return p
    told = p.loop(
        "talk",
        prompt=asked.tokens,
        turns=asked.turns,
        insets=asked.insets,
        inner=thought.inner,
        text=p.handoff(thought.spoken),
    )
    p.output("audio", p.loop("speak", frames=p.handoff(told.codes, capacity=TWO_SECONDS)).samples)
    p.output("codes", told.codes)
    return p
