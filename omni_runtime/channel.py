"""A hand-off at run time: an ordered, addressed stream with a structural end, and a cursor per reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_runtime.work import TensorRef

Refs = list[TensorRef]
NONE: Refs = []


class Channel:
    """Items of one port of one run.

    The end is a state (`closed`, with a reason), not a message, so it cannot be lost. Positions are absolute, so pushing a
    step's items again changes nothing. Items stay until the run ends, so that readers may go back; the tensors behind names are
    given back (for release) as soon as every reader has passed them.
    """

    __slots__ = ("closed", "device", "items", "low", "readers", "source")

    def __init__(self, device: bool = False, source: Any = None) -> None:
        self.device = device
        self.source = source  # the node that pushes; None for an input of the request
        self.items: list[Any] = []
        self.low = 0  # tensors below are given back
        self.closed: str | None = None
        self.readers: list[Reader] = []

    @property
    def tail(self) -> int:
        """One past the last item."""
        return len(self.items)

    def push(self, start: int, items: Sequence[Any]) -> Refs:
        """Adds items at `start`; returns tensors that nobody needs: made a second time, or without a reader."""
        tail = len(self.items)
        assert start <= tail, f"gap: items start at {start}, the channel ends at {tail}"
        again = tail - start
        fresh = items[again:] if again else items
        assert self.closed is None or not len(fresh), f"{len(fresh)} items after the end ({self.closed})"
        self.items.extend(fresh)
        if not self.device:
            return NONE
        return [ref for ref in items[:again] if ref not in self.items] + self.collect()

    def close(self, reason: str) -> None:
        if self.closed is None:
            self.closed = reason

    def collect(self) -> Refs:
        """Names of the tensors that every attached reader has passed since the last call."""
        if not self.device:
            return NONE
        floor = min((0 if r.full else r.cursor for r in self.readers if r.attached), default=len(self.items))
        gone = self.items[self.low : floor]
        self.low = max(self.low, floor)
        return gone

    def held(self) -> Refs:
        """Tensors that the channel still holds."""
        return self.items[self.low :] if self.device else NONE


class Reader:
    """A reader's place in a channel. `capacity` bounds how far the source may run ahead of it (None: not at all)."""

    __slots__ = ("attached", "capacity", "channel", "cursor", "full", "node")

    def __init__(self, channel: Channel, full: bool = False, capacity: int | None = None, node: Any = None) -> None:
        self.channel, self.full, self.capacity, self.node = channel, full, capacity, node
        self.cursor = 0
        self.attached = True
        channel.readers.append(self)

    @property
    def available(self) -> int:
        return len(self.channel.items) - self.cursor

    @property
    def ended(self) -> bool:
        """Nothing will come after what is available."""
        return self.channel.closed is not None

    @property
    def filled(self) -> bool:
        """Whether what waits here reaches the capacity."""
        return self.capacity is not None and len(self.channel.items) - self.cursor >= self.capacity

    def peek(self, n: int | None = None) -> tuple[Any, ...]:
        """The next n items (all by default), or fewer if there are fewer; consumes nothing."""
        at = self.cursor
        return tuple(self.channel.items[at:] if n is None else self.channel.items[at : at + n])

    def take(self, n: int) -> None:
        assert n <= self.available, f"takes {n} of {self.available}"
        self.cursor += n

    def rewind(self, to: int) -> None:
        """Goes back, to read items again."""
        assert 0 <= to <= self.cursor, f"back to {to} from {self.cursor}"
        self.cursor = to

    def detach(self) -> None:
        self.attached = False
