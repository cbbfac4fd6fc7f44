"""WAV files as samples: PCM of 8, 16, 24 or 32 bits, floats of 32 or 64, any rate and number of channels. Pure.

A file is "RIFF", size, "WAVE", and then chunks: four letters, a size, so many bytes and one more if that is odd. "fmt " says what
the bytes of "data" are. A data chunk of unknown length (0xFFFFFFFF, or 0 at the end: both are written while streaming) goes on to
the end of the file.

Suffixes: N samples, C channels.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from omni_runtime.errors import RequestError

Array = np.ndarray[Any, Any]
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
UNKNOWN = (0, 0xFFFFFFFF)
KINDS = {(PCM, 8): "u1", (PCM, 16): "<i2", (PCM, 24): "", (PCM, 32): "<i4", (FLOAT, 32): "<f4", (FLOAT, 64): "<f8"}
LOWEST, HIGHEST = 1_000, 768_000  # Hz
CHANNELS = 64  # at most


class WavHeader(NamedTuple):
    """What a file says of its sound."""

    rate: int
    channels: int
    kind: tuple[int, int]  # code and bits
    start: int  # of the data
    frames: int


def is_wav(data: bytes) -> bool:
    """Whether a file begins as WAV files do."""
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def read_wav_header(data: bytes) -> WavHeader:
    """What a WAV file says of itself.

    Raises:
        RequestError: it is none, is cut, empty, or holds numbers of a kind that is not read here.
    """
    if not is_wav(data):
        raise RequestError(f"no WAV file: it begins with {data[:12]!r}")
    at, found = 12, None
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if name == b"fmt ":
            found = _format(data[at : at + size])
        if name == b"data":
            if found is None:
                raise RequestError("a WAV file whose data comes before its format; write it again")
            rate, channels, kind = found
            there = len(data) - at
            if size not in UNKNOWN and size > there:
                raise RequestError(f"a WAV file that is cut: {size} bytes of sound are promised, {there} are there")
            held = there if size == UNKNOWN[1] or (size == 0 and there) else size
            frames = held // (channels * kind[1] // 8)
            if not frames:
                raise RequestError("a WAV file without a sample; record it again")
            return WavHeader(rate, channels, kind, at, frames)
        at += size + size % 2
    raise RequestError("a WAV file that ends before its data; it is cut")


def _format(fields: bytes) -> tuple[int, int, tuple[int, int]]:
    if len(fields) < 16:
        raise RequestError("a WAV file whose format is cut")
    code, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", fields)
    if code == EXTENSIBLE and len(fields) >= 26:
        (code,) = struct.unpack_from("<H", fields, 24)
    if (code, bits) not in KINDS:
        known = "PCM of 8, 16, 24 or 32 bits and floats of 32 or 64 are"
        raise RequestError(f"a WAV file of format {code} with {bits} bits; {known} read: convert it")
    if not 1 <= channels <= CHANNELS or not LOWEST <= rate <= HIGHEST:
        allowed = f"1 to {CHANNELS} and {LOWEST} to {HIGHEST} Hz are allowed"
        raise RequestError(f"a WAV file of {channels} channels at {rate} Hz; {allowed}")
    return rate, channels, (code, bits)


def read_wav(data: bytes) -> tuple[Array, int]:
    """Samples [N, C], of the numbers that the file holds (24 bits as the upper ones of 32), and their rate.

    Raises:
        RequestError: as `read_wav_header`.
    """
    header = read_wav_header(data)
    count = header.frames * header.channels
    raw = np.frombuffer(data, np.uint8, count * header.kind[1] // 8, header.start)
    if kind := KINDS[header.kind]:
        flat = raw.view(kind)
    else:
        wide = np.zeros((count, 4), np.uint8)
        wide[:, 1:] = raw.reshape(count, 3)
        flat = wide.reshape(-1).view("<i4")
    return flat.reshape(header.frames, header.channels), header.rate
