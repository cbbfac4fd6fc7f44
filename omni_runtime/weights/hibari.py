"""Where the voice "heart" of hibari-tts 0.2.1 lies (6.15 M parameters, 7.9 MB, Apache-2.0), and where its graph is cut.

text ─ G2P ─ ids ─► front: durations, pitch, text features ─► FEATURES [1, 130, F] ─► back: spectra ─► sound
                    the talker runs this                                             the vocoder runs this
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from omni_runtime.errors import CheckpointError, MissingExtra

FEATURES = "/Concat_43_output_0"  # input of the back: 128 of text, log(1 + f0) / 5, energy
PITCH = "f0"  # Hz, [1, F]
WIDTH = 130


def asset(name: str) -> Path:
    """Path of a file that hibari-tts carries. The package is found, not imported.

    Raises:
        MissingExtra: hibari-tts is not installed.
        CheckpointError: it carries no such file.
    """
    spec = importlib.util.find_spec("hibari")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("the voice lies in the package hibari-tts: pip install 'omni_runtime[speech]'")
    path = Path(spec.submodule_search_locations[0]) / "assets" / name
    if not path.is_file():
        raise CheckpointError(f"hibari-tts has no file {name!r} at {str(path)!r}; version 0.2.1 is the one that is known to fit")
    return path


def voice_file(path: str | None = None) -> Path:
    """The ONNX file of a voice: the given one, or the one in the package."""
    return Path(path) if path is not None else asset("hibari.onnx")
