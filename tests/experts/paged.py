"""A pool whose blocks are dealt out at random: who reads or writes a block that is not its own is found out."""

from __future__ import annotations

import random
from typing import Any

import torch
from tiny import random_weights

from omni_runtime.experts.decoder import DecoderLM
from omni_runtime.experts.pages import PagedCache
from omni_runtime.weights.decoder_config import DecoderConfig

PLACES = 8


class Dealer:
    """Blocks of a decoder's pool, by owner, and what `Row` tells of them."""

    def __init__(self, blocks: int, seed: int = 0) -> None:
        self.free = list(range(blocks))
        random.Random(seed).shuffle(self.free)
        self.held: dict[Any, list[int]] = {}

    def more(self, owner: Any, positions: int) -> tuple[int, tuple[int, ...]]:
        """(first, blocks) so that the owner has room for so many positions."""
        mine = self.held.setdefault(owner, [])
        first, lacks = len(mine), -(-positions // PLACES) - len(mine)
        for _ in range(lacks):
            mine.append(self.free.pop())
        return first, tuple(mine[first:])

    def drop(self, owner: Any) -> None:
        self.free.extend(self.held.pop(owner, ()))


class PagedLM(DecoderLM):
    """A decoder with pages whose caches find blocks by themselves: `check` is asked of each span before anything runs."""

    def __init__(self, config: DecoderConfig, weights: dict[str, torch.Tensor], blocks: int = 400, **more: Any) -> None:
        super().__init__(config, weights, layout="paged", **more)
        assert self.pages is not None
        self.pages.allot(blocks, PLACES)
        self.pages.kv_L2NPGE.fill_(torch.nan)
        self.dealer = Dealer(blocks)

    def check(self, span: Any) -> None:
        super().check(span)
        self.deal(span.cache, span.start + span.count)

    def deal(self, cache: Any, positions: int) -> None:
        assert isinstance(cache, PagedCache)
        cache.grant(*self.dealer.more(cache, positions))


def paged_lm(config: DecoderConfig, seed: int = 0, **more: Any) -> PagedLM:
    return PagedLM(config, random_weights(config, seed), **more)
