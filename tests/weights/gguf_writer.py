"""Writes GGUF files for tests, damaged ones too."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

SCALARS = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f")}
SCALARS |= {"bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d")}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> tuple[int, bytes]:
    """(kind, value) pairs name a scalar's kind; texts, lists, ints and floats take the usual one."""
    if isinstance(value, tuple):
        number, form = SCALARS[value[0]]
        return number, struct.pack("<" + form, value[1])
    if isinstance(value, str | bytes):
        return 8, text(value)
    if isinstance(value, list):
        items = [typed(item) for item in value] or [(4, b"")]
        return 9, struct.pack("<IQ", items[0][0], len(value)) + b"".join(item[1] for item in items)
    return typed(("u32", value) if isinstance(value, int) else ("f32", value))


def build(
    metadata: Mapping[str, Any] | Sequence[tuple[str, Any]] = (),
    tensors: Sequence[tuple[str, Sequence[int], int, bytes]] = (),
    version: int = 3,
    alignment: int = 32,
    offsets: Mapping[str, int] | None = None,
) -> bytes:
    """A file as bytes. Tensors are (name, row-major shape, ggml type, data); `offsets` overrides where one says it lies."""
    pairs = list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    for key, value in pairs:
        kind, raw = typed(value)
        head += text(key) + struct.pack("<I", kind) + raw
    data = b""
    for name, shape, kind, raw in tensors:
        data += b"\0" * (-len(data) % alignment)
        offset = (offsets or {}).get(name, len(data))
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", kind, offset)
        data += raw
    return head + b"\0" * (-len(head) % alignment) + data
