"""Which token comes next: a draw that belongs to its request.

Randomness is Philox4x32-10 (Salmon et al. 2011): a function of a key and a counter, without a state. The key is the request's
seed, the counter is (token id, index of the draw, node, 0). So a draw is the same alone, in a batch, and
again after a crash; and no global generator is read or moved.

A token is drawn by the Gumbel-max trick: argmax of logit/temperature - log(-log u) with one uniform u per token is an exact draw
from the softmax (Gumbel 1954; Maddison et al. 2014, section 2). It needs no sum over the vocabulary in a fixed order, and
only tokens that may win need a u.

The order is the one that users of transformers know, and each step has its reason:

1. On the model's own logits, in `edits.py`: bias, repetition penalty, presence and frequency penalty, the ban of stop tokens.
   The ban comes last, so that nothing lifts it.
2. Temperature, which divides. Zero ends here with the largest edited logit.
3. `top_k`, then `top_p` over the mass that is left, then `min_p`. All three look at probabilities after temperature, so a hot
   draw keeps more tokens in `top_p` and `min_p`. `min_p` is measured against the likeliest token, which is never removed, so it
   may come last.
4. The draw among what is kept. It renormalises by itself.

Log-probabilities are told of the distribution before all of these: what the model thinks, the same whatever a request asks.
Among equals the lower id goes first, everywhere.

Suffixes: V vocabulary, C candidates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from omni_runtime.draw import Draw, TokenLogprob
from omni_runtime.experts.edits import History, edited

Words = np.ndarray[Any, np.dtype[np.uint32]]
Reals = np.ndarray[Any, np.dtype[np.float64]]
Ids = np.ndarray[Any, np.dtype[np.intp]]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # the constants of Philox4x32, table 2 of the paper
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_BLOCK = 8192  # counters at once: 49,152 take 2.3 ms so, 2.9 in blocks of 4096, 3.5 as a whole

_HIGHEST = 36.8  # no Gumbel value is larger: -log(-log(1 - 2^-53)) = 36.74


def philox(counter: tuple[Words, int, int, int], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10 for many counters that differ in their first word; the rest and the key are 32-bit words too."""
    # Values stay below 2^32 in 64-bit words, where a product is exact. The three constant words broadcast in the first rounds.
    x0 = counter[0].astype(np.uint64)
    x1, x2, x3 = (np.array([word], np.uint64) for word in counter[1:])
    k0, k1 = key
    for _ in range(10):
        p0, p1 = x0 * _M0, x2 * _M1
        x1 ^= np.uint64(k0)
        x3 ^= np.uint64(k1)
        x0, x2 = (p1 >> _HALF) ^ x1, (p0 >> _HALF) ^ x3
        p0 &= _LOW
        p1 &= _LOW
        x1, x3 = p1, p0
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return x0.astype(np.uint32), x1.astype(np.uint32), x2.astype(np.uint32), x3.astype(np.uint32)


def uniform(ids_C: Ids, draw: Draw, index: int) -> Reals:
    """One number strictly between 0 and 1 per token id: (52 random bits + 1/2) / 2^52, exact in float64.

    `draw.seed` is taken modulo 2^64.
    """
    key = (draw.seed & 0xFFFFFFFF, (draw.seed >> 32) & 0xFFFFFFFF)
    out_C = np.empty(len(ids_C))
    for low in range(0, len(ids_C), _BLOCK):
        part = slice(low, low + _BLOCK)
        first, second, _, _ = philox((ids_C[part].astype(np.uint32), index & 0xFFFFFFFF, draw.node & 0xFFFFFFFF, 0), key)
        out_C[part] = (first * 2.0**20 + (second >> np.uint32(12)) + 0.5) * 2.0**-52
    return out_C


def nucleus(weight_V: Reals, top_p: float) -> Ids:
    """The smallest set of heaviest tokens whose share of the weight reaches `top_p`, at least one; equals go by lower id first.

    Ids are ascending. Holtzman et al. 2020, equation 2.
    """
    goal = top_p * weight_V.sum()
    # All tokens below this bound weigh less than what may be left out, so they need no sorting: 0.3 ms instead of 3.
    ids_C = np.flatnonzero(weight_V >= (1.0 - top_p) * weight_V.sum() / len(weight_V))
    falling_C = np.sort(weight_V[ids_C])[::-1]
    count = min(int(np.searchsorted(np.cumsum(falling_C), goal)) + 1, len(ids_C))
    return ids_C[_first(weight_V[ids_C], falling_C[count - 1], count)]


