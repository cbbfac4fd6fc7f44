"""Messages of a conversation as users write them, made plain data before anything of a request reaches the core.

`designs/0022-messages.md` tells what may be written and what comes of it. Nothing is decoded here.
"""

from __future__ import annotations

import os
import struct
from base64 import b64decode
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

import numpy as np

from omni_runtime.errors import RequestError, unknown
from omni_runtime.file_kinds import GIVE, check_format, check_kind
from omni_runtime.sound_file import HIGHEST, LOWEST, is_wav, read_wav, read_wav_header

MAX_TEXT = 1 << 19  # characters: turning more into tokens, only to find that they do not fit, takes seconds of everybody's time
MAX_BYTES = 1 << 28  # of one picture, clip or sound
MAX_PIXELS = 1 << 26  # of one picture, 8192 x 8192; pillow warns of more than 89 million
MAX_SECONDS = 3600  # of one sound
LEAST_SECONDS = 0.01  # one frame of the encoders
LOUDEST = 8.0  # of floats, where 1 is full: a mix may be a little over, numbers of 16 bits are thousands
LOOK_FPS = 2.0  # as the makers' tools

ROLES = ("system", "user", "assistant", "tool")  # a free role could smuggle text into the part that belongs to the template
MEDIA = ("image", "audio", "video")
ALIASES = {"input_text": "text", "input_image": "image", "input_audio": "audio"} | {f"{kind}_url": kind for kind in MEDIA}
OPTIONS: dict[str, tuple[str, ...]] = {"text": (), "image": (), "audio": ("rate",), "video": ("fps", "look_fps", "audio", "rate")}

Read = Callable[[Any], Any]
"""Bytes of a file by its path, and uint8 [H, W, 3] of a picture object. Raises OSError where that fails."""

Array = np.ndarray[Any, Any]
Part = dict[str, Any]


def refuse_files(source: Any) -> Any:
    """A `Read` for where no files are read."""
    raise RequestError(f"{str(source)[:80]!r} cannot be read here; give bytes or an array")


def normal(messages: Any, media: Collection[str] = (), read: Read = refuse_files) -> str | list[dict[str, Any]]:
    """A conversation as plain data that shares nothing with what was given: a text, or turns of a text or a list of parts each.

    Args:
        messages: as a user writes them.
        media: kinds of parts beside text that the reader takes; without any, parts of text are joined.
        read: opens files.

    Raises:
        RequestError: naming turn, part and field.
    """
    if isinstance(messages, str):
        check_text(messages)
        return messages
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError(f"a text or a list of turns is needed, not {str(messages)[:80]!r}")
    return [_turn(f"[{at}]", turn, media, read) for at, turn in enumerate(messages)]


def check_text(text: str) -> None:
    """Whether a text can be read at all.

    Raises:
        RequestError: it is longer than any model here could read, or it is no Unicode text.
    """
    if len(text) > MAX_TEXT:
        raise RequestError(f"a text of {len(text)} characters; at most {MAX_TEXT} are taken, send it in parts")
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise RequestError(f"character {e.start} is half of a surrogate pair ({text[e.start]!r}); send valid Unicode") from None


def heft(content: Any) -> int:
    """What a turn's content is to work through, in characters: a text's own, and for media one for 64 bytes or numbers."""
    if isinstance(content, str):
        return len(content)
    if isinstance(content, bytes):
        return len(content) // 64
    if isinstance(content, np.ndarray):
        return content.size // 64
    if isinstance(content, Mapping):
        return sum(map(heft, content.values()))
    return sum(map(heft, content)) if isinstance(content, list | tuple) else 0


def decoder(kind: str, file: bytes) -> str:
    """The module that reads such a file of a part: "PIL", "av", or none where it is read without one."""
    if kind == "image":
        return "PIL"
    if kind == "audio":
        return "" if is_wav(file) else "av"
    animated = file[:4] == b"GIF8" or file[:4] == b"\x89PNG" or (file[:4] == b"RIFF" and file[8:12] == b"WEBP")
    return "PIL" if animated else "av"


def _turn(where: str, turn: Any, media: Collection[str], read: Read) -> dict[str, Any]:
    if not isinstance(turn, Mapping) or set(turn) != {"role", "content"}:
        raise RequestError(f"{where}: a turn is a mapping of exactly 'role' and 'content', not {_shown(turn)}")
    role, content = turn["role"], turn["content"]
    if not isinstance(role, str):
        raise RequestError(f"{where}.role: a text is needed, not {_shown(role)}")
    if role not in ROLES:
        raise RequestError(f"{where}.role: {unknown('role', role[:80], ROLES)}")
    if isinstance(content, str):
        _check_text(f"{where}.content", content)
        return {"role": role, "content": content}
    if not isinstance(content, list | tuple) or not content:
        raise RequestError(f"{where}.content: a text is needed, or a list of parts, not {_shown(content)}")
    parts = [_part(f"{where}.content[{i}]", part, role, media, read) for i, part in enumerate(content)]
    if not media:
        return {"role": role, "content": "".join(part["text"] for part in parts)}
    return {"role": role, "content": parts}


