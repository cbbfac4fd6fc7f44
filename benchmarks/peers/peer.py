"""What an engine is to the benchmark, and a client that holds requests back."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
PAD = 2

Served = tuple[float, float, list[int]]  # when the first token and the last one were there; the tokens


class Peer(ABC):
    """An engine that has loaded the model."""

    how: ClassVar[str]  # one line for the table: what was used
    together: ClassVar[bool] = True  # whether it takes part where all run that were asked for
    ragged: ClassVar[bool] = True  # and where at most eight do

    @abstractmethod
    def __init__(self, root: Path) -> None: ...

    @abstractmethod
    def serve(self, prompts: list[list[int]], new: list[int], most: int) -> list[Served]: ...


class Flight:
    """Requests of which at most `most` are in an engine, and what came of them."""

    def __init__(self, new: list[int], most: int) -> None:
        self.new, self.most = new, most
        self.waiting = list(range(len(new)))
        self.inside: set[int] = set()
        self.tokens: list[list[int]] = [[] for _ in new]
        self.first = [0.0] * len(new)
        self.last = [0.0] * len(new)

    def __bool__(self) -> bool:
        return bool(self.waiting or self.inside)

    def enter(self) -> Iterator[int]:
        """Those that may go in now."""
        while self.waiting and len(self.inside) < self.most:
            at = self.waiting.pop(0)
            self.inside.add(at)
            yield at

    def got(self, at: int, tokens: list[int], now: float) -> bool:
        """Takes tokens of a request; whether it has all of them now."""
        if not self.tokens[at]:
            self.first[at] = now
        self.tokens[at] += tokens
        if len(self.tokens[at]) < self.new[at]:
            return False
        self.last[at] = now
        self.inside.discard(at)
        return True

    def served(self) -> list[Served]:
        return [(a, b, t[:n]) for a, b, t, n in zip(self.first, self.last, self.tokens, self.new, strict=True)]
