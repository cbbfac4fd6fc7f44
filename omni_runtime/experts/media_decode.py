"""Parts of messages as numbers: pictures, clips and sounds out of files, by whoever can read them.

WAV files are read by ourselves; pictures and animations by pillow, everything else by PyAV, and both are imported only then.

Suffixes: N samples, C channels, S frames, H rows, W columns.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from omni_runtime.errors import MissingExtra, RequestError
from omni_runtime.file_kinds import GIVE, look
from omni_runtime.messages import MAX_PIXELS, MAX_SECONDS, decoder, on_white
from omni_runtime.sound_file import read_wav

Array = np.ndarray[Any, Any]
Choose = Callable[[int, float], list[int]]
"""Which frames of a clip are looked at, of how many, and how many of them are a second. Rising."""

MOST_BYTES = 1 << 30  # of the frames of a clip that are looked at
MOST_FRAMES = 1 << 18  # of a file: 2.4 hours at 30 a second
WHOLE = 0.9  # of the length that a file promises must be there
HOLD = 0.1  # seconds of an animation's frame that does not say how long it lasts, as browsers do


class Sound(NamedTuple):
    """Samples [N] or [N, C] as they were recorded."""

    samples: Array
    rate: int


class Clip(NamedTuple):
    """Frames that are looked at, and what of their time is known."""

    frames_SHWC: Array
    seconds: float  # from one of them to the next
    sound: Sound | None


def picture(part: Mapping[str, Any]) -> Array:
    """uint8 [H, W, 3].

    Raises:
        RequestError: a file that cannot be decoded.
        MissingExtra: pillow is not installed.
    """
    if "pixels" in part:
        return np.asarray(part["pixels"])
    return _still(part)


def sound(part: Mapping[str, Any]) -> Sound:
    """Of a part, or of the `sound` of one.

    Raises:
        RequestError: a file that cannot be decoded, or holds no sound.
        MissingExtra: PyAV is not installed.
    """
    if "samples" in part:
        return Sound(np.asarray(part["samples"]), part["rate"])
    if not decoder("audio", part["file"]):
        return Sound(*read_wav(part["file"]))
    with _opened(part, "audio") as box:
        found = _heard(box)
    if found is None:
        raise RequestError("audio: the file holds no sound")
    return found


def clip(part: Mapping[str, Any], choose: Choose, heard: bool) -> Clip:
    """The frames of a clip that are looked at, and its sound where that is wanted and there is one.

    Raises:
        RequestError: a file that cannot be decoded or holds no pictures, or too much of them to be looked at.
        MissingExtra: the package that reads it is not installed.
    """
    own = sound(part["sound"]) if heard and "sound" in part else None
    if "frames" in part:
        frames, fps = np.asarray(part["frames"]), float(part["fps"])
        chosen = choose(len(frames), fps)
        return Clip(frames[chosen], _between(len(frames), fps, chosen), own)
    if decoder("video", part["file"]) == "PIL":
        return _animation(part, choose)._replace(sound=own)
    with _opened(part, "video") as box:
        total, fps = _length(box)
    chosen = choose(total, fps)
    with _opened(part, "video") as box:
        frames = _frames(box, chosen)
    if heard and own is None:
        with _opened(part, "video") as box:
            own = _heard(box)
    return Clip(frames, _between(total, fps, chosen), own)


def _between(total: int, fps: float, chosen: list[int]) -> float:
    return total / len(chosen) / fps


def pillow() -> Any:
    """Pillow's `Image`.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra(f"pictures need pillow: pip install 'omni_runtime[media]' ({error})") from None
    return Image


@contextmanager
def _corrupt(what: str, part: Mapping[str, Any]) -> Any:
    """Whatever a decoder raises is about its file."""
    try:
        yield
    except (RequestError, MissingExtra):
        raise
    except Exception as error:
        name = f" {part['name']!r}" if "name" in part else ""
        seems = f"{len(part['file'])} bytes, {look(part['file'])[0]}"
        hint = "" if "<" in str(error) else f" ({type(error).__name__}: {str(error)[:100]})"  # of pillow's and PyAV's own names
        raise RequestError(
            f"{what}: the file{name} cannot be decoded: {seems}{hint}; it may be cut or broken: {GIVE[what]}"
        ) from None


def _still(part: Mapping[str, Any]) -> Array:
    image_module = pillow()
    from PIL import ImageOps

    with _corrupt("image", part), image_module.open(io.BytesIO(part["file"])) as image:
        _check_size(image.size)
        return rgb(ImageOps.exif_transpose(image))


