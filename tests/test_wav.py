"""A WAV file is right at every moment, and a stream has one header."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from omni_runtime.errors import RequestError
from omni_runtime.wav import HEADER_BYTES, MAX_SAMPLES, WavWriter, pcm16, wav_header


def read(path: Path) -> tuple[int, np.ndarray]:
    """Rate and samples, after a strict look at every field of the file."""
    raw = path.read_bytes()
    riff, rest, form, fmt, length, kind, channels, rate, per_second, per_sample, bits, data, size = struct.unpack(
        "<4sI4s4sIHHIIHH4sI", raw[:HEADER_BYTES]
    )
    assert (riff, form, fmt, data) == (b"RIFF", b"WAVE", b"fmt ", b"data")
    assert (length, kind, channels, bits, per_sample, per_second) == (16, 1, 1, 16, 2, 2 * rate)
    assert rest == len(raw) - 8
    assert size == len(raw) - HEADER_BYTES
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (rate, 1, 2)
        samples = np.frombuffer(file.readframes(file.getnframes() + 1), "<i2")
    assert len(samples) == size // 2
    return rate, samples


def test_the_file_is_whole_after_every_call(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    parts = [np.linspace(-1, 1, n, dtype=np.float32) for n in (1, 0, 7, 300)]
    with WavWriter(path, 24_000) as wav:
        assert read(path)[1].size == 0
        for i, part in enumerate(parts):
            wav.write(part)
            rate, samples = read(path)
            assert rate == 24_000
            assert samples.tobytes() == b"".join(pcm16(part) for part in parts[: i + 1])
    assert wav.samples == 308
    assert path.read_bytes().count(b"RIFF") == 1


def test_zero_samples_are_a_file(tmp_path: Path) -> None:
    WavWriter(tmp_path / "a.wav", 16_000).close()
    assert read(tmp_path / "a.wav") == (16_000, pytest.approx(np.zeros(0)))


def test_loud_samples_are_clipped() -> None:
    loud = pcm16([0.0, 1.0, -1.0, 1.5, -9.0, np.inf, -np.inf, 0.5])
    assert np.frombuffer(loud, "<i2").tolist() == [0, 32767, -32767, 32767, -32767, 32767, -32767, 16384]


def test_what_is_wrong_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with WavWriter(path, 24_000) as wav:
        wav.write([0.25])
        before = path.read_bytes()
        with pytest.raises(RequestError, match=r"samples\[1\] is not a number"):
            wav.write([0.0, np.nan])
        with pytest.raises(RequestError, match="shape"):
            wav.write(np.zeros((2, 3)))
        assert path.read_bytes() == before
    with pytest.raises(ValueError, match="closed"):
        wav.write([0.0])
    with pytest.raises(RequestError, match="sample_rate=0"):
        WavWriter(tmp_path / "b.wav", 0)
    assert not (tmp_path / "b.wav").exists()


def test_a_stream_says_that_its_length_is_unknown(tmp_path: Path) -> None:
    header = wav_header(24_000, streaming=True)
    assert len(header) == HEADER_BYTES
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"
    exact = wav_header(24_000, 10)
    assert header[:4] + header[8:40] == exact[:4] + exact[8:40]


def test_a_size_beyond_32_bits_is_refused() -> None:
    assert struct.unpack("<I", wav_header(24_000, MAX_SAMPLES)[4:8])[0] < 0xFFFFFFFF
    with pytest.raises(RequestError, match="at most"):
        wav_header(24_000, MAX_SAMPLES + 1)
