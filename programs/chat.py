"""Messages in, text out."""

from __future__ import annotations

from omni_runtime.cards.smollm2 import smollm2

from omni_runtime.card import ModelCard
from omni_runtime.program import Program


def chat(card: ModelCard | None = None) -> Program:
    """Outputs: `text`; `tokens` (ids, the one that ended the answer included); `logprobs` (one per token, or none at all
    where the request does not ask for them)."""
    p = Program("chat", card or smollm2())
    thought = p.loop("think", prompt=p.call("tokenize", p.input("messages")))
    p.output("text", thought.text)
    p.output("tokens", thought.tokens)
    p.output("logprobs", thought.logprobs)
    return p
