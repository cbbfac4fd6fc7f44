"""Text to phoneme strings that the talker can say in one go, in order and with nothing lost on the way.

The readings come from hibari's own G2P (lexicon, part-of-speech rules, a small network for unknown words). What is added here are
its blind spots, measured on 0.2.1: its network reads 24 letters of a word and forgets the rest; a number of 3,000 digits
raises IndexError; "a-" 1,000 times takes minutes, since its look-up of a word is cubic in the parts of that word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from omni_runtime.errors import MissingExtra

LIMIT = 400  # phonemes in one go: as hibari's own cut, which leaves longer clauses whole
LONGEST_WORD = 40  # characters without a space that go into the G2P at once; "a-" 20 times: 20 ms
LONGEST_TEXT = 2_000  # characters that go into the G2P at once
SILENT = frozenset(';:,.!?—…"()“” ˈˌː')  # symbols of the model that alone make no speech

_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: " ", 0x3001: ",", 0x3002: "."}  # full width → ASCII
_CLAUSE_END = re.compile(r"[;:,.!?—…][”\")]*\s")
_WORD_PART = re.compile(r"\d+|[^\W\d_]+|\s+|.", re.DOTALL)


class Phonemes:
    """Readings of texts. Deterministic; holds no state between calls.

    Args:
        known: the symbols that the model has been taught; the G2P knows some more.
    """

    def __init__(self, known: Iterable[str]) -> None:
        try:
            from hibari import Hibari
            from hibari.g2p import G2P
            from hibari.g2p.oov import OOV
        except ImportError as missing:
            raise MissingExtra(f"reading text aloud needs {missing.name}: pip install 'omni_runtime[speech]'") from missing
        self._known = frozenset(known)
        self._sentences: Callable[[str], list[str]] = Hibari.split_sentences
        self._g2p: Callable[[str], str] = G2P(oov=_WholeWord(OOV()))

    def pieces(self, text: str) -> list[str]:
        """Phoneme strings of at most LIMIT symbols, in the order of the text; none for a text without anything to say.

        Characters that stand for no sound (emoji, scripts that an English voice cannot read) are left out.
        """
        plain = unicodedata.normalize("NFC", text.translate(_WIDE))
        spoken = [self._read(part) for sentence in self._sentences(plain) for part in _parts(sentence)]
        return [piece for phonemes in spoken for piece in cut(phonemes, LIMIT) if not SILENT.issuperset(piece)]

    def _read(self, text: str) -> str:
        """A reading, of the halves if the G2P cannot take the whole; a single character that it cannot take is left out."""
        try:
            return "".join(symbol for symbol in self._g2p(text) if symbol in self._known)
        except Exception:  # its own limits show as IndexError or KeyError, from anywhere inside
            if len(text) < 2:
                return ""
            space = text.rfind(" ", 1, len(text) // 2)
            middle = space if space > 0 else len(text) // 2
            return f"{self._read(text[:middle])} {self._read(text[middle:])}".strip()


def cut(phonemes: str, limit: int) -> Iterator[str]:
    """Pieces of at most `limit` symbols: cut after the last clause that fits, else at the last space, else at the limit."""
    while len(phonemes) > limit:
        clauses = [match.end() for match in _CLAUSE_END.finditer(phonemes, 0, limit + 1)]
        space = phonemes.rfind(" ", 1, limit + 1)
        at = clauses[-1] if clauses else space if space > 0 else limit
        yield phonemes[:at].strip()
        phonemes = phonemes[at:].strip()
    if phonemes:
        yield phonemes


def _parts(sentence: str) -> Iterator[str]:
    """A sentence as the G2P can take it: whole, unless it or one of its words is beyond the limits above."""
    words = [part for word in sentence.split() for part in _word_parts(word)]
    start = size = 0
    for i, word in enumerate(words):
        if size + len(word) > LONGEST_TEXT and i > start:
            yield " ".join(words[start:i])
            start, size = i, 0
        size += len(word) + 1
    if words:
        yield " ".join(words[start:])


def _word_parts(word: str) -> Iterator[str]:
    """A word of any length in parts of at most LONGEST_WORD characters, between letters, digits and signs where that can be."""
    if len(word) <= LONGEST_WORD or (word.isalpha() and word[1:].islower()):  # one word to the G2P: `_WholeWord` reads it
        yield word
        return
    part = ""
    for atom in _WORD_PART.findall(word):
        for start in range(0, len(atom), LONGEST_WORD):
            bit = atom[start : start + LONGEST_WORD]
            if len(part) + len(bit) > LONGEST_WORD:
                yield part
                part = ""
            part += bit
    if part:
        yield part


class _WholeWord:
    """hibari's network for unknown words, without its limit: what is longer is read in stretches of that limit."""

    def __init__(self, oov: Any) -> None:
        self._oov = oov
        self._letters: int = oov.maxlen

    def __call__(self, word: str) -> str | None:
        readable = "".join(letter for letter in word if letter in self._oov.cin)
        read = [self._oov(readable[start : start + self._letters]) for start in range(0, len(readable), self._letters)]
        return "".join(filter(None, read)) or None
