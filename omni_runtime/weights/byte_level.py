"""Byte-level BPE: the letters that stand for bytes."""

from __future__ import annotations


def _byte_letters() -> dict[str, int]:
    """The GPT-2 alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


BYTE_OF = _byte_letters()
LETTERS = sorted(BYTE_OF, key=BYTE_OF.__getitem__)  # by byte


def spell(token: str) -> bytes:
    """The bytes a byte-level token stands for. A token with letters outside the alphabet stands for its own text."""
    try:
        return bytes([BYTE_OF[letter] for letter in token])
    except KeyError:
        return token.encode()
