"""WAV: mono 16-bit PCM, as a file that can be read at every moment, or as a header for a stream of unknown length.

Layout (RIFF, little-endian, 44 bytes before the samples): "RIFF", size of the rest, "WAVE"; "fmt ", 16, format 1, channels,
rate, bytes a second, bytes a sample, bits; "data", bytes of samples. A stream writes 0xFFFFFFFF for both sizes, which players
take for "until the end".
"""

from __future__ import annotations

import os
import struct
from io import FileIO
from types import TracebackType

import numpy as np
import numpy.typing as npt

from omni_runtime.errors import RequestError

HEADER_BYTES = 44
UNKNOWN = 0xFFFFFFFF
MAX_SAMPLES = (UNKNOWN - 1 - (HEADER_BYTES - 8)) // 2  # sizes are 32 bits: 24 hours at 24 kHz


def wav_header(sample_rate: int, samples: int = 0, *, streaming: bool = False) -> bytes:
    """The 44 bytes before the samples.

    Args:
        sample_rate: samples a second.
        samples: how many follow; not looked at when streaming.
        streaming: nobody knows how many follow.

    Raises:
        RequestError: a rate or a count that the format cannot hold.
    """
    if not 0 < sample_rate <= UNKNOWN // 2:
        raise RequestError(f"sample_rate={sample_rate}: a WAV file holds 1 to {UNKNOWN // 2} samples a second")
    if not 0 <= samples <= MAX_SAMPLES:
        raise RequestError(f"samples={samples}: a WAV file holds at most {MAX_SAMPLES}; start another file")
    data = UNKNOWN if streaming else 2 * samples
    rest = UNKNOWN if streaming else HEADER_BYTES - 8 + data
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", rest, b"WAVE", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16, b"data", data
    )


def pcm16(samples: npt.ArrayLike) -> bytes:
    """Samples in -1..1, float [n], as 16-bit little-endian PCM: x * 32767, rounded to the nearest; louder ones are clipped.

    Raises:
        RequestError: not one-dimensional, or a sample that is not a number.
    """
    sound = np.asarray(samples, dtype=np.float32)
    if sound.ndim != 1:
        raise RequestError(f"samples: shape {sound.shape}, a mono file takes [n]")
    if np.isnan(sound).any():
        raise RequestError(f"samples[{int(np.isnan(sound).argmax())}] is not a number")
    return bytes(np.rint(np.clip(sound, -1.0, 1.0) * 32767.0).astype("<i2").data)


class WavWriter:
    """A mono 16-bit WAV file, complete after every call: what was written can be played while more is on its way.

    Samples go out before the sizes that count them, so a crash in between leaves the shorter, valid file.

        with WavWriter("answer.wav", 24_000) as wav:
            wav.write(samples)
    """

    def __init__(self, path: str | os.PathLike[str], sample_rate: int) -> None:
        header = wav_header(sample_rate)  # a wrong rate raises before a file is made
        self.sample_rate = sample_rate
        self.samples = 0
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 (closed by close())
        self._file.write(header)

    def write(self, samples: npt.ArrayLike) -> None:
        """Appends float samples [n]; see `pcm16` for their range.

        Raises:
            RequestError: wrong samples, or more than the format can count. The file stays as it was.
            ValueError: the file is closed.
        """
        pcm = pcm16(samples)
        header = wav_header(self.sample_rate, self.samples + len(pcm) // 2)
        self._file.seek(HEADER_BYTES + 2 * self.samples)
        _write_all(self._file, pcm)
        self._file.seek(0)
        self._file.write(header)
        self.samples += len(pcm) // 2

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _write_all(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]  # an unbuffered file may take less than it is given
