"""Keys and values of one sequence.

Suffixes: L layers, K key-value heads, S positions, E head dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch

from omni_runtime.weights.decoder_config import DecoderConfig


class Kept(NamedTuple):
    """Where keys and values of a sequence are: of layer l at kv + 2·l·layer and one `layer` further, [K, S, E] each."""

    kv: torch.Tensor
    layer: int  # elements
    head: int


class Cache(ABC):
    """Keys and values of one sequence.

    Attributes:
        length: positions that hold a token.
    """

    length: int

    @abstractmethod
    def grant(self, first: int, blocks: Sequence[int]) -> None:
        """Blocks of the pool that are the sequence's own from now on, at place `first` of its table and after. A row that is run
        again names the same place again."""

    @abstractmethod
    def reserve(self, length: int) -> None:
        """Makes sure of room for `length` positions, keeping what is there."""

    @abstractmethod
    def begin_as(self, other: Cache, length: int) -> None:
        """Holds a copy of the first `length` positions of another cache from now on, and nothing else."""


class KVCache(Cache):
    """Keys and values of one sequence, contiguous. It grows by doubling: each position is copied once on average."""

    LEAST = 64  # positions

    def __init__(self, config: DecoderConfig, device: str = "cpu") -> None:
        self.length = 0
        self._limit = config.positions
        # Layer l: keys at 2l, values at 2l + 1.
        self._kv_LKSE = torch.empty(2 * config.layers, config.kv_heads, 0, config.head_dim, device=device)

    def grant(self, first: int, blocks: Sequence[int]) -> None:
        """Nothing: here numbers of blocks are for the books."""

    def reserve(self, length: int) -> None:
        have = self._kv_LKSE.shape[2]
        if length <= have:
            return
        room = min(max(length, 2 * have, self.LEAST), max(self._limit, length))
        size = list(self._kv_LKSE.shape)
        size[2] = room
        grown = self._kv_LKSE.new_empty(size)
        grown[:, :, : self.length] = self._kv_LKSE[:, :, : self.length]
        self._kv_LKSE = grown

    @torch.inference_mode()  # a cache that has grown inside a pass may not be written to outside of one
    def begin_as(self, other: Cache, length: int) -> None:
        assert isinstance(other, KVCache), f"a copy of a {type(other).__name__}"
        assert length <= other.length, f"a copy of {length} positions from a cache of {other.length}"
        self.length = 0
        self.reserve(length)
        self._kv_LKSE[:, :, :length] = other._kv_LKSE[:, :, :length]
        self.length = length

    def kept(self) -> Kept:
        """Where all of it is."""
        return Kept(self._kv_LKSE, self._kv_LKSE.stride(0), self._kv_LKSE.stride(1))

    def views(self, start: int, stop: int) -> tuple[torch.Tensor, ...]:
        """Positions start..stop of K and V of every layer, [1, K, stop-start, E] each, in the order k0, v0, k1, v1, ..."""
        return self._kv_LKSE[:, None, :, start:stop].unbind()

    @property
    def nbytes(self) -> int:
        return self._kv_LKSE.nbytes
