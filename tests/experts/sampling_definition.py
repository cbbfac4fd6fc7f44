"""What every parameter of sampling means, said token by token and slowly: the tests compare with this."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from omni_runtime.draw import Draw
from omni_runtime.experts.sampling import uniform


def edit(logits: Sequence[float], prompt: Sequence[int], answer: Sequence[int], how: Draw) -> list[float]:
    x = [float(value) for value in logits]
    edits = how.edits
    if edits is None:
        return x
    for token, bias in zip(edits.bias_ids, edits.bias, strict=True):
        x[token] += bias
    for token in {*prompt, *answer}:
        x[token] = x[token] / edits.repetition if x[token] > 0 else x[token] * edits.repetition
    for token in set(answer):
        x[token] -= edits.presence + edits.frequency * list(answer).count(token)
    if len(answer) < edits.least:
        for token in edits.stop_ids:
            x[token] = -math.inf
    return x


def keep(x: Sequence[float], how: Draw) -> list[int]:
    """The tokens that may be drawn, the likeliest first."""
    score = [(value - max(x)) / how.temperature for value in x]
    ids = sorted(range(len(x)), key=lambda token: (-score[token], token))
    if how.top_k > 0:
        ids = ids[: how.top_k]
    weight = {token: math.exp(score[token]) for token in ids}
    kept, mass = [], 0.0
    for token in ids:
        if mass >= how.top_p * sum(weight.values()):
            break
        kept.append(token)
        mass += weight[token]
    if how.top_p == 1.0:
        kept = ids
    return [token for token in kept if weight[token] >= how.min_p * weight[ids[0]]]


def choose(logits: Sequence[float], prompt: Sequence[int], answer: Sequence[int], how: Draw) -> int:
    x = edit(logits, prompt, answer, how)
    if how.temperature == 0:
        return min(range(len(x)), key=lambda token: (-x[token], token))
    best, best_value = -1, -math.inf
    for token in sorted(keep(x, how)):
        u = float(uniform(np.array([token]), how, len(answer))[0])
        value = (x[token] - max(x)) / how.temperature - math.log(-math.log(u))
        if value > best_value:
            best, best_value = token, value
    return best


def logprobs(logits: Sequence[float], count: int) -> tuple[list[float], list[int]]:
    """Log-probability of every token, and the `count` likeliest."""
    top = max(logits)
    total = top + math.log(sum(math.exp(value - top) for value in logits))
    ids = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    return [value - total for value in logits], [token for token in ids[:count] if logits[token] > -math.inf]
