"""How a row draws: plain values, made once per loop, that travel with every step of it."""

from __future__ import annotations

from msgspec import Struct


class Edits(Struct, frozen=True, array_like=True, gc=False):
    """What is done to a row's logits before anything else; its order is told in `experts/sampling.py`.

    Ids are ascending, so that the last one tells whether the model has them all.
    """

    bias_ids: tuple[int, ...] = ()
    bias: tuple[float, ...] = ()  # added to the logits of `bias_ids`
    repetition: float = 1.0  # of tokens of prompt and answer; 1: off
    presence: float = 0.0  # of tokens of the answer; 0: off
    frequency: float = 0.0  # of tokens of the answer, times their count; 0: off
    stop_ids: tuple[int, ...] = ()  # not to be drawn before output token `least`
    least: int = 0


class Draw(Struct, frozen=True, array_like=True, gc=False):
    """Where a unit's randomness comes from, and how a token is drawn: Philox4x32-10 with key = `seed` and, for a token,
    counter = (token id, index, node, 0).
    """

    seed: int
    node: int  # number of the loop in its program, so that two loops of one request draw independently
    temperature: float = 0.0  # 0: the likeliest token
    top_p: float = 1.0  # 1: off
    top_k: int = 0  # below 1: off
    min_p: float = 0.0  # 0: off
    logprobs: int = -1  # how many likely tokens are told beside the one drawn; -1: nothing is told
    edits: Edits | None = None  # None: logits stay as they are


class TokenLogprob(Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of a token that was drawn, and of the likeliest ones, by the model itself: before any edit."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (id, logprob), the likeliest first