def _part(where: str, part: Any, role: str, media: Collection[str], read: Read) -> Part:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise RequestError(
            f"{where}: a part is a mapping with a 'type', as in {{'type': 'text', 'text': ...}}, not {_shown(part)}"
        )
    spelt = part["type"]
    kind = ALIASES.get(spelt, spelt)
    if kind not in OPTIONS:
        raise RequestError(f"{where}.type: {unknown('type of part', spelt, {*OPTIONS, *ALIASES})}")
    if kind == "text":
        return _text(where, part)
    if kind not in media:
        takes = f"text, {', '.join(media)}" if media else "text only"
        raise RequestError(f"{where}: the model of this program takes no {kind}; it takes {takes}")
    if role != "user":
        raise RequestError(f"{where}: {kind} in a turn of {role!r}; pictures, clips and sounds stand in turns of 'user'")
    key, source, options = _unwrapped(where, part, spelt, kind)
    at = f"{where}.{key}"
    for name in options:
        if name not in OPTIONS[kind]:
            raise RequestError(f"{where}: {unknown(f'field of a part of type {spelt!r}', name, {'type', key, *OPTIONS[kind]})}")
    try:
        if kind == "image":
            found: Part = _named(_picture(_opened(source, read, kind)), source)
        elif kind == "audio":
            found = _sound(source, options.get("rate"), read)
        else:
            found = _clip(source, options, read)
    except RequestError as error:
        raise RequestError(f"{at}: {error}") from None
    return {"type": kind, **found}


def _named(part: Part, source: Any) -> Part:
    """With the name of the file that it was read from."""
    return part | ({"name": name} if "file" in part and (name := _name(source)) else {})


def _name(source: Any) -> str:
    if not isinstance(source, str | os.PathLike) or str(source)[:5].lower() == "data:":
        return ""
    text = os.path.basename(os.fspath(source))
    return (unquote(text) if str(source)[:7].lower() == "file://" else text)[-80:].encode(errors="replace").decode()


def _check_text(where: str, text: str) -> None:
    try:
        check_text(text)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from None


def _text(where: str, part: Mapping[str, Any]) -> Part:
    if set(part) != {"type", "text"} or not isinstance(part["text"], str):
        raise RequestError(f"{where}: a part of text is {{'type': 'text', 'text': '...'}}, not {_shown(part)}")
    _check_text(f"{where}.text", part["text"])
    return {"type": "text", "text": part["text"]}


def _unwrapped(where: str, part: Mapping[str, Any], spelt: str, kind: str) -> tuple[str, Any, dict[str, Any]]:
    """The field that a part's medium is in, what it holds, and the other fields."""
    options = {("rate" if name == "sampling_rate" else name): value for name, value in part.items() if name != "type"}
    options.pop("detail", None)  # of OpenAI's pictures: how large they are looked at follows from the model
    options.pop("format", None)
    names = [name for name in dict.fromkeys((spelt, kind, f"{kind}_url", "url", "path")) if name in options]
    if len(names) != 1:
        raise RequestError(
            f"{where}: one field {kind!r} is needed, with a path, a data URL, bytes or an array; got {sorted(part)}"
        )
    source = options.pop(names[0])
    if isinstance(source, Mapping):
        held = [name for name in ("url", "data") if name in source]
        extra = set(source) - {"url", "data", "format", "detail"}
        if len(held) != 1 or extra:
            raise RequestError(f"{where}.{names[0]}: a mapping has 'url', or 'data' and 'format', not {sorted(map(str, source))}")
        told, source = source.get("format"), source[held[0]]
        if held == ["data"] and isinstance(source, str):
            source = _base64(f"{where}.{names[0]}.data", source)
        if isinstance(source, bytes):
            try:
                check_format(told, source)
            except RequestError as error:
                raise RequestError(f"{where}.{names[0]}.{error}") from None
    if source is None:
        raise RequestError(f"{where}.{names[0]}: nothing is there; give a path, a data URL, bytes or an array")
    return names[0], source, options


