"""Text that is cut as real text is: clauses of the lengths that were learned, in pieces of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

CLAUSES = 256  # in a pool; what a request says is an opening and a stretch of it
VARIANTS = 128  # of what a request may say
USUAL = (38.0, 52.0, 61.0, 70.0, 84.0)  # characters of a clause, where nothing was learned: those of the demo's answer
PER_TOKEN = 4.4  # characters, where nothing was learned


class Prose:
    """What requests say. Each begins with a clause of its own and goes on with a stretch of a pool, round and round.

    Args:
        clauses: lengths in characters, to draw from.
        firsts: the same of the clauses that answers begin with; they decide when sound begins.
        per_token: characters of a token, on average.
        seed: of the dice.
    """

    def __init__(
        self, clauses: Sequence[float] = (), firsts: Sequence[float] = (), per_token: float = 0.0, seed: int = 0
    ) -> None:
        dice = Random(f"prose/{seed}")
        self._per_token = min(max(per_token or PER_TOKEN, 1.0), 40.0)
        self._spare = 0.0  # tokens owed by rounding, or short clauses would have the wrong number of characters a token
        clauses = clauses or USUAL
        pool = [self._clause(dice.choice(clauses)) for _ in range(CLAUSES)]
        self.said: list[list[str]] = []  # pieces, by variant
        for variant in range(VARIANTS):
            turned = pool[variant * CLAUSES // VARIANTS :] + pool[: variant * CLAUSES // VARIANTS]
            opening = self._clause(dice.choice(firsts or clauses))
            self.said.append([piece for clause in [opening, *turned] for piece in clause])

    def _clause(self, characters: float) -> list[str]:
        length = max(3, round(characters))
        wanted = length / self._per_token + self._spare
        count = min(max(1, round(wanted)), length // 2)
        self._spare = min(max(wanted - count, -1.0), 1.0)
        ends = [length * (i + 1) // count for i in range(count)]
        pieces = [" " + "a" * (end - start - 1) for start, end in zip([0, *ends], ends, strict=False)]
        pieces[-1] = pieces[-1][:-1] + "."
        return pieces

    def text(self, request: int, characters: int) -> str:
        """So many characters of what a request says."""
        said = self.said[variant(request)]
        at, found, length = 0, [], 0
        while length < characters:
            piece = said[at % len(said)]
            found.append(piece)
            length += len(piece)
            at += 1
        return "".join(found)[:characters]


def variant(request: int) -> int:
    """Which variant a request says: numbers that follow each other are spread evenly."""
    return request * 37 % VARIANTS
