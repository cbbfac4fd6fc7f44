"""Messages with text, pictures, clips and sounds in; text and speech out, all loops advancing together."""

from __future__ import annotations

from typing import Any

from omni_runtime.cards.qwen3_omni import qwen3_omni

from omni_runtime.card import ModelCard
from omni_runtime.program import NodePorts, Program

TWO_SECONDS = 25  # frames that the talker may be ahead of the vocoder, 12.5 a second
FIVE_SECONDS = 250  # codes that the talker may be ahead of the flow, 50 a second; a chunk and its look-ahead take 108
SILENT = "the checkpoint has no voice (enable_audio_output is false in its config.json); ask for text, or load one that has"


def omni(card: ModelCard | None = None) -> Program:
    """Outputs: `text`, `tokens`, `logprobs`; and, where the card has a voice, `audio` (samples) and `codes` (a frame an item).

    Args:
        card: as `qwen3_omni(checkpoint)` or `qwen2_5_omni(checkpoint)` makes it. Without one the program can be drawn and
            simulated, as a Qwen3-Omni.
    """
    model = card or qwen3_omni()
    p = Program("omni", model)
    asked, thought = thinking(p, model)
    if "talk" not in model.loops:
        p.lacks("audio", SILENT)
        p.lacks("codes", SILENT)
        return p
    voice = _by_states if "flow" in model.loops else _by_tokens
    told, samples = voice(p, asked, thought)
    p.output("audio", samples.samples)
    p.output("codes", told.codes)
    return p


def thinking(p: Program, model: ModelCard) -> tuple[NodePorts, NodePorts]:
    """What all families have: input `messages`, outputs `text`, `tokens` and `logprobs`; the ports of `prepare` and `think`."""
    asked = p.loop("prepare", messages=p.input("messages"))
    heard = p.loop("hear", sounds=asked.sounds)
    seen = p.loop("see", pictures=asked.pictures)
    media: dict[str, Any] = {"insets": asked.insets, "sound": heard.vectors, "picture": seen.vectors}
    if "features" in model.loops["think"].reads:
        media["features"] = seen.features
    thought = p.loop("think", prompt=asked.tokens, positions=asked.positions, **media)
    p.output("text", thought.text)
    p.output("tokens", thought.tokens)
    p.output("logprobs", thought.logprobs)
    return asked, thought


def _by_tokens(p: Program, asked: NodePorts, thought: NodePorts) -> tuple[NodePorts, NodePorts]:
    """The talker hears the thinker's tokens, and its states where media stood; its frames are sound at once."""
    heard: dict[str, Any] = {
        "turns": asked.turns,
        "insets": asked.insets,
        "inner": thought.inner,
        "text": p.handoff(thought.spoken),
    }
    told = p.loop("talk", prompt=asked.tokens, **heard)
    return told, p.loop("speak", frames=p.handoff(told.codes, capacity=TWO_SECONDS))


def _by_states(p: Program, asked: NodePorts, thought: NodePorts) -> tuple[NodePorts, NodePorts]:
    """The talker is fed the thinker's states; its codes become mel frames along a flow, and these sound."""
    told = p.loop("talk", prompt=asked.tokens, positions=asked.positions, states=p.handoff(thought.states))
    mel = p.loop("flow", codes=p.handoff(told.codes, capacity=FIVE_SECONDS), speaker=told.speaker)
    return told, p.loop("speak", frames=p.handoff(mel.mel))