def _opened(source: Any, read: Read, kind: str) -> bytes | Array:
    """Bytes of a file that may be of such a kind, or numbers."""
    if isinstance(source, bytes | bytearray | memoryview):
        found: Any = bytes(source)
    elif isinstance(source, str | os.PathLike):
        found = _file(os.fspath(source), read)
    elif callable(getattr(source, "convert", None)):  # a picture object
        found = _asked(source, read)
    elif callable(getattr(source, "getvalue", getattr(source, "read", None))):  # a file that is open
        found = _emptied(source)
    else:
        try:
            found = np.array(source.detach().cpu() if hasattr(source, "detach") else source)
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise RequestError(f"{type(source).__name__} is no path, bytes or array of numbers: {error}") from None
        if found.dtype.kind not in "iufb":
            raise RequestError(f"{type(source).__name__} is no path, bytes or array of numbers: {_shown(source)}")
    size = found.nbytes if isinstance(found, np.ndarray) else len(found)
    if not size:
        raise RequestError(f"it is empty, 0 bytes; {GIVE[kind]}")
    if size > MAX_BYTES:
        raise RequestError(f"it is {size} bytes, at most {MAX_BYTES} are taken; make it smaller or shorter")
    if isinstance(found, bytes):
        try:
            check_kind(kind, found)
        except RequestError as error:
            name = _name(source)
            raise RequestError(f"{name!r}: {error}" if name else str(error)) from None
    return found  # type: ignore[no-any-return]


def _emptied(source: Any) -> bytes:
    """What an open file holds; of one in memory all, wherever it stands."""
    try:
        found = source.getvalue() if hasattr(source, "getvalue") else source.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise RequestError(f"{type(source).__name__} cannot be read: {error}; give its path or bytes") from None
    if not isinstance(found, bytes):
        raise RequestError(f"{type(source).__name__} gives {type(found).__name__}, not bytes; open it in binary mode")
    return found


def _file(text: Any, read: Read) -> Any:
    if not isinstance(text, str) or "\0" in text:
        raise RequestError(f"{_shown(text)} is no path")
    start = text[:8].lower()
    if start.startswith(("http:", "https:", "ftp:", "s3:", "gs:")):
        raise RequestError(f"{text[:80]!r}: this runtime fetches nothing; download it, and give its path or bytes")
    if start.startswith("data:"):
        head, comma, data = text.partition(",")
        if not comma:
            raise RequestError(f"a data URL without a comma: {text[:60]!r}")
        if head.lower().endswith(";base64"):
            return _base64("data URL", data)
        if "%" not in data:  # every file of a medium has a byte that must be written as %xx
            raise RequestError(f"{text[:40]!r}: a data URL whose data is no base64; write {head[:40]};base64,...")
        return unquote_to_bytes(data)
    if start.startswith("file://"):
        text = unquote_to_bytes(text.split("://", 1)[1]).decode(errors="surrogateescape")
    return _asked(text, read)


