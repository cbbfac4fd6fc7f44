"""What a request changes about its logits before a token is drawn, and the tokens that its penalties count.

A count is made anew at every draw, from the tokens by position. A row that runs again writes the same tokens to the same
positions, a copied beginning brings its tokens along, and chunks of a prompt are just positions: nothing can be counted twice or
missed.

Suffixes: V vocabulary, S positions of prompt and answer, A positions of the answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from omni_runtime.draw import Edits
from omni_runtime.errors import RequestError

Reals = np.ndarray[Any, np.dtype[np.float64]]
Ids = np.ndarray[Any, np.dtype[np.int32]]

_HUGE = 1e300  # the smallest penalties would make logits infinite, whose differences are no numbers


class History:
    """Token ids of one sequence by position."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids = array("i")

    def write(self, start: int, tokens: Sequence[int]) -> None:
        """These tokens stand at `start`, and nothing after them."""
        assert start <= len(self._ids), f"a gap: tokens at {start}, {len(self._ids)} are known"
        self._ids[start:] = array("i", tokens)

    def begin_as(self, other: History, length: int) -> None:
        """The first `length` tokens of another sequence, and nothing else."""
        assert length <= len(other._ids), f"a copy of {length} tokens of {len(other._ids)}"
        self._ids = other._ids[:length]

    def ids(self, start: int = 0) -> Ids:
        """All from `start` on."""
        return np.array(self._ids[start:], np.int32)

    def __len__(self) -> int:
        return len(self._ids)


def check_ids(edits: Edits, vocabulary: int) -> None:
    """Whether the model has all tokens that a request names.

    Raises:
        RequestError: it lacks one.
    """
    for name, ids in (("logit_bias", edits.bias_ids), ("stop_tokens", edits.stop_ids)):
        if ids and ids[-1] >= vocabulary:
            raise RequestError(f"{name}: token {ids[-1]} is not in the vocabulary of {vocabulary}")


def edited(logit_V: Reals, edits: Edits, index: int, history: History | None) -> Reals:
    """The logits with bias, penalties and the ban of stop tokens, in this order, for output token `index`.

    With x a logit and n how often its token stands in the answer so far: x + bias; then x / repetition if x > 0, else
    x * repetition, if its token stands in prompt or answer (Keskar et al. 2019, section 4.1, where negative logits are not
    considered); then x - presence * [n > 0] - frequency * n; then -inf for stop tokens where index < least.

    The logits themselves stay as they are; where nothing changes, they are what is returned.

    Raises:
        RequestError: nothing is left.
    """
    penalised = edits.repetition != 1.0 or edits.presence != 0.0 or edits.frequency != 0.0
    if not (penalised or edits.bias_ids or index < edits.least):
        return logit_V
    x_V = logit_V.astype(np.float64)
    if edits.bias_ids:
        x_V[list(edits.bias_ids)] += edits.bias
    if edits.repetition != 1.0:
        seen_S = _known(history).ids()  # a token that stands there twice is written twice, with the same value
        x_S = x_V[seen_S]
        with np.errstate(over="ignore"):
            x_V[seen_S] = np.where(x_S > 0, np.minimum(x_S / edits.repetition, _HUGE), x_S * edits.repetition)
    if edits.presence != 0.0 or edits.frequency != 0.0:
        known = _known(history)
        answer_A, count_A = np.unique(known.ids(len(known) - index), return_counts=True)
        x_V[answer_A] -= edits.presence + edits.frequency * count_A
    if index < edits.least and edits.stop_ids:
        x_V[list(edits.stop_ids)] = -np.inf
        if x_V.max() == -np.inf:
            raise RequestError(f"min_tokens: every token that the model could draw as number {index + 1} is a stop token")
    return x_V


def _known(history: History | None) -> History:
    assert history is not None, "penalties count tokens: give them"
    return history
