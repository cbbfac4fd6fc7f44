"""What kind of file some bytes are, by how they begin. Pure, and no decoder: what begins as nothing known may be anything."""

from __future__ import annotations

from omni_runtime.errors import RequestError

BEGINNINGS: tuple[tuple[int, bytes, str, tuple[str, ...]], ...] = (  # at, bytes, its name, the kinds of parts it can be
    (8, b"WAVE", "a WAV sound", ("audio",)),
    (8, b"WEBP", "a WebP picture", ("image", "video")),
    (8, b"AVI ", "an AVI clip", ("audio", "video")),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG picture", ("image", "video")),
    (0, b"\xff\xd8\xff", "a JPEG picture", ("image", "video")),  # a clip may be JPEG after JPEG
    (0, b"GIF8", "a GIF picture", ("image", "video")),
    (0, b"fLaC", "a FLAC sound", ("audio", "video")),  # with a cover it has a stream of pictures
    (0, b"ID3", "an MP3 sound", ("audio", "video")),
    (0, b"OggS", "an Ogg file", ("audio", "video")),
    (0, b"\x1aE\xdf\xa3", "a Matroska or WebM file", ("audio", "video")),
    (4, b"ftyp", "an MP4 file", ("image", "audio", "video")),  # HEIC and AVIF too
    (0, b"%PDF-", "a PDF document", ()),
    (0, b"PK\3\4", "a ZIP archive", ()),
    (0, b"\x1f\x8b\x08", "a gzip archive", ()),
)
WRITTEN = (
    b"P1",
    b"P2",
    b"P3",
    b"P4",
    b"P5",
    b"P6",
    b"P7",
    b"/* XPM",
    b"#define",
    b"%!PS",
    b"#EXT",
    b"#?RADIANCE",
)  # media that begin as text
LEAST_TEXT = 16  # bytes; less could be the beginning of anything
GIVE = {
    "image": "give a PNG, JPEG, GIF, WebP, BMP or TIFF file, or an array",
    "audio": "give a WAV, FLAC, MP3 or Ogg file, or samples with their rate",
    "video": "give an MP4, WebM, Matroska, AVI, GIF or WebP file, or frames with their fps",
}
FORMATS = {"wav": "a WAV sound", "mp3": "an MP3 sound", "flac": "a FLAC sound", "ogg": "an Ogg file", "opus": "an Ogg file"}
FORMATS |= {"webm": "a Matroska or WebM file", "mp4": "an MP4 file", "m4a": "an MP4 file", "aac": "", "pcm16": ""}


def look(data: bytes) -> tuple[str, tuple[str, ...] | None]:
    """What a file seems to be, and the kinds of parts that it can be; None where that is not known."""
    for at, begins, name, kinds in BEGINNINGS:
        if data[at : at + len(begins)] == begins and (at != 8 or data[:4] == b"RIFF"):
            return name, kinds
    head = data[:256]
    if len(head) >= LEAST_TEXT and not head.startswith(WRITTEN) and all(32 <= b < 127 or b in b"\t\r\n" for b in head):
        return f"text ({head[:24].decode()!r})", ()
    return f"of no known kind, it begins with {data[:8].hex(' ')}", None


def check_kind(kind: str, data: bytes) -> None:
    """Whether a file can be a part of a kind, as far as its first bytes tell.

    Raises:
        RequestError: it is plainly something else.
    """
    name, kinds = look(data)
    if kinds is not None and kind not in kinds:
        instead = f"send it as {' or '.join(map(repr, kinds))}, or " if kinds else ""
        raise RequestError(f"the file is {name}; {instead}{GIVE[kind]}")


def check_format(told: object, data: bytes) -> None:
    """Whether the format that a client names is that of its data.

    Raises:
        RequestError: it is none that is known, or the data is plainly of another.
    """
    if told is None:
        return
    if not isinstance(told, str) or told.lower() not in FORMATS:
        raise RequestError(f"format={told!r}: known are {', '.join(sorted(FORMATS))}")
    name, kinds = look(data)
    if told.lower() == "pcm16":
        raise RequestError("format='pcm16': samples alone do not say their rate; send a WAV file")
    if (kinds is not None and name != FORMATS[told.lower()]) or (told.lower() == "wav" and kinds is None):
        raise RequestError(f"format={told!r}, but the data is {name}; name its own format")