def _asked(source: Any, read: Read) -> Any:
    try:
        return read(source)
    except (OSError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        told = error.strerror if isinstance(error, OSError) and error.strerror else error
        name = repr(source[:80]) if isinstance(source, str) else type(source).__name__
        raise RequestError(f"{name} cannot be read: {told}; give a path that exists, a data URL, bytes or an array") from None


def _base64(where: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise RequestError(f"{where}: no base64: {error}; encode the bytes of the file, as base64.b64encode does") from None


def _picture(found: bytes | Array) -> Part:
    if isinstance(found, bytes):
        if found[:8] == b"\x89PNG\r\n\x1a\n":
            if len(found) < 33:
                raise RequestError(f"a PNG file of {len(found)} bytes; it is cut")
            _check_sides(*struct.unpack_from(">II", found, 16))
        return {"file": found}
    return {"pixels": _pixels(found, 3)}


def _check_sides(width: int, height: int) -> None:
    if not 0 < width * height <= MAX_PIXELS:
        raise RequestError(f"a picture of {width} x {height} pixels; 1 to {MAX_PIXELS} are taken")


def _pixels(array: Array, axes: int) -> Array:
    needed = "[rows, columns, 3]" if axes == 3 else "[frames, rows, columns, 3]"
    if array.ndim == 2 and axes == 3:  # grey; three axes of a clip could be one picture
        array = array[..., None]
    if array.dtype != np.uint8 or array.ndim != axes or array.shape[-1] not in (1, 3, 4) or 0 in array.shape:
        remedy = "; multiply by 255 and round" if array.dtype.kind == "f" else ""
        raise RequestError(f"{array.dtype} of shape {array.shape}; uint8 {needed} is needed{remedy}")
    _check_sides(array.shape[-2], array.shape[-3])
    if array.shape[-1] == 4:
        return on_white(array)
    return np.ascontiguousarray(np.repeat(array, 3, -1) if array.shape[-1] == 1 else array)


def on_white(picture: Array) -> Array:
    """uint8 [..., 3] of uint8 [..., 4]: what shines through is white, as a page."""
    colour, alpha = picture[..., :3], picture[..., 3:].astype(np.uint16)
    laid: Array = ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return laid


def _sound(source: Any, rate: Any, read: Read) -> Part:
    if isinstance(source, tuple) and len(source) == 2 and type(source[1]) is int and rate is None:
        source, rate = source
    found = _opened(source, read, "audio")
    if isinstance(found, bytes):
        if rate is not None:
            raise RequestError(f"rate={rate!r}: a file knows its own; leave it out")
        if is_wav(found):
            header = read_wav_header(found)
            _check_seconds(header.frames, header.rate)
            _check_loudness(read_wav(found)[0])
        return _named({"file": found}, source)
    if type(rate) is not int or not LOWEST <= rate <= HIGHEST:
        raise RequestError(f"rate={rate!r}: samples need their rate, a whole number of Hz from {LOWEST} to {HIGHEST}")
    if found.ndim not in (1, 2) or 0 in found.shape or found.dtype.kind == "b":
        raise RequestError(f"{found.dtype} of shape {found.shape}; [samples] or [samples, channels] of numbers is needed")
    if found.ndim == 2 and found.shape[1] > found.shape[0]:
        raise RequestError(f"shape {found.shape}: more channels than samples; transpose it to [samples, channels]")
    if found.dtype.kind in "iu" and found.dtype.itemsize == 8:  # what numpy makes of a list of ints; nobody records 64 bits
        what = f"a {type(source).__name__} of whole numbers" if isinstance(source, list | tuple) else f"{found.dtype}"
        raise RequestError(f"{what}: their full range is not known; give int16, or floats within -1..1")
    _check_loudness(found)
    _check_seconds(len(found), rate)
    return {"samples": found.astype(np.float32) if found.dtype == np.float16 else found, "rate": rate}


def _check_loudness(samples: Array) -> None:
    if samples.dtype.kind != "f":
        return
    if not np.isfinite(samples).all():
        first = int(np.flatnonzero(~np.isfinite(samples).reshape(len(samples), -1).all(1))[0])
        raise RequestError(f"sample {first} is no finite number")
    if (peak := float(np.abs(samples).max())) > LOUDEST:
        raise RequestError(f"{samples.dtype} up to {peak:g}, where 1 is full; give int16, or floats within -1..1")


def _check_seconds(samples: int, rate: int) -> None:
    seconds = samples / rate
    if not LEAST_SECONDS <= seconds <= MAX_SECONDS:
        allowed = f"{LEAST_SECONDS:g} to {MAX_SECONDS} s are taken"
        raise RequestError(f"{samples} samples at {rate} Hz are {seconds:.3g} s; {allowed}")


def _clip(source: Any, options: Mapping[str, Any], read: Read) -> Part:
    listed = isinstance(source, list | tuple) and len(source) > 0
    if listed:
        frames = [_pixels_of(f"frame {i}", frame, read) for i, frame in enumerate(source)]
        if len({frame.shape for frame in frames}) > 1:
            raise RequestError(f"frames of {sorted({frame.shape[:2] for frame in frames})} pixels; all need the same size")
        source = np.stack(frames)
    found = _opened(source, read, "video")
    fps = options.get("fps")
    if isinstance(found, bytes):
        if fps is not None:
            raise RequestError(f"fps={fps!r}: a file knows its own; 'look_fps' says how many frames a second are looked at")
        part: Part = _named({"file": found}, source)
    else:
        if found.ndim == 4 and len(found) == 1:
            raise RequestError("a clip of 1 frame; at least 2 frames are needed, send it as a picture")
        part = {"frames": _pixels(found, 4), "fps": _frequency("fps", fps)}
    part["look_fps"] = _frequency("look_fps", options.get("look_fps", LOOK_FPS))
    if options.get("audio") is not None:
        try:
            part["sound"] = _sound(options["audio"], options.get("rate"), read)
        except RequestError as error:
            raise RequestError(f"its audio: {error}") from None
    elif options.get("rate") is not None:
        raise RequestError(f"rate={options['rate']!r}: it is that of 'audio', which is not there")
    return part


def _pixels_of(where: str, frame: Any, read: Read) -> Array:
    try:
        found = _opened(frame, read, "image")
        if isinstance(found, bytes):
            raise RequestError("frames are arrays or picture objects; open the files first")
        return _pixels(found, 3)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from None


def _frequency(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0.01 <= value <= 1000:
        raise RequestError(f"{name}={value!r}: frames a second are needed, 0.01 to 1000")
    return float(value)


def _shown(value: Any) -> str:
    """The beginning of a value, without what it would cost to print all of a large one."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_shown(item)}" for key, item in list(value.items())[:4]) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}" if len(value) > 8 else repr(value)[:80]
    return repr(value)[:80]
