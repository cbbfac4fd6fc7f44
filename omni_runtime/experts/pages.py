"""KV pages as storage: the blocks that a ledger counts are places in one tensor, and a sequence is a table of them.

Suffixes: L layers, N blocks, P positions of a block, G heads of keys and values, E head dimension, S positions of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any

import numpy as np
import torch

from omni_runtime.errors import CardError
from omni_runtime.experts.kv_cache import Cache
from omni_runtime.weights.decoder_config import DecoderConfig

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Pages:
    """The pool of one decoder on one device, empty until `allot`.

    Attributes:
        kv_L2NPGE: keys and values. What nobody has written is never read.
        places: positions of a block.
    """

    def __init__(self, config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> None:
        self._config, self._device, self._dtype = config, device, dtype
        self.kv_L2NPGE = torch.empty(config.layers, 2, 0, 1, config.kv_heads, config.head_dim, device=device, dtype=dtype)
        self.places = 0
        self._lock = Lock()
        self._home, self._gone = "", set[str]()

    @property
    def blocks(self) -> int:
        return self.kv_L2NPGE.shape[2]

    def allot(self, blocks: int, positions: int) -> None:
        """So many blocks of so many positions, once.

        Raises:
            CardError: the device has not that much memory left.
        """
        assert not self.places, f"pages were allotted already: {self.blocks} blocks of {self.places} positions"
        c = self._config
        shape = (c.layers, 2, blocks, positions, c.kv_heads, c.head_dim)
        try:
            self.kv_L2NPGE = torch.empty(shape, device=self._device, dtype=self._dtype)
        except RuntimeError as error:  # of memory, as torch says it on any device
            needed = 2 * c.layers * blocks * positions * c.kv_heads * c.head_dim * self._dtype.itemsize
            raise CardError(
                f"kv_bytes: {blocks} KV blocks take {needed / 2**30:.2f} GiB on {self._device}, which cannot be had: give less "
                f"({str(error).splitlines()[0]})"
            ) from None
        self.places = positions

    @contextmanager
    def turn(self, home: str) -> Iterator[None]:
        """Around all that one incarnation of an executor does with the pages in one batch.

        An incarnation that was given up may still be inside an op. It finishes that before its successor begins, and begins
        nothing after that: its blocks belong to others then.

        Raises:
            RuntimeError: it has a successor.
        """
        with self._lock:
            if home in self._gone:
                raise RuntimeError(f"executor {home!r} was given up, and its KV pages are those of {self._home!r} now")
            if home != self._home:
                # Each incarnation has a stream of its own: what the last one queued comes first.
                if self._home and self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
                self._gone.add(self._home)
                self._home = home
            yield


def turn(pages: Pages | None, home: str) -> AbstractContextManager[None]:
    """As `Pages.turn`; nothing where there are no pages."""
    return nullcontext() if pages is None else pages.turn(home)


class PagedCache(Cache):
    """A sequence whose keys and values lie in blocks of a pool: position p at place p mod P of block p div P of its table."""

    def __init__(self, pages: Pages) -> None:
        self.length = 0
        self._pages = pages
        self.table = np.empty(0, np.int32)

    def grant(self, first: int, blocks: Sequence[int]) -> None:
        if not blocks:
            return
        assert first <= len(self.table), f"a gap in the block table: blocks for place {first}, {len(self.table)} are known"
        low, high, all_of = min(blocks), max(blocks), self._pages.blocks
        assert 0 <= low <= high < all_of, f"blocks {low} to {high}, the pool has {all_of}"
        self.table = np.concatenate([self.table[:first], np.array(blocks, np.int32)])

    @property
    def room(self) -> int:
        """Positions that its blocks have."""
        return len(self.table) * self._pages.places

    def reserve(self, length: int) -> None:
        pages = self._pages
        if not pages.places:
            raise CardError(
                "bytes_per_position: a decoder with pages needs a pool of blocks, and its card has none; give it on the expert"
            )
        assert length <= self.room, f"{length} positions, but {len(self.table)} blocks of {pages.places} were granted"

    def slots(self, start: int, stop: int) -> Ints:
        """slot_S of positions start .. stop: block · P + place."""
        at = np.arange(start, stop)
        found: Ints = self.table[at // self._pages.places].astype(np.int64) * self._pages.places + at % self._pages.places
        return found

    def slot(self, at: int) -> int:
        """That of one position: 1 µs, where an array takes 11."""
        places = self._pages.places
        return int(self.table[at // places]) * places + at % places

    @torch.inference_mode()
    def begin_as(self, other: Cache, length: int) -> None:
        """Whole blocks are copied: what lies behind `length` in the last of them is never read."""
        assert isinstance(other, PagedCache) and other._pages is self._pages, "a copy from another pool"
        assert length <= other.length, f"a copy of {length} positions from a cache of {other.length}"
        self.length = 0
        self.reserve(length)
        count = -(-length // self._pages.places)
        to, source = (torch.from_numpy(table[:count].astype(np.int64)) for table in (self.table, other.table))
        kv = self._pages.kv_L2NPGE
        kv[:, :, to.to(kv.device)] = kv[:, :, source.to(kv.device)]
        self.length = length
