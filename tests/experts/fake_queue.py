"""A device that does what is queued when it is told to, or when somebody waits: until then everything holds poison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from omni_runtime.experts.device_queue import Mark

POISON = 0xFF  # as bytes: NaN in every float, -1 or the largest in whole numbers


class FakeMark:
    """After so many pieces of work."""

    def __init__(self, queue: FakeQueue, at: int) -> None:
        self._queue, self._at = queue, at

    def done(self) -> bool:
        return self._queue.ran >= self._at

    def wait(self) -> None:
        self._queue.run(self._at)

    def since(self, before: Mark) -> float:
        assert isinstance(before, FakeMark) and self.done() and before.done()
        return self._queue.passed[self._at] - self._queue.passed[before._at]


class FakeQueue:
    """Its memory is the host's. `pins` are the pinned buffers that were made."""

    def __init__(self) -> None:
        self.works: list[Callable[[], float]] = []
        self._aside = False
        self.ran = 0
        self.passed = [0.0]  # seconds on the device's clock after so many
        self.pins: list[torch.Tensor] = []

    def put(self, work: Callable[[], float]) -> None:
        """Queues work; what it returns are the seconds that it took."""
        self.works.append(work)

    def run(self, until: int | None = None) -> None:
        """Does what was queued, up to a place. Work that raises has been done, and raises here."""
        while self.ran < (len(self.works) if until is None else until):
            work, seconds = self.works[self.ran], 0.0
            self.ran += 1
            try:
                seconds = work()
            finally:
                self.passed.append(self.passed[-1] + seconds)

    def pinned(self, nbytes: int) -> torch.Tensor:
        self.pins.append(torch.full((nbytes,), POISON, dtype=torch.uint8))
        return self.pins[-1]

    def empty(self, nbytes: int) -> torch.Tensor:
        return torch.full((nbytes,), POISON, dtype=torch.uint8)

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        def copied() -> float:
            to.copy_(source)
            return 0.0

        if self._aside:
            copied()
        else:
            self.put(copied)

    def mark(self, timed: bool = False) -> Mark:
        return FakeMark(self, self.ran if self._aside else len(self.works))

    @contextmanager
    def behind(self, mark: Mark) -> Iterator[None]:
        """Beside the queue: once its work up to the mark is done, copies inside are made at once."""
        mark.wait()
        self._aside = True
        try:
            yield
        finally:
            self._aside = False
