"""Which logical KV blocks of one pool belong to which loop, and what is promised to whom."""

from __future__ import annotations


class Ledger:
    """The blocks of one expert on one executor.

    Two books: `reserved` counts what an admitted run may still come to hold, `held` names the blocks that its loops hold.
    A run gets everything that it may ever hold promised at once, so nobody holds blocks while waiting for more.
    """

    __slots__ = ("free", "held", "reserved", "total", "unreserved")

    def __init__(self, total: int) -> None:
        self.total = total
        self.unreserved = total
        self.free = list(range(total - 1, -1, -1))
        self.reserved: dict[tuple[int, str], int] = {}
        self.held: dict[tuple[int, str], list[int]] = {}

    def can_reserve(self, n: int) -> bool:
        return n <= self.unreserved

    def reserve(self, run: int, loop: str, n: int) -> None:
        assert self.can_reserve(n) and (run, loop) not in self.reserved
        self.reserved[run, loop] = n
        self.unreserved -= n

    def take(self, run: int, loop: str, n: int) -> None:
        """Adds blocks to what the loop holds, out of what it was promised."""
        key = (run, loop)
        held = self.held.setdefault(key, [])
        assert len(held) + n <= self.reserved[key], f"{key} holds {len(held)}, wants {n} more, was promised {self.reserved[key]}"
        cut = len(self.free) - n
        held.extend(self.free[cut:])
        del self.free[cut:]

    def drop(self, run: int, loop: str) -> int:
        """Ends a loop's promise and frees what it holds; returns how much was promised."""
        self.free.extend(self.held.pop((run, loop), ()))
        promised = self.reserved.pop((run, loop), 0)
        self.unreserved += promised
        return promised

    def check(self) -> None:
        """Blocks are conserved and nobody holds more than was promised."""
        held = [block for blocks in self.held.values() for block in blocks]
        assert sorted(held + self.free) == list(range(self.total)), "blocks are not conserved"
        assert self.unreserved == self.total - sum(self.reserved.values()) >= 0, "promises do not add up"
        for key, blocks in self.held.items():
            assert len(blocks) <= self.reserved[key], f"{key} holds more than it was promised"
