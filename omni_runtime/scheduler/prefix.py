"""Which loops hold the KV of which beginning of a text, so that a request that begins alike need not compute it again."""

from __future__ import annotations

Key = tuple[int, str]  # (run, loop)


class Prefixes:
    """The beginnings that a pool's loops hold, by content.

    A chain is a list of digests, one per full KV block, each over all tokens up to the block's end (and whatever else decides
    the KV: see `loops/chain.py`). Equal digests mean equal content, so a hit is exact.
    """

    __slots__ = ("_chains", "_holders")

    def __init__(self) -> None:
        self._holders: dict[bytes, dict[Key, None]] = {}  # digest -> who holds that much; in the order they came
        self._chains: dict[Key, list[bytes]] = {}

    def add(self, key: Key, chain: tuple[bytes, ...]) -> None:
        """The loop now holds at least these blocks."""
        mine = self._chains.setdefault(key, [])
        for digest in chain[len(mine) :]:
            mine.append(digest)
            self._holders.setdefault(digest, {})[key] = None

    def forget(self, key: Key) -> None:
        for digest in self._chains.pop(key, ()):
            holders = self._holders[digest]
            del holders[key]
            if not holders:
                del self._holders[digest]

    def find(self, chain: tuple[bytes, ...]) -> tuple[Key, int] | None:
        """Who holds the longest beginning of a chain, and how many blocks of it."""
        for n in range(len(chain), 0, -1):
            holders = self._holders.get(chain[n - 1])
            if holders:
                return next(reversed(holders)), n
        return None

    def holds(self, key: Key) -> bool:
        """Whether a loop holds anything that another could use."""
        return bool(self._chains.get(key))

    def check(self, alive: set[Key]) -> None:
        """Nobody is listed who holds nothing any more, and both directions agree."""
        assert set(self._chains) <= alive, f"prefixes of loops that hold nothing: {set(self._chains) - alive}"
        pairs = {(digest, key) for key, chain in self._chains.items() for digest in chain}
        assert pairs == {(digest, key) for digest, holders in self._holders.items() for key in holders}, "prefix index"
