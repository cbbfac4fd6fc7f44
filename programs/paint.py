"""A prompt in, a picture out, with previews on the way for whoever asks."""

from __future__ import annotations

from omni_runtime.cards.sd3 import sd3

from omni_runtime.card import ModelCard
from omni_runtime.program import Program


def paint(card: ModelCard | None = None) -> Program:
    """Outputs: `image` and `preview` (uint8 arrays [height, width, 3]), `progress` (share of the steps done, after each).

    Args:
        card: as `sd3(checkpoint)` makes it. Without one the program can be drawn and simulated.
    """
    p = Program("paint", card or sd3())
    told = p.loop("encode", prompt=p.input("prompt"))
    latent = p.loop(
        "denoise",
        embeds=told.embeds,
        pooled=told.pooled,
        negative_embeds=told.negative_embeds,
        negative_pooled=told.negative_pooled,
    )
    p.output("image", p.loop("decode", latent=latent.latent).image)
    p.output("progress", latent.progress)
    p.output("preview", p.loop("develop", latent=latent.preview).image)
    return p
