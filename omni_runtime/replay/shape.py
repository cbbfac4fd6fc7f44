"""Stand-ins for text that is cut and measured, but must not be read."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable, Iterator
from functools import lru_cache

NO_STOPS: frozenset[str] = frozenset()
KEPT = frozenset("…—»”’」』）】。！？、，；：")  # beside ASCII and white space: where clauses are cut, see loops/clauses.py
SHORTEST = (0, 0, 0x80, 0x800, 0x10000)  # first character of so many bytes
LOWER, UPPER, DIGITS = "xyzabcdefghijklmnopqrstuvw", "XYZABCDEFGHIJKLMNOPQRSTUVW", "0123456789"


@lru_cache(maxsize=1 << 14)
def shape(char: str, avoid: frozenset[str] = NO_STOPS) -> str:
    """A character of the same kind, with the same first byte in UTF-8 unless it is ASCII. White space and punctuation stay.

    Args:
        char: the original.
        avoid: what the stand-in must not be.
    """
    word = char.isalnum() or char == "_"
    if char.isspace() or char in KEPT or (char.isascii() and not word):
        return char
    if char.isascii():
        same = DIGITS if char.isdigit() else UPPER if char.isupper() else LOWER
        return next((c for c in (*same, "é", "è", "ê") if c not in avoid), char)
    for c in _beside(char):
        if c not in avoid and c not in KEPT and not c.isspace() and c.isalnum() is word:
            return c
    return char


def _beside(char: str) -> Iterator[str]:
    """Characters with the same first byte."""
    size = len(char.encode("utf-8", "replace"))
    bits = 6 * (size - 1)
    first = ord(char) >> bits << bits
    for code in range(max(first, SHORTEST[size]), min(first + (1 << bits), 0x110000)):
        if not 0xD800 <= code < 0xE000:
            c = chr(code)
            if len(c.encode()) == size:
                yield c


def shaped(text: str) -> str:
    """A text as stand-ins, character by character."""
    return "".join(map(shape, text))


class Mask:
    """Stand-ins for the pieces of one answer: its text comes out piece by piece as before, and stops where it stopped.

    A stop string stays, and so does every character of the text that begins or continues one: with all others replaced by what
    is in no stop string, the same parts of the text match.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(stops)
        self._avoid = frozenset("".join(self._stops))
        self._begun: list[tuple[str, int]] = []  # stop strings that may be complete soon, and how much of each is there
        self._bytes = b""  # of a character that is not complete; its first byte is out

    def feed(self, piece: bytes) -> bytes:
        data = self._bytes + piece
        text, used = utf_8_decode(data, "replace", False)
        out = []
        for at, char in enumerate(text):
            stand_in = self._next(char).encode()
            if at == 0 and self._bytes:  # its first byte is out: what follows completes it, or breaks it again
                stand_in = stand_in[1:] if data.startswith(char.encode()) else b""
            out.append(stand_in)
        if used or not self._bytes:
            out.append(data[used : used + 1])
        self._bytes = data[used:]
        return b"".join(out)

    def _next(self, char: str) -> str:
        if not self._stops:
            return shape(char)
        begun = [(stop, n + 1) for stop, n in self._begun if stop[n] == char]
        begun += [(stop, 1) for stop in self._stops if stop[0] == char]
        self._begun = [(stop, n) for stop, n in begun if n < len(stop)]
        return char if begun else shape(char, self._avoid)
