"""What users write as messages becomes plain data, or is refused by turn, part, field, value and remedy."""

from __future__ import annotations

import base64
import io
import struct
import wave
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from omni_runtime.errors import RequestError
from omni_runtime.executors.codec import encode
from omni_runtime.media_files import read_source
from omni_runtime.messages import MAX_BYTES, MEDIA, heft, normal
from omni_runtime.replay.redact import hidden
from omni_runtime.sound_file import read_wav, read_wav_header
from omni_runtime.work import CallStep, Row, RunBatch

PICTURE = (np.arange(5 * 4 * 3) * 4).astype(np.uint8).reshape(5, 4, 3)
CLIP = np.stack([PICTURE, PICTURE[::-1], PICTURE // 2])
WAVE = np.sin(np.arange(4000) / 9).astype(np.float32)


def wav(samples: Any = WAVE, rate: int = 8000, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((np.asarray(samples) * 32767).astype("<i2").tobytes())
    return file.getvalue()


def png(width: int = 4, height: int = 5) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIB4s", 13, b"IHDR", width, height, 8, b"\2\0\0\0") + bytes(20)


def one(part: Any, media: Any = MEDIA) -> Any:
    found = normal([{"role": "user", "content": [part]}], media, read_source)
    assert isinstance(found, list)
    return found[0]["content"][0]


def test_texts_are_as_before() -> None:
    assert normal("hi") == "hi"
    turns = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    assert normal(tuple(turns)) == turns
    assert normal(turns)[0] is not turns[0]


def test_parts_of_text_are_joined_where_nothing_else_is_taken() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert normal([{"role": "user", "content": parts}]) == [{"role": "user", "content": "ab"}]
    kept = normal([{"role": "user", "content": parts}], MEDIA)
    assert kept == [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]


def test_spellings_of_a_picture(tmp_path: Path) -> None:
    data = png()
    path = tmp_path / "a b.png"
    path.write_bytes(data)
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    spelt: list[Any] = [
        {"type": "image", "image": str(path)},
        {"type": "image", "image": path},
        {"type": "image", "path": str(path)},
        {"type": "image", "image": bytearray(data)},
        {"type": "image", "url": url},
        {"type": "image", "image": path.as_uri()},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url, "detail": "auto"},
    ]
    for part in spelt:
        found = one(part)
        assert found.pop("name", "a b.png") == "a b.png"
        assert found == {"type": "image", "file": data}, part
    assert one(spelt[0])["name"] == "a b.png"


def test_open_files_are_read(tmp_path: Path) -> None:
    held = io.BytesIO()
    held.write(png())  # it stands at its end
    path = tmp_path / "a.png"
    path.write_bytes(png())
    with path.open("rb") as file:
        assert one({"type": "image", "image": held}) == one({"type": "image", "image": file}) == {"type": "image", "file": png()}
    with pytest.raises(RequestError, match=r"\.image: StringIO gives str, not bytes; open it in binary mode"):
        one({"type": "image", "image": io.StringIO("x")})
    held.close()
    with pytest.raises(RequestError, match=r"\.image: BytesIO cannot be read: .*closed.*; give its path or bytes"):
        one({"type": "image", "image": held})


def test_files_that_are_plainly_something_else(tmp_path: Path) -> None:
    path = tmp_path / "notes.png"
    path.write_text("These are my notes, and no picture.")
    with pytest.raises(RequestError, match=r"notes.png': the file is text \('These are my notes, and '\); give a PNG, JPEG"):
        one({"type": "image", "image": path})
    for kind, data, message in (
        ("image", wav(), "the file is a WAV sound; send it as 'audio', or give a PNG"),
        ("video", wav(), "the file is a WAV sound; send it as 'audio', or give an MP4"),
        ("audio", png(), "the file is a PNG picture; send it as 'image' or 'video', or give a WAV"),
        ("image", b"%PDF-1.7 ...", "the file is a PDF document; give a PNG"),
        ("video", b"PK\3\4" + bytes(30), "the file is a ZIP archive; give an MP4"),
    ):
        with pytest.raises(RequestError, match=message):
            one({"type": kind, kind: data})
    for data in (b"P3\n2 2\n255\n 0 0 0 255 255 255 0 0 0 1 1 1\n", b"BM" + bytes(60), b"\0\0\0\x1cftypavif", b"short"):
        assert one({"type": "image", "image": data})["file"] == data


def test_formats_that_contradict_their_data() -> None:
    for told, data, message in (
        ("mp3", wav(), r"input_audio\.format='mp3', but the data is a WAV sound; name its own format"),
        ("wav", b"\xff\xfb\x90" + bytes(90), r"format='wav', but the data is of no known kind, it begins with ff fb 90"),
        ("wave", wav(), r"format='wave': known are aac, flac, m4a, mp3"),
        ("pcm16", bytes(90), "samples alone do not say their rate; send a WAV file"),
    ):
        text = base64.b64encode(data).decode()
        with pytest.raises(RequestError, match=message):
            one({"type": "input_audio", "input_audio": {"data": text, "format": told}})
    text = base64.b64encode(b"\xff\xfb\x90" + bytes(90)).decode()
    assert one({"type": "input_audio", "input_audio": {"data": text, "format": "mp3"}})  # without a tag they begin anyhow


def test_roles_are_known() -> None:
    with pytest.raises(RequestError, match=r"\[0\]\.role: unknown role 'bot', known: assistant, system, tool, user"):
        normal([{"role": "bot", "content": "hi"}])


@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "sample 7 is no finite number"), (32767, "up to 32767, where 1 is full")]
)
def test_floats_of_a_wav_file_are_looked_at(value: float, message: str) -> None:
    samples = np.where(np.arange(900) == 7, value, 0).astype("<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, 8000, 0, 0, 32)
    data = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(samples)) + samples
    with pytest.raises(RequestError, match=message):
        one({"type": "audio", "audio": data})


