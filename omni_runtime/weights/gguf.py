"""GGUF files, versions 2 and 3: metadata, and tensors as float32.

A file is a header, key-value metadata, a directory of tensors and the aligned data. Everything is little-endian. Lengths and
offsets come from the file, so each one is checked against the bytes that are there before anything is allocated or read:
a damaged file ends in a `CheckpointError` that names it, never in a crash or in weights that are silently wrong.

Shapes here are row-major, outermost axis first, the reverse of the order in the file.
Format: the GGUF specification, docs/gguf.md of ggml-org/ggml. Block formats: ggml's quantisation scheme, stated at each decoder.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_runtime.errors import CheckpointError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CUT = "the file is cut off or damaged, fetch it again"
_MAX_AXES = 4  # GGML_MAX_DIMS
_CHUNK = 1 << 12  # blocks of 32 decoded at once: 512 KiB of floats stay in the L2 cache, 1.1x faster than whole tensors


def _half(raw_N2: Bytes) -> Floats:
    return raw_N2.copy().view("<f2").astype(np.float32)


def _f32(raw_NB: Bytes, out_NE: Floats) -> None:
    out_NE[:] = raw_NB.view("<f4")


def _f16(raw_NB: Bytes, out_NE: Floats) -> None:
    out_NE[:] = raw_NB.view("<f2")


def _bf16(raw_NB: Bytes, out_NE: Floats) -> None:
    """The upper half of a float32."""
    out_NE[:] = (raw_NB.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(raw_NB: Bytes, out_NE: Floats) -> None:
    """f16 scale d, 32 x int8 q: w = d q."""
    np.multiply(raw_NB[:, 2:].view(np.int8), _half(raw_NB[:, :2]), out=out_NE)


def _q4_0(raw_NB: Bytes, out_NE: Floats) -> None:
    """f16 scale d, 16 bytes: low nibbles are weights 0..15, high nibbles 16..31, w = d (q - 8)."""
    codes = raw_NB[:, 2:]
    out_NE[:, :16] = codes & 15
    out_NE[:, 16:] = codes >> 4
    out_NE -= 8.0
    out_NE *= _half(raw_NB[:, :2])


def _q4_1(raw_NB: Bytes, out_NE: Floats) -> None:
    """f16 scale d, f16 least m, 16 bytes in the order of Q4_0: w = d q + m, rounded after each operation."""
    codes = raw_NB[:, 4:]
    out_NE[:, :16] = codes & 15
    out_NE[:, 16:] = codes >> 4
    out_NE *= _half(raw_NB[:, :2])
    out_NE += _half(raw_NB[:, 2:4])


@dataclass(frozen=True)
class _Codec:
    """How `elements` weights lie in `size` bytes; `decode` fills [N, elements] from [N, size]."""

    name: str
    elements: int
    size: int
    decode: Callable[[Bytes, Floats], None]


_CODECS = {
    0: _Codec("F32", 1, 4, _f32),
    1: _Codec("F16", 1, 2, _f16),
    2: _Codec("Q4_0", 32, 18, _q4_0),
    3: _Codec("Q4_1", 32, 20, _q4_1),
    8: _Codec("Q8_0", 32, 34, _q8_0),
    30: _Codec("BF16", 1, 2, _bf16),
}


@dataclass(frozen=True)
class TensorEntry:
    """A line of the directory. `start` is an offset into the file, in bytes."""

    name: str
    shape: tuple[int, ...]
    codec: _Codec
    start: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) // self.codec.elements * self.codec.size


class GGUF:
    """Metadata and directory of a file, read and checked at once; data is read when a tensor is asked for.

    Attributes:
        metadata: by key; arrays are lists.
        entries: the directory, by tensor name.

    Raises:
        CheckpointError: the file cannot be opened, is damaged or cut off, or uses something this reader does not know.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with open(self.path, "rb") as file:
                self._buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise CheckpointError(f"{self.path}: cannot be read ({error}); give the path of a .gguf file") from error
        self.metadata, self.entries = _Header(self.path, self._buffer).read()

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as float32, in memory of its own.

        Raises:
            CheckpointError: the file holds no such tensor.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self.path}: tensor {name!r} is missing; the file holds {len(self.entries)} others")
        codec = entry.codec
        raw_NB = np.frombuffer(self._buffer, np.uint8, entry.nbytes, entry.start).reshape(-1, codec.size)
        out_NE = np.empty((len(raw_NB), codec.elements), np.float32)
        for low in range(0, len(raw_NB), _CHUNK * 32 // codec.elements):
            part = slice(low, low + _CHUNK * 32 // codec.elements)
            codec.decode(raw_NB[part], out_NE[part])
        return torch.from_numpy(out_NE.reshape(entry.shape))


class _Header:
    """A cursor over the part of the file before its data."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path, self.buffer, self.at = path, buffer, 0
        self.where = "the header"  # what is being read, for messages

    def read(self) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
        if self.take(4) != b"GGUF":
            raise self.error("it does not begin with the magic bytes 'GGUF'; it is another format, or an unfinished download")
        version = self.scalar("I")
        if version not in (2, 3):
            hint = "it is big-endian" if version in (2 << 24, 3 << 24) else "convert it with a current tool"
            raise self.error(f"version {version} is not supported, only 2 and 3 are; {hint}")
        tensors, pairs = self.scalar("Q"), self.scalar("Q")
        self.room(tensors, 24, "tensors")  # a directory line: name length, axis count, type and offset are 8 + 4 + 4 + 8 bytes
        self.room(pairs, 12, "metadata pairs")
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            self.where = "the metadata"
            key = self.string()
            self.where = f"metadata {key!r}"
            if key in metadata:
                raise self.error("the key appears twice; the file is damaged")
            metadata[key] = self.value(self.scalar("I"))
        if metadata.get("split.count", 1) not in (0, 1):
            raise self.error(f"it is one part of {metadata['split.count']}; merge the parts into one file first")
        directory = [self.line() for _ in range(tensors)]
        return metadata, self.check(directory, metadata.get("general.alignment", 32))

    def line(self) -> tuple[str, tuple[int, ...], int, int]:
        self.where = "the tensor directory"
        name = self.string()
        self.where = f"tensor {name!r}"
        axes = self.scalar("I")
        if axes > _MAX_AXES:
            raise self.error(f"it has {axes} axes, at most {_MAX_AXES} are possible; the file is damaged")
        shape = tuple(self.scalar("Q") for _ in range(axes))[::-1]
        if 0 in shape:
            raise self.error(f"its shape {shape} holds nothing; the file is damaged")
        return name, shape, self.scalar("I"), self.scalar("Q")

    def check(self, directory: list[tuple[str, tuple[int, ...], int, int]], alignment: Any) -> dict[str, TensorEntry]:
        self.where = "metadata 'general.alignment'"
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self.error(f"it is {alignment!r}, not a power of two; the file is damaged")
        base = -(-self.at // alignment) * alignment
        entries: dict[str, TensorEntry] = {}
        for name, shape, kind, offset in directory:
            self.where = f"tensor {name!r}"
            codec = _CODECS.get(kind)
            if codec is None:
                known = ", ".join(c.name for c in _CODECS.values())
                raise self.error(f"its type is ggml type {kind}, which is not supported; convert the model to one of {known}")
            if name in entries:
                raise self.error("the name appears twice; the file is damaged")
            if codec.elements > 1 and (not shape or shape[-1] % codec.elements):
                raise self.error(f"shape {shape} is not made of {codec.name} blocks of {codec.elements}; the file is damaged")
            if offset % alignment:
                raise self.error(f"its offset {offset} is no multiple of the alignment {alignment}; the file is damaged")
            entry = entries[name] = TensorEntry(name, shape, codec, base + offset)
            if entry.start + entry.nbytes > len(self.buffer):
                raise self.error(
                    f"its data would end at byte {entry.start + entry.nbytes}, the file has {len(self.buffer)}; {_CUT}"
                )
        return entries

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            if depth == 4:  # arrays of arrays are allowed, a hostile file could nest them until the stack overflows
                raise self.error("its arrays are nested more than 4 deep; the file is damaged")
            inner, count = self.scalar("I"), self.scalar("Q")
            if inner in _SCALARS:
                form = _SCALARS[inner]
                self.room(count, struct.calcsize("<" + form), "array items")
                return list(struct.unpack(f"<{count}{form}", self.take(count * struct.calcsize("<" + form))))
            self.room(count, 8, "array items")
            return [self.value(inner, depth + 1) for _ in range(count)]
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        raise self.error(f"its type is {kind}, which no GGUF version knows; the file is damaged")

    def scalar(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def string(self) -> str:
        raw = self.take(self.scalar("Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"a text is not UTF-8 ({error}); the file is damaged") from None

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.buffer):
            raise self.error(f"it goes on to byte {end}, the file has {len(self.buffer)}; {_CUT}")
        raw = self.buffer[self.at : end]
        self.at = end
        return raw

    def room(self, count: int, least: int, what: str) -> None:
        """Refuses a count that could not fit, before a loop or an allocation believes it."""
        if count * least > len(self.buffer) - self.at:
            raise self.error(f"it announces {count} {what}, more than the file can hold; {_CUT}")

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {self.where}: {problem}")
