"""Memory that two processes of one host share: one writes arrays into it, the other takes them out, in the same order.

It has no name. Whoever holds it inherited it, and it is gone with the last who does, however they die.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

SIZE = 32 << 20  # bytes; pages that were never written to take no memory
ALIGN = 64


class Ring:
    """One writer and one reader, each with a Ring of its own over the same file.

    Positions count bytes since the beginning and never return. The first line holds how far the reader is, so a writer that has
    no room knows it without asking, and sends its array another way.
    """

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self._read = np.frombuffer(self._map, np.uint64, 1)
        self._bytes = np.frombuffer(self._map, np.uint8, offset=ALIGN)
        self._room = len(self._bytes)
        self.head = 0

    @staticmethod
    def new(size: int = SIZE) -> int | None:
        """A descriptor of fresh memory; None where the system cannot share it without a name."""
        if not hasattr(os, "memfd_create"):
            return None
        fd = os.memfd_create("omni-ring")
        os.ftruncate(fd, size + ALIGN)
        return fd

    def put(self, array: np.ndarray[Any, Any]) -> int | None:
        """Writes an array; returns where it is, or None where there is no room until the reader has gone on."""
        size = array.nbytes
        at, read = self.head, int(self._read[0])
        if at == read or at % self._room + size > self._room:  # it would not lie in one piece, or all has been taken: pages that
            at += -at % self._room  # were used last are in the cache, so begin at the beginning
        end = at + size + -size % ALIGN
        if size > self._room or end - read > self._room:
            return None
        place = at % self._room
        self._bytes[place : place + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.head = end
        return at

    def take(self, at: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A copy of what lies there: the writer may write over it as soon as `done` says so."""
        place = at % self._room
        self.head = at + size + -size % ALIGN
        return self._bytes[place : place + size].copy()

    def done(self) -> None:
        """All that was taken may be written over."""
        self._read[0] = self.head
