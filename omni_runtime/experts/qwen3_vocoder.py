"""The vocoder of Qwen3-Omni as an expert: op `decode_audio` gives the sound of the frames it is fed, 24 kHz.

A frame is the G codes of one instant. n frames make n · hop - lag samples (`code2wav`), so the step that begins a stream gives
`lag` fewer than size · hop, and nothing is owed at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from omni_runtime.errors import RequestError
from omni_runtime.experts.base import Launched, Op
from omni_runtime.experts.code2wav import Code2Wav, Codes, Stream
from omni_runtime.experts.device_queue import queue_of
from omni_runtime.experts.omni_options import read_options
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.speakers import voiced
from omni_runtime.experts.staging import Reading
from omni_runtime.weights.qwen3_omni import OmniFolder
from omni_runtime.work import AudioStep, Row, StepResult

SAMPLE_RATE = 24_000


class _Slot:
    """What is kept of one loop."""

    stream: Stream | None = None


class _Decoded(NamedTuple):
    """A batch that is on its way."""

    kept: Sequence[_Slot]
    after: Sequence[Stream]
    reading: Reading  # its sound

    def collect(self) -> list[StepResult]:
        results = [StepResult(items={"samples": wave_S.numpy()}) for wave_S in self.reading.get()]
        for slot, stream in zip(self.kept, self.after, strict=True):
            slot.stream = stream
        return results


class Qwen3Vocoder:
    """The expert. Its state is replaced only when a whole batch has succeeded, so a batch that raised may be run again.

    Args:
        late: whether a batch is launched, and read when it is collected; by default where the device has a queue.
    """

    def __init__(self, model: Code2Wav, late: bool | None = None) -> None:
        self.model = model
        launches = queue_of(model.device) is not None if late is None else late
        self.ops: Mapping[str, Op] = {"decode_audio": self.launch if launches else self.decode_audio}
        self.invariant, self.varies = frozenset(self.ops if model.exact else ()), model.varies

    def decode_audio(self, rows: Sequence[Row], slots: Slots) -> list[StepResult]:
        """Port "samples": float32 within -1..1.

        Raises:
            RequestError: a step that does not follow the one before, or frames that are no codes of this model.
        """
        return self.launch(rows, slots).collect()

    def launch(self, rows: Sequence[Row], slots: Slots) -> Launched:
        """The same, of which `collect` gives the results."""
        kept = [slots.state(row, _Slot) for row in rows]
        streams = [self._stream(slot, row) for slot, row in zip(kept, rows, strict=True)]
        codes = [self._codes(row) for row in rows]
        found = self.model.decode(streams, codes) if rows else []
        return _Decoded(kept, [stream for stream, _ in found], Reading(*(wave_S for _, wave_S in found)))

    def _stream(self, slot: _Slot, row: Row) -> Stream:
        step = _step(row)
        if step.fresh or step.start == 0:
            return self.model.fresh(step.start)
        if slot.stream is None or slot.stream.frames != step.start:
            there = "0" if slot.stream is None else f"{slot.stream.frames} or 0"
            raise RequestError(f"start={step.start}: the state kept here goes on at frame {there}; decode again from frame 0")
        return slot.stream

    def _codes(self, row: Row) -> Codes:
        step, c = _step(row), self.model.config
        if not 0 < step.size <= len(step.frames):
            raise RequestError(
                f"frames: {len(step.frames)} for size={step.size}; send at least one, and as many as are asked for"
            )
        frames = [tuple(int(code) for code in frame) for frame in step.frames[: step.size]]
        for at, frame in enumerate(frames, step.start):
            if len(frame) != c.groups or not 0 <= min(frame) <= max(frame) < c.codebook:
                raise RequestError(f"frames: {frame} at {at} is not {c.groups} codes below {c.codebook}")
        return np.array(frames, np.int64)


def _step(row: Row) -> AudioStep:
    if not isinstance(row.payload, AudioStep):
        raise RequestError(f"payload: decode_audio takes an AudioStep, not {type(row.payload).__name__}")
    return row.payload


def build(options: Mapping[str, Any], device: str) -> Qwen3Vocoder:
    """Options: `checkpoint`, a folder; `linear`, see `linear.LAYOUTS`.

    Raises:
        CardError: an unknown option, or one of the wrong type.
        CheckpointError: the folder is not a whole Qwen3-Omni, or has no voice.
    """
    asked = read_options(options, "qwen3 vocoder")
    folder = OmniFolder(asked.folder)
    config = voiced(folder.config.vocoder, folder.folder)
    return Qwen3Vocoder(Code2Wav(config, folder.named("code2wav."), device, asked.linear))