def rgb(image: Any) -> Array:
    """uint8 [H, W, 3] of a pillow picture of any mode: 16 bits are scaled to 8, what is transparent is laid on white.

    Raises:
        RequestError: its numbers have no range that is known.
    """
    if image.mode.startswith("I"):  # pillow would clip at 255: white
        wide = np.asarray(image).astype(np.int64)
        if wide.min() < 0 or wide.max() > 0xFFFF:
            raise RequestError(f"whole numbers from {wide.min()} to {wide.max()} as brightness; scale them to 0..255")
        deep = image.mode != "I" or image.format == "PNG" or wide.max() > 255
        grey = ((wide * 255 + 0x7FFF) // 0xFFFF if deep else wide).astype(np.uint8)
        return np.repeat(grey[..., None], 3, -1)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        return on_white(np.asarray(image.convert("RGBA")))
    return np.asarray(image.convert("RGB"))


def _check_size(size: tuple[int, int]) -> None:
    if not 0 < size[0] * size[1] <= MAX_PIXELS:
        raise RequestError(f"a picture of {size[0]} x {size[1]} pixels; 1 to {MAX_PIXELS} are taken")


def _check_room(frames: int, width: int, height: int) -> None:
    if (size := frames * width * height * 3) > MOST_BYTES:
        remedy = f"at most {MOST_BYTES} are; give a lower 'look_fps', or a smaller or shorter clip"
        raise RequestError(f"video: {frames} frames of {width} x {height} pixels are {size} bytes to be looked at, {remedy}")


def _animation(part: Mapping[str, Any], choose: Choose) -> Clip:
    image_module = pillow()
    with _corrupt("video", part), image_module.open(io.BytesIO(part["file"])) as image:
        _check_size(image.size)
        total, seconds = getattr(image, "n_frames", 1), 0.0
        for at in range(min(total, MOST_FRAMES)):
            image.seek(at)
            image.load()  # WebP says a frame's duration only then
            seconds += (image.info.get("duration") or 1000 * HOLD) / 1000
        chosen = choose(total, total / seconds)
        _check_room(len(chosen), *image.size)
        frames = []
        for at in chosen:
            image.seek(at)
            frames.append(rgb(image))
    return Clip(np.stack(frames), seconds / len(chosen), None)


# -- PyAV -------------------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(part: Mapping[str, Any], what: str) -> Any:
    try:
        import av
    except ImportError as error:
        raise MissingExtra(f"this {what} file needs PyAV: pip install 'omni_runtime[media]' ({error})") from None
    with _corrupt(what, part), av.open(io.BytesIO(part["file"])) as box:
        yield box


def _length(box: Any) -> tuple[int, float]:
    """How many frames a file has, counted without decoding them, and how many are a second."""
    if not box.streams.video:
        raise RequestError("video: the file holds no pictures; send it as audio")
    stream = box.streams.video[0]
    _check_size((stream.codec_context.width, stream.codec_context.height))
    fps = float(stream.average_rate or stream.guessed_rate or 0)
    total, last = 0, 0.0
    for packet in box.demux():  # of all streams, since the sound may be longer than the pictures
        if packet.size and packet.pts is not None and packet.time_base is not None:
            last = max(last, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        total += bool(packet.size) and packet.stream.index == stream.index
    _check_whole(last - (box.start_time or 0) / 1e6, _promised(box, stream, fps))
    if not 0 < total <= MOST_FRAMES or not 0.01 <= fps <= 1000:
        raise RequestError(f"video: {total} frames at {fps:g} a second; 1 to {MOST_FRAMES} at 0.01 to 1000 are taken")
    return total, fps


def _promised(box: Any, stream: Any, fps: float) -> float:
    """Seconds that the head of a file says, 0 where it is silent; others' lengths are guessed from what is there."""
    if "avi" in box.format.name:
        return stream.frames / fps if fps else 0.0
    heads = any(name in box.format.name for name in ("matroska", "mov", "flv"))
    return (box.duration or 0) / 1e6 if heads else 0.0


def _check_whole(there: float, promised: float) -> None:
    if there < WHOLE * promised:
        raise RequestError(f"video: the file is cut: {promised:.3g} s are promised, {there:.3g} s are there; send all of it")


def _frames(box: Any, chosen: list[int]) -> Array:
    stream = box.streams.video[0]
    _check_room(len(chosen), stream.codec_context.width, stream.codec_context.height)
    wanted, found, last = iter(chosen), [], None
    due = next(wanted, None)
    for at, frame in enumerate(box.decode(stream)):
        last = frame
        while due is not None and at == due:
            found.append(frame.to_ndarray(format="rgb24"))
            due = next(wanted, None)
        if due is None:
            break
    if last is None:
        raise RequestError("video: no frame of the file can be decoded")
    if at + 1 < WHOLE * (chosen[-1] + 1):
        raise RequestError(f"video: {at + 1} of {chosen[-1] + 1} frames can be decoded; the file is broken, make it again")
    while len(found) < len(chosen):  # a packet held no frame: the last one stays
        found.append(last.to_ndarray(format="rgb24"))
    return np.stack(found)


def _heard(box: Any) -> Sound | None:
    """The first sound of a file, whole."""
    import av

    if not box.streams.audio:
        return None
    stream = box.streams.audio[0]
    rate, count = int(stream.rate), 0
    floats, pieces = av.AudioResampler(format="fltp"), []
    for frame in box.decode(stream):
        for piece in floats.resample(frame):
            pieces.append(piece.to_ndarray())
            count += pieces[-1].shape[1]
        if count > MAX_SECONDS * rate:
            raise RequestError(f"audio: more than {MAX_SECONDS} s; send less of it")
    return Sound(np.concatenate(pieces, 1).T, rate) if pieces else None
