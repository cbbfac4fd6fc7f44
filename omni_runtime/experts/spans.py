"""What a decoder is asked for and what it gives: spans of tokens of several sequences, one after the other.

Suffixes: T tokens of all spans, D width, V vocabulary, R spans that draw, N tokens of one span, M of them that features are added
to, L layers, 3 axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from omni_runtime.experts.kv_cache import Cache


@dataclass(frozen=True)
class Given:
    """What a span brings beside or in place of token ids. Who makes it answers for its shapes."""

    vectors_ND: torch.Tensor | None = None  # in place of the embeddings of the tokens, which may be empty then
    positions_3N: torch.Tensor | None = None  # time, height, width; where a token stands in the cache is told by `start` as ever
    rows: tuple[int, ...] = ()  # tokens of the span, rising, that `features_LMD` are added to
    features_LMD: torch.Tensor | None = None  # after layer l: features_LMD[l] (DeepStack, Meng et al. 2024)


@dataclass(frozen=True)
class Span:
    """Tokens at positions start .. start+count of the sequence in `cache`; positions before must be there already."""

    cache: Cache
    start: int
    tokens: Sequence[int]
    draw: bool = False  # compute the logits after the last token
    given: Given | None = None

    @property
    def count(self) -> int:
        """Tokens, or vectors in place of them."""
        vectors_ND = None if self.given is None else self.given.vectors_ND
        return len(self.tokens) if vectors_ND is None else len(vectors_ND)


class Ran(NamedTuple):
    """What a pass gave."""

    logits_RV: torch.Tensor  # of the spans that draw, in order
    hidden_TD: torch.Tensor  # after the last norm
    taps: dict[int, torch.Tensor]  # by layer, [T, D]: what it was fed by the one before, without that one's features
    brought: Mapping[str, torch.Tensor] = {}  # what was sent along, on the device


def features(spans: Sequence[Span]) -> list[tuple[list[int], list[torch.Tensor]]]:
    """By layer: rows of the whole batch, and what is added to them, parts of [M, D]. Spans may bring different numbers of
    layers."""
    found: list[tuple[list[int], list[torch.Tensor]]] = []
    begin = 0
    for span in spans:
        given = span.given
        if given is not None and given.features_LMD is not None and given.rows:
            for i, features_MD in enumerate(given.features_LMD):
                if i == len(found):
                    found.append(([], []))
                found[i][0].extend(begin + row for row in given.rows)
                found[i][1].append(features_MD)
        begin += span.count
    return found