def test_arrays_and_picture_objects() -> None:
    Image = pytest.importorskip("PIL.Image")
    grey = PICTURE[:, :, 0]
    for given in (PICTURE, PICTURE.tolist() and Image.fromarray(PICTURE), np.dstack([PICTURE, grey * 0 + 255])):
        found = one({"type": "image", "image": given})
        assert np.array_equal(found["pixels"], PICTURE)
    assert np.array_equal(one({"type": "image", "image": grey})["pixels"], np.dstack([grey] * 3))
    mine = PICTURE.copy()
    found = one({"type": "image", "image": mine})
    mine[:] = 0
    assert np.array_equal(found["pixels"], PICTURE)  # a copy: the caller may go on
    turned = Image.fromarray(PICTURE)
    exif = turned.getexif()
    exif[0x0112] = 6
    file = io.BytesIO()
    turned.save(file, "PNG", exif=exif)
    assert one({"type": "image", "image": Image.open(file)})["pixels"].shape == (4, 5, 3)


def test_spellings_of_a_sound() -> None:
    data = wav()
    text = base64.b64encode(data).decode()
    for part in (
        {"type": "audio", "audio": data},
        {"type": "input_audio", "input_audio": {"data": text, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64," + text}},
    ):
        assert one(part) == {"type": "audio", "file": data}
    for part in (
        {"type": "audio", "audio": WAVE, "rate": 8000},
        {"type": "audio", "audio": (WAVE, 8000)},
        {"type": "audio", "audio": WAVE.tolist(), "sampling_rate": 8000},
    ):
        found = one(part)
        assert found["rate"] == 8000
        np.testing.assert_allclose(found["samples"], WAVE)


@pytest.mark.parametrize("kind", ["i2", "i4", "u1", "f4", "f8"])
def test_numbers_of_a_sound_that_are_taken(kind: str) -> None:
    assert one({"type": "audio", "audio": np.ones(900, kind) * np.array(8 if kind[0] == "f" else 100, kind), **RATE})


def test_what_is_transparent_lies_on_white() -> None:
    four = np.zeros((1, 3, 4), np.uint8)
    four[0, :, 3] = 0, 128, 255
    assert one({"type": "image", "image": four})["pixels"][0, :, 0].tolist() == [255, 127, 0]


def test_spellings_of_a_clip() -> None:
    for given in (CLIP, list(CLIP)):
        found = one({"type": "video", "video": given, "fps": 12})
        assert np.array_equal(found.pop("frames"), CLIP)
        assert found == {"type": "video", "fps": 12.0, "look_fps": 2.0}
    found = one({"type": "video", "video": b"anything", "look_fps": 0.5, "audio": wav()})
    assert found == {"type": "video", "file": b"anything", "look_fps": 0.5, "sound": {"file": wav()}}
    found = one({"type": "video", "video": CLIP, "fps": 1, "audio": WAVE, "rate": 8000})
    assert found["sound"]["rate"] == 8000 and len(found["sound"]["samples"]) == 4000


def test_they_travel_and_are_weighed() -> None:
    turns = [{"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "audio", "audio": WAVE, "rate": 8000}]}]
    turns[0]["content"] += [{"type": "video", "video": CLIP, "fps": 2}, {"type": "image", "image": png()}]  # type: ignore[operator]
    plain = normal(turns, MEDIA, read_source)
    row = Row(1, "prepare", 1, 0, (), CallStep(0, {"messages": (plain,)}, {}, {}))
    assert msgspec.msgpack.decode(encode(RunBatch("cpu#1", 1, "e", "o", [row])), strict=False)
    assert heft(plain[0]["content"]) > 4000 // 64
    assert heft(hidden(plain[0]["content"])) == heft(plain[0]["content"])
    assert "ab" not in str(hidden(plain))


RATE, RAMP = {"rate": 8000}, np.zeros((2, 400))
WRONG: list[tuple[Any, str]] = [
    ("x", r"\[0\]\.content\[0\]: a part is a mapping with a 'type'"),
    ({"text": "x"}, "a part is a mapping with a 'type'"),
    ({"type": "smell", "smell": b"x"}, r"content\[0\]\.type: unknown type of part 'smell'"),
    ({"type": "imag", "imag": b"x"}, "did you mean 'image'"),
    ({"type": "text", "text": 3}, "a part of text is"),
    ({"type": "text", "text": "\ud800"}, "surrogate"),
    ({"type": "image"}, "one field 'image' is needed"),
    ({"type": "image", "image": png(), "url": "x"}, "one field 'image' is needed"),
    ({"type": "image", "image": None}, r"content\[0\]\.image: nothing is there"),
    ({"type": "image", "image": b""}, r"\.image: it is empty, 0 bytes; give a PNG"),
    ({"type": "image", "image": png(), "rate": 3}, "unknown field of a part of type 'image' 'rate'"),
    ({"type": "image", "image": "nowhere.png"}, "'nowhere.png' cannot be read: No such file"),
    ({"type": "image", "image": "."}, "is no file"),
    ({"type": "image", "image": "a\0b"}, "is no path"),
    (
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        r"image_url: 'https://x/y.png': this runtime fetches nothing",
    ),
    ({"type": "image", "image": "data:image/png;base64,@@"}, "data URL: no base64"),
    ({"type": "image", "image": "data:image/png,abc"}, "a data URL whose data is no base64; write data:image/png;base64,..."),
    ({"type": "image", "image": "data:nothing"}, "without a comma"),
    ({"type": "image_url", "image_url": {"uri": "x"}}, "a mapping has 'url', or 'data' and 'format'"),
    ({"type": "image", "image": png(0, 7)}, "a picture of 0 x 7 pixels"),
    ({"type": "image", "image": png(1 << 17, 1 << 17)}, "a picture of 131072 x 131072 pixels"),
    ({"type": "image", "image": png()[:20]}, "it is cut"),
    ({"type": "image", "image": PICTURE / 255}, "multiply by 255 and round"),
    ({"type": "image", "image": np.zeros((0, 4, 3), np.uint8)}, "it is empty"),
    ({"type": "image", "image": np.zeros((4, 4, 2), np.uint8)}, r"uint8 \[rows, columns, 3\] is needed"),
    ({"type": "image", "image": object()}, "object is no path, bytes or array"),
    ({"type": "image", "image": [[1], [2, 3]]}, "list is no path, bytes or array"),
    ({"type": "audio", "audio": WAVE}, "rate=None: samples need their rate"),
    ({"type": "audio", "audio": WAVE, "rate": 16000.0}, r"rate=16000\.0"),
    ({"type": "audio", "audio": WAVE, "rate": 3}, "rate=3"),
    ({"type": "audio", "audio": wav(), **RATE}, "a file knows its own"),
    ({"type": "audio", "audio": [], **RATE}, "it is empty"),
    ({"type": "audio", "audio": WAVE[:50], **RATE}, "50 samples at 8000 Hz are 0.00625 s"),
    ({"type": "audio", "audio": RAMP, **RATE}, r"transpose it to \[samples, channels\]"),
    ({"type": "audio", "audio": np.where(np.arange(4000) == 7, np.nan, WAVE), **RATE}, "sample 7 is no finite number"),
    ({"type": "audio", "audio": np.where(np.arange(4000) == 9, np.inf, WAVE)[:, None], **RATE}, "sample 9 is no finite number"),
    ({"type": "audio", "audio": [3, -900] * 500, **RATE}, r"content\[0\]\.audio: a list of whole numbers: .*; give int16, or fl"),
    ({"type": "audio", "audio": np.arange(900), **RATE}, "int64: their full range is not known; give int16, or floats within"),
    ({"type": "audio", "audio": np.arange(900, dtype="u8"), **RATE}, "uint64: their full range is not known; give int16"),
    ({"type": "audio", "audio": WAVE * 32767, **RATE}, "float32 up to 32767, where 1 is full; give int16, or floats"),
    ({"type": "audio", "audio": wav()[:-100]}, "a WAV file that is cut"),
    ({"type": "audio", "audio": wav()[:40]}, "ends before its data"),
    ({"type": "audio", "audio": wav([])}, "a WAV file without a sample"),
    ({"type": "video", "video": CLIP[:1], "fps": 2}, "a clip of 1 frame; at least 2 frames are needed, send it as a picture"),
    ({"type": "video", "video": CLIP}, "fps=None: frames a second"),
    ({"type": "video", "video": CLIP, "fps": 0}, "fps=0"),
    ({"type": "video", "video": CLIP, "fps": float("nan")}, "fps=nan"),
    ({"type": "video", "video": CLIP, "fps": 2, "look_fps": -1}, "look_fps=-1"),
    ({"type": "video", "video": b"mp4", "fps": 2}, "a file knows its own"),
    ({"type": "video", "video": PICTURE, "fps": 2}, r"uint8 \[frames, rows, columns, 3\] is needed"),
    ({"type": "video", "video": [PICTURE, PICTURE[:2]], "fps": 2}, "all need the same size"),
    ({"type": "video", "video": [PICTURE, png()], "fps": 2}, "frame 1: frames are arrays or picture objects"),
    ({"type": "video", "video": CLIP, "fps": 2, "audio": WAVE}, "its audio: rate=None"),
    ({"type": "video", "video": CLIP, "fps": 2, "rate": 8000}, "that of 'audio', which is not there"),
]


@pytest.mark.parametrize(("part", "message"), WRONG)
def test_what_is_wrong_is_named(part: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        one(part)
    assert str(caught.value).startswith("[0].content[0]")
    assert len(str(caught.value)) < 400


def test_what_stands_in_the_wrong_place() -> None:
    image = {"type": "image", "image": PICTURE}
    for media, message in (((), r"takes no image; it takes text only"), (("audio",), "takes no image; it takes text, audio")):
        with pytest.raises(RequestError, match=message):
            one(image, media)
    for role in ("system", "assistant"):
        with pytest.raises(RequestError, match="in a turn of"):
            normal([{"role": role, "content": [image]}], MEDIA)
    with pytest.raises(RequestError, match=r"\[0\].content: a text is needed, or a list of parts"):
        normal([{"role": "user", "content": []}], MEDIA)
    with pytest.raises(RequestError, match="cannot be read here"):
        normal([{"role": "user", "content": [{"type": "image", "image": "x.png"}]}], MEDIA)


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # no block of it is written
    with pytest.raises(RequestError, match=f"at most {MAX_BYTES} are taken"):
        one({"type": "video", "video": path})


@pytest.mark.parametrize("size", [None, 0, 0xFFFFFFFF])
@pytest.mark.parametrize(("kind", "bits", "code"), [("u1", 8, 1), ("<i2", 16, 1), ("<i4", 32, 1), ("<f4", 32, 3), ("<f8", 64, 3)])
def test_kinds_of_wav(kind: str, bits: int, code: int, size: int | None) -> None:
    samples = np.arange(12).astype(kind).reshape(6, 2)
    raw = samples.tobytes()
    form = struct.pack("<HHIIHH", code, 2, 44100, 0, 0, bits)
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    data = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", 16) + form + odd
    data += b"data" + struct.pack("<I", len(raw) if size is None else size) + raw
    found, rate = read_wav(data)
    assert rate == 44100 and found.dtype == np.dtype(kind)
    assert np.array_equal(found, samples)


def test_24_bits_are_the_upper_ones() -> None:
    form = struct.pack("<HHIIHHHHIH", 0xFFFE, 1, 48000, 0, 0, 24, 22, 24, 0, 1) + bytes(14)
    raw = b"\x01\x00\x00" + b"\xff\xff\xff" + b"\x00\x00\x40"
    data = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 9) + raw
    assert (read_wav(data)[0][:, 0] / 256).tolist() == [1, -1, 0x400000]
    assert read_wav_header(data).frames == 3
    with pytest.raises(RequestError, match="format 85 with 24 bits"):
        read_wav(data.replace(struct.pack("<IH", 0, 1) + bytes(14), struct.pack("<IH", 0, 85) + bytes(14)))
