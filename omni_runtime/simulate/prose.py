"""Text that is cut as real text is: clauses of the lengths that were learned, in pieces of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

CLAUSES = 256  # in a pool; what a request says is a stretch of it
USUAL = (38.0, 52.0, 61.0, 70.0, 84.0)  # characters of a clause, where nothing was learned: those of the demo's answer
PER_TOKEN = 4.4  # characters, where nothing was learned


class Prose:
    """A pool of tokens that every request reads from a place of its own, round and round.

    Args:
        clauses: lengths in characters, to draw from.
        per_token: characters of a token, on average.
        seed: of the dice.
    """

    def __init__(self, clauses: Sequence[float] = (), per_token: float = 0.0, seed: int = 0) -> None:
        dice = Random(f"prose/{seed}")
        per_token = min(max(per_token or PER_TOKEN, 1.0), 40.0)
        self.pieces: list[str] = []
        self.starts: list[int] = []  # of clauses
        spare = 0.0  # tokens owed by rounding, or short clauses would have the wrong number of characters a token
        for _ in range(CLAUSES):
            length = max(3, round(dice.choice(clauses or USUAL)))
            wanted = length / per_token + spare
            count = min(max(1, round(wanted)), length // 2)
            spare = min(max(wanted - count, -1.0), 1.0)
            self.starts.append(len(self.pieces))
            ends = [length * (i + 1) // count for i in range(count)]
            starts = [0, *ends[:-1]]
            self.pieces += [" " + "a" * (end - start - 1) for start, end in zip(starts, ends, strict=True)]
            self.pieces[-1] = self.pieces[-1][:-1] + "."

    def start(self, run: int) -> int:
        """Where a request begins: with a clause; numbers that follow each other are spread evenly over all."""
        return self.starts[run * 97 % CLAUSES]

    def text(self, run: int, characters: int) -> str:
        """So many characters."""
        at, found, length = self.start(run), [], 0
        while length < characters:
            piece = self.pieces[at % len(self.pieces)]
            found.append(piece)
            length += len(piece)
            at += 1
        return "".join(found)[:characters]
