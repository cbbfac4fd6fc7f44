"""Files and picture objects of messages, opened when a request is submitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omni_runtime.errors import MissingExtra
from omni_runtime.experts.media_decode import rgb
from omni_runtime.messages import MAX_BYTES, decoder

PACKAGES = {"PIL": "pillow", "av": "PyAV (av)"}


def read_source(source: Any) -> Any:
    """Bytes of a file by its path, or uint8 [H, W, 3] of a pillow picture, upright and laid on white.

    Raises:
        OSError: there is no such file, it is too large to be sent, or a picture cannot be loaded.
    """
    if not isinstance(source, str):
        from PIL import ImageOps  # who has such a picture has pillow

        upright = ImageOps.exif_transpose(source)
        return rgb(upright)
    path = Path(source).expanduser()
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no file")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise OSError(f"it is {size} bytes, at most {MAX_BYTES} are taken")
    return path.read_bytes()


def check_decoders(inputs: Iterable[Any]) -> None:
    """Whether the files in inputs that were made plain can be decoded with what is installed.

    Raises:
        MissingExtra: a package is missing; it names the part.
    """
    for messages in inputs:
        for at, turn in enumerate(messages if isinstance(messages, list) else ()):
            content = turn.get("content") if isinstance(turn, Mapping) else ()
            for i, part in enumerate(content if isinstance(content, list) else ()):
                sound = part.get("sound", {})
                for kind, file in ((part.get("type"), part.get("file")), ("audio", sound.get("file"))):
                    if file is not None and (module := decoder(kind, file)) and find_spec(module) is None:
                        what = f"messages[{at}].content[{i}]: this {kind} file needs {PACKAGES[module]}"
                        raise MissingExtra(f"{what}: pip install 'omni_runtime[media]'")
