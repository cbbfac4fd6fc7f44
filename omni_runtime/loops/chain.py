"""Digests of the beginnings of a token sequence."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b


def chain(tokens: Sequence[int], block: int, salt: bytes = b"") -> tuple[bytes, ...]:
    """A digest of 16 bytes for every full block of tokens, each over all tokens up to the block's end.

    Args:
        tokens: ids.
        block: positions in a KV block.
        salt: what else decides the KV of these positions: expert, adapter, version of the weights, digests of media.

    Two requests share a digest only if all of that is equal (but for a chance of 2**-64 among 2**32 blocks).
    """
    state = blake2b(salt, digest_size=16)
    found = []
    for end in range(block, len(tokens) + 1, block):
        state.update(array("q", tokens[end - block : end]).tobytes())
        found.append(state.digest())
    return tuple(found)
