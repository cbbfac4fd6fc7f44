"""Which logical KV blocks of one pool belong to which loop, and what is promised to whom."""

from __future__ import annotations

from omni_runtime.scheduler.prefix import Key, Prefixes


class Ledger:
    """The blocks of one expert on one executor.

    Loops take blocks as they grow. Some are promised all that they may ever hold, and take out of that. Blocks of loops that
    ended may be kept for their content; they are given up, the oldest first, as soon as somebody needs them.
    """

    __slots__ = ("_free", "_fresh", "evictable", "held", "kept", "prefixes", "promised", "reserved", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._free: list[int] = []  # given back
        self._fresh = 0  # from here on no block was ever given out
        self.reserved: dict[Key, int] = {}  # all that a loop may hold, where that was promised
        self.promised = 0  # of that, what is not held yet
        self.held: dict[Key, list[int]] = {}
        self.kept: dict[Key, int] = {}  # loops that ended, and the blocks they hold; the least recently used first
        self.evictable = 0  # blocks of those
        self.prefixes = Prefixes()

    @property
    def free(self) -> int:
        """Blocks that nobody holds and nobody was promised."""
        return self.total - self._fresh + len(self._free) - self.promised

    @property
    def spare(self) -> int:
        """Those, and what kept loops would give up."""
        return self.free + self.evictable

    def make_room(self, n: int) -> list[Key]:
        """Gives up kept loops until n blocks are free; returns them."""
        gone = []
        while n > self.free and self.kept:
            key = next(iter(self.kept))
            self.drop(*key)
            gone.append(key)
        return gone

    def reserve(self, run: int, loop: str, n: int) -> None:
        """Promises a loop that it can hold n blocks."""
        assert n <= self.free and (run, loop) not in self.reserved
        self.reserved[run, loop] = n
        self.promised += n

    def take(self, run: int, loop: str, n: int) -> None:
        """Adds blocks to what the loop holds, out of what it was promised if anything was."""
        key = (run, loop)
        held = self.held.setdefault(key, [])
        if (most := self.reserved.get(key)) is not None:
            assert len(held) + n <= most, f"{key} holds {len(held)}, wants {n} more, was promised {most}"
            self.promised -= n
        else:
            assert n <= self.free, f"{key} wants {n} blocks, {self.free} are free"
        old = min(n, len(self._free))
        if old:
            held.extend(self._free[-old:])
            del self._free[-old:]
        if n > old:
            held.extend(range(self._fresh, self._fresh + n - old))
            self._fresh += n - old

    def drop(self, run: int, loop: str) -> int:
        """Ends a loop's promise and frees what it holds; returns how much that was."""
        key = (run, loop)
        self.evictable -= self.kept.pop(key, 0)
        self.prefixes.forget(key)
        held = self.held.pop(key, [])
        self._free.extend(held)
        self.promised -= max(0, self.reserved.pop(key, 0) - len(held))
        return len(held)

    def keep(self, run: int, loop: str) -> bool:
        """Ends a loop's promise but keeps what it holds, if others could use it; returns whether anything is kept."""
        key = (run, loop)
        if not self.prefixes.holds(key):
            return False
        holds = len(self.held.get(key, ()))
        self.promised -= max(0, self.reserved.pop(key, 0) - holds)
        self.kept[key] = holds
        self.evictable += holds
        return True

    def used(self, key: Key) -> None:
        """A kept loop was of use: it is given up last."""
        if key in self.kept:
            self.kept[key] = self.kept.pop(key)

    def check(self) -> None:
        """Blocks are conserved and nobody who was promised something holds more."""
        held = [block for blocks in self.held.values() for block in blocks]
        assert sorted(held + self._free) == list(range(self._fresh)), "blocks are not conserved"
        assert self._fresh <= self.total and self.free >= 0, f"{self._fresh} of {self.total} blocks, {self.free} are free"
        assert self.promised == sum(n - len(self.held.get(k, ())) for k, n in self.reserved.items()), "promises do not add up"
        assert self.evictable == sum(self.kept.values()), "evictable blocks"
        for key, holds in self.kept.items():
            assert holds == len(self.held.get(key, ())) and key not in self.reserved, f"kept blocks of {key}"
        self.prefixes.check(set(self.held) | set(self.reserved))
        for key, most in self.reserved.items():
            assert len(self.held.get(key, ())) <= most, f"{key} holds more than it was promised"
