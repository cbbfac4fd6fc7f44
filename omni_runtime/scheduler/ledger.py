"""Which logical KV blocks of one pool belong to which loop, and what is promised to whom."""

from __future__ import annotations

from omni_runtime.scheduler.prefix import Key, Prefixes


class Ledger:
    """The blocks of one expert on one executor.

    Two books: `reserved` counts what an admitted run may still come to hold, `held` names the blocks that its loops hold.
    A run gets everything that it may ever hold promised at once, so nobody holds blocks while waiting for more. Blocks of loops
    that ended may be kept for their content; they are given up, the oldest first, as soon as somebody needs a promise.
    """

    __slots__ = ("evictable", "free", "held", "kept", "prefixes", "reserved", "total", "unreserved")

    def __init__(self, total: int) -> None:
        self.total = total
        self.unreserved = total
        self.free = list(range(total - 1, -1, -1))
        self.reserved: dict[Key, int] = {}
        self.held: dict[Key, list[int]] = {}
        self.kept: dict[Key, int] = {}  # loops that ended, and the blocks they hold; the least recently used first
        self.evictable = 0  # blocks of those
        self.prefixes = Prefixes()

    def can_reserve(self, n: int) -> bool:
        return n <= self.unreserved + self.evictable

    def make_room(self, n: int) -> list[Key]:
        """Gives up kept loops until n blocks can be promised; returns them."""
        gone = []
        while n > self.unreserved and self.kept:
            key = next(iter(self.kept))
            self.drop(*key)
            gone.append(key)
        return gone

    def reserve(self, run: int, loop: str, n: int) -> None:
        assert n <= self.unreserved and (run, loop) not in self.reserved
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
        self.evictable -= self.kept.pop((run, loop), 0)
        self.prefixes.forget((run, loop))
        self.free.extend(self.held.pop((run, loop), ()))
        promised = self.reserved.pop((run, loop), 0)
        self.unreserved += promised
        return promised

    def keep(self, run: int, loop: str) -> bool:
        """Ends a loop's promise but keeps what it holds, if others could use it; returns whether anything is kept."""
        key = (run, loop)
        if not self.prefixes.holds(key):
            return False
        holds = len(self.held.get(key, ()))
        self.unreserved += self.reserved[key] - holds
        self.reserved[key] = holds
        self.kept[key] = holds
        self.evictable += holds
        return True

    def used(self, key: Key) -> None:
        """A kept loop was of use: it is given up last."""
        if key in self.kept:
            self.kept[key] = self.kept.pop(key)

    def check(self) -> None:
        """Blocks are conserved and nobody holds more than was promised."""
        held = [block for blocks in self.held.values() for block in blocks]
        assert sorted(held + self.free) == list(range(self.total)), "blocks are not conserved"
        assert self.unreserved == self.total - sum(self.reserved.values()) >= 0, "promises do not add up"
        assert self.evictable == sum(self.kept.values()), "evictable blocks"
        for key, holds in self.kept.items():
            assert holds == self.reserved[key] == len(self.held.get(key, ())), f"kept blocks of {key}"
        self.prefixes.check(set(self.reserved))
        for key, blocks in self.held.items():
            assert len(blocks) <= self.reserved[key], f"{key} holds more than it was promised"
