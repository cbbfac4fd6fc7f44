"""One prompt in; text, speech and a picture out: three kinds of loop in one request, advancing together."""

from __future__ import annotations

from omni_runtime.cards.hibari import hibari
from omni_runtime.cards.sd3 import sd3
from omni_runtime.cards.smollm2 import smollm2
from omni_runtime.programs.speak import TWO_SECONDS

from omni_runtime.card import ModelCard
from omni_runtime.program import Program


def illustrate(mind: ModelCard | None = None, voice: ModelCard | None = None, brush: ModelCard | None = None) -> Program:
    """Outputs: `text`, `audio` (samples), `image` (a uint8 array [height, width, 3]) and `progress` (of the picture).

    The input `prompt` is a text: the thinker answers it, the brush paints it.

    Args:
        mind: a card with loops `tokenize` and `think`.
        voice: a card with loops `utter` and `speak`.
        brush: as `sd3(checkpoint)` makes it. Without one the program can be drawn and simulated.
    """
    p = Program("illustrate", mind or smollm2(), voice or hibari(), brush or sd3())
    prompt = p.input("prompt")
    thought = p.loop("think", prompt=p.call("tokenize", prompt))
    p.output("text", thought.text)
    frames = p.loop("utter", text=p.handoff(thought.text)).frames
    p.output("audio", p.loop("speak", frames=p.handoff(frames, capacity=TWO_SECONDS)).samples)
    told = p.loop("encode", prompt=prompt)
    latent = p.loop(
        "denoise",
        embeds=told.embeds,
        pooled=told.pooled,
        negative_embeds=told.negative_embeds,
        negative_pooled=told.negative_pooled,
    )
    p.output("image", p.loop("decode", latent=latent.latent).image)
    p.output("progress", latent.progress)
    return p