def heaviest(weight_V: Reals, count: int) -> Ids:
    """The `count` tokens of most weight, at most all; equals go by lower id first. Ids are ascending."""
    if count >= len(weight_V):
        return np.arange(len(weight_V))
    at = len(weight_V) - count
    return _first(weight_V, np.partition(weight_V, at)[at], count)


def _first(weight_C: Reals, least: float, count: int) -> Ids:
    """Places of the `count` heaviest, of which the last weighs `least`."""
    above_C, equal_C = np.flatnonzero(weight_C > least), np.flatnonzero(weight_C == least)
    return np.sort(np.concatenate([above_C, equal_C[: count - len(above_C)]]))


def draw(logits_V: torch.Tensor, how: Draw, index: int, history: History | None = None) -> int:
    """The token that a row draws as its output token `index`, and the order in which it comes to it is told above.

    Args:
        logits_V: of the model. One of -inf means never.
        history: tokens of prompt and answer so far; needed by penalties only.

    Raises:
        FloatingPointError: the largest logit is NaN or infinite: the weights or an input are broken.
        RequestError: the request leaves no token that could be drawn.
    """
    logit_V = logits_V.numpy(force=True)
    best = _best(logit_V)
    if how.edits is not None:
        logit_V = edited(logit_V, how.edits, index, history)
        best = int(logit_V.argmax())
    if how.temperature == 0.0:
        return best
    with np.errstate(over="ignore"):  # a tiny temperature sends all others to -inf, as it should
        score_V = (logit_V.astype(np.float64) - float(logit_V[best])) / how.temperature
    if how.top_p < 1.0 or how.min_p > 0.0 or 0 < how.top_k < len(score_V):
        ids_C = kept(score_V, how)
    else:
        least = _gumbel(np.array([best]), how, index)[0] - _HIGHEST
        ids_C = np.flatnonzero(score_V > least)  # the rest lose against `best` whatever their u
    return int(ids_C[np.argmax(score_V[ids_C] + _gumbel(ids_C, how, index))])


def kept(score_V: Reals, how: Draw) -> Ids:
    """The tokens that `top_k`, `top_p` and `min_p` leave, one at least. The largest score must be 0. Ids are ascending."""
    if 0 < how.top_k < len(score_V):
        ids_C = heaviest(score_V, how.top_k)
        score_C = score_V[ids_C]
    else:
        ids_C, score_C = np.arange(len(score_V)), score_V
    weight_C = np.exp(score_C)
    if how.top_p < 1.0:
        places_C = nucleus(weight_C, how.top_p)
        ids_C, weight_C = ids_C[places_C], weight_C[places_C]
    return ids_C[weight_C >= how.min_p] if how.min_p > 0.0 else ids_C


def logprob(logits_V: torch.Tensor, token: int, count: int) -> TokenLogprob:
    """Log-probabilities of a token and of the `count` likeliest that are possible at all, by the model's own logits.

    Raises:
        FloatingPointError: as `draw`.
    """
    logit_V = logits_V.numpy(force=True)
    best = _best(logit_V)
    shifted_V = logit_V - logit_V[best]
    total = float(np.log(np.exp(shifted_V).sum(dtype=np.float64)))
    ids_C = heaviest(logit_V, count) if count else np.arange(0)
    # By the logits themselves: 0 and 6e-8 are equal once 1.5 is taken from them.
    falling = sorted((-float(logit_V[i]), int(i)) for i in ids_C if np.isfinite(logit_V[i]))
    return TokenLogprob(token, float(shifted_V[token]) - total, tuple((i, float(shifted_V[i]) - total) for _, i in falling))


def _best(logit_V: Reals) -> int:
    best = int(logit_V.argmax())  # the first of equals, and the first NaN if there is one
    if not np.isfinite(logit_V[best]):
        raise FloatingPointError(f"logits: token {best} has {logit_V[best]}, nothing can be drawn")
    return best


def _gumbel(ids_C: Ids, how: Draw, index: int) -> Reals:
    return -np.log(-np.log(uniform(ids_C, how, index)))
