"""Files and picture objects of messages, opened when a request is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from omni_runtime.messages import MAX_BYTES


def read_source(source: Any) -> Any:
    """Bytes of a file by its path, or uint8 [H, W, 3] of a pillow picture, upright and without its alpha.

    Raises:
        OSError: there is no such file, it is too large to be sent, or a picture cannot be loaded.
    """
    if not isinstance(source, str):
        from PIL import ImageOps  # who has such a picture has pillow

        upright = ImageOps.exif_transpose(source)
        return np.asarray(upright.convert("RGB"))
    path = Path(source).expanduser()
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no file")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise OSError(f"it is {size} bytes, at most {MAX_BYTES} are taken")
    return path.read_bytes()
