"""The talker half of hibari: a clause or sentence to frames, ready for its vocoder.

One op, `speak`. It reads `CallStep.inputs["text"]`, one str, and `params["speed"]` (1.0 if not given), and gives port "frames":
float32 [n, 132], 80 frames a second; columns as in `hibari_vocoder`: 130 for the network, f0 in Hz, and 1.0 on the last
frame of a segment. Text beyond what the model can say in one go becomes several segments. Nothing to say is no frames.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_runtime.errors import CardError, MissingExtra, RequestError, unknown
from omni_runtime.experts.base import Op
from omni_runtime.experts.hibari_phonemes import Phonemes
from omni_runtime.experts.slots import Slots
from omni_runtime.weights.hibari import FEATURES, PITCH, WIDTH, asset, voice_file
from omni_runtime.weights.onnx_graph import cut_graph, load_graph
from omni_runtime.work import CallStep, Row, StepResult

FRAMES_A_SECOND = 80
FRAME = WIDTH + 2
SLOWEST, FASTEST = 0.5, 2.0
SILENCE_ID = 0  # stands at both ends of every phoneme string


class HibariTalker:
    """The expert. Keeps nothing between calls: the same text and speed give the same frames, whoever else is in the batch."""

    def __init__(self, front: Any, phonemes: Phonemes, ids: Mapping[str, int], voice: str = "heart") -> None:
        self.voice = voice
        self._front = front
        self._phonemes = phonemes
        self._ids = ids
        self.ops: Mapping[str, Op] = {"speak": self.speak}

    def speak(self, rows: Sequence[Row], slots: Slots) -> list[StepResult]:
        """Frames for the text of each row.

        Raises:
            RequestError: no text, more than one, or a speed that the voice cannot speak at.
        """
        asked = [_asked(row, self.voice) for row in rows]
        return [StepResult(items={"frames": self.frames(text, speed)}) for text, speed in asked]

    def frames(self, text: str, speed: float = 1.0) -> npt.NDArray[np.float32]:
        """float32 [n, 132]; n = 0 for a text without anything to say."""
        segments = [self._segment(piece, speed) for piece in self._phonemes.pieces(text)]
        return np.concatenate(segments) if segments else np.zeros((0, FRAME), np.float32)

    def _segment(self, phonemes: str, speed: float) -> npt.NDArray[np.float32]:
        ids = [SILENCE_ID, *(self._ids[symbol] for symbol in phonemes), SILENCE_ID]
        given = {"ids": np.array([ids], np.int64), "speed": np.array([speed], np.float32)}
        features, hz = self._front.run([FEATURES, PITCH], given)
        table = np.zeros((features.shape[2], FRAME), np.float32)
        table[:, :WIDTH] = features[0].T
        table[:, WIDTH] = hz[0]
        table[-1, WIDTH + 1] = 1.0
        return table


def _asked(row: Row, voice: str) -> tuple[str, float]:
    step = row.payload
    if not isinstance(step, CallStep):
        raise RequestError(f"payload: speak takes a CallStep, not {type(step).__name__}")
    texts = step.inputs.get("text", ())
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise RequestError(f"inputs['text']: {len(texts)} items of {[type(item).__name__ for item in texts[:3]]}; give one str")
    for name in step.params:
        if name not in ("speed", "voice"):
            raise RequestError(unknown("parameter of speak", name, ("speed", "voice")))
    if step.params.get("voice", voice) != voice:
        raise RequestError(f"voice={step.params['voice']!r}: this expert speaks as {voice!r}; another voice is another card")
    speed = step.params.get("speed", 1.0)
    if not isinstance(speed, int | float) or not SLOWEST <= speed <= FASTEST:
        raise RequestError(f"speed={speed!r}: the voice speaks at {SLOWEST} to {FASTEST} times its usual pace")
    return texts[0], float(speed)


def build(options: Mapping[str, Any], device: str) -> HibariTalker:
    """Options: `model`, path of another voice's ONNX file, and `voice`, its name; `threads` of onnxruntime, 1 if not given.

    Whatever the device of its executor, it computes on the CPU: 1.2 ms for a second of sound leave nothing to gain.

    Raises:
        CardError: an unknown option, or one of the wrong type.
        CheckpointError: the file is not such a voice.
        MissingExtra: a package of the extra `speech` is missing.
    """
    for name in options:
        if name not in ("model", "threads", "voice"):
            raise CardError(unknown("option of the hibari talker", name, ("model", "threads", "voice")))
    threads = options.get("threads", 1)
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise CardError(f"option threads={threads!r} of the hibari talker: give a positive integer")
    model = options.get("model")
    if not isinstance(model, str | None):
        raise CardError(f"option model={model!r} of the hibari talker: give the path of an ONNX file as text")
    try:
        import onnxruntime
    except ImportError as missing:
        raise MissingExtra("the talker needs the package onnxruntime: pip install 'omni_runtime[speech]'") from missing
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = threads
    settings.log_severity_level = 3
    graph = cut_graph(load_graph(voice_file(model)), {FEATURES: (1, WIDTH, "frames"), PITCH: (1, "frames")})
    front = onnxruntime.InferenceSession(graph, settings, providers=["CPUExecutionProvider"])
    ids = json.loads(asset("vocab.json").read_text("utf-8"))
    return HibariTalker(front, Phonemes(ids), ids, str(options.get("voice", "heart")))
