"""The vocoder half of hibari: frame features to sound, in chunks of any size.

One op, `decode_audio`. A frame is float32 [132]: 128 text features, log(1 + f0) / 5 and energy for the network; f0 in Hz for the
pulses; 1.0 on the last frame of a segment, else 0. Sample 300 k of the answer belongs to frame k, at 24 kHz.

Sound, per frame and bin (hibari-tts 0.2.1, `dsp`), from five parts that the network gives:

    S = exp(lh) e^{i pi tanh(theta)} P + exp(ln) Z + exp(lr) e^{i phi}       P: spectrum of the pulses, Z: complex noise

then an inverse transform. Everything that later frames need of earlier ones is kept, nothing is computed twice, and each segment
is decoded as if it were alone: so chunks of any size give the sound of one call, up to rounding.

T frames, W = 132 numbers a frame, P = 5 parts, B = 601 bins, N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from omni_runtime.errors import CardError, RequestError, unknown
from omni_runtime.experts.base import Launched, Op
from omni_runtime.experts.hibari_network import BINS, REACH, Network, Strand, Tails, advance_network, fresh_tails, load_network
from omni_runtime.experts.later import Later, launches, settled
from omni_runtime.experts.linear import varies
from omni_runtime.experts.overlap_add import LEAD, Overlap, add_frames, fresh_overlap
from omni_runtime.experts.philox_noise import complex_noise
from omni_runtime.experts.pulse_source import HOP, RATE, Source, advance_source, fresh_source, hann
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.staging import Reading, Staging
from omni_runtime.experts.steady import steady
from omni_runtime.weights.hibari import WIDTH
from omni_runtime.work import AudioStep, Draw, Row, StepResult

SAMPLE_RATE = RATE
AHEAD = REACH + LEAD  # 27 frames for the network, 2 for the inverse transform: 0.36 s
FRAME = WIDTH + 2
PITCH = WIDTH
MARK = WIDTH + 1
LOUDEST = 7.0  # a log magnitude is cut here before exp

Noise = Callable[[Draw, int, int], npt.NDArray[np.complex64]]
"""(key, first frame of the stream, frames) -> complex64 [T, B], the same for a frame however it is asked for."""


@dataclass(frozen=True)
class _Segment:
    """An utterance that has begun and not ended."""

    tails: Tails
    source: Source
    overlap: Overlap
    spectra: int  # the frame of the stream whose spectrum comes next


@dataclass(frozen=True)
class _Stream:
    """Where a stream stands: never changed, only replaced."""

    next: int = 0  # first frame whose sound was not given yet
    fed: int = 0  # first frame that the network has not seen
    segment: _Segment | None = None
    ready_N: Tensor | None = None  # sound from frame `next` on, made before anybody asked


@dataclass
class _Slot:
    stream: _Stream | None = None


@dataclass(frozen=True)
class _Part:
    """New frames of one segment of one row."""

    row: int
    draw: Draw
    at: int  # frame of the stream where the new ones begin
    segment: _Segment | None  # None: a segment begins
    frames_TW: Tensor
    ends: bool


class HibariVocoder:
    """The expert. `ops["decode_audio"]` takes `AudioStep`s and gives samples, float32 [size * 300] within about -1..1.

    A step needs its `size` frames and AHEAD more, or the mark that ends the segment among them, or `last`.
    """

    def __init__(self, network: Network, noise: Noise, device: str = "cpu") -> None:
        self._network = network
        self._noise = noise
        self._device, self.late = device, launches(torch.device(device))
        self._staging = Staging(torch.device(device))
        self._window_N = hann(device)
        self._unit_window_N = self._window_N / HOP
        self.ops: Mapping[str, Op] = {"decode_audio": self.decode_audio}
        self.invariant = frozenset(self.ops if network.exact else ())
        self.varies = "" if network.exact else varies(torch.device(device))

    @torch.inference_mode()
    def decode_audio(self, rows: Sequence[Row], slots: Slots) -> list[StepResult] | Launched:
        """Decodes one chunk of every row.

        Raises:
            RequestError: a step that does not follow the one before, with too few frames or with frames of another width.
        """
        kept = [slots.state(row, _Slot) for row in rows]
        streams = [_begin(slot.stream, _step(row)) for slot, row in zip(kept, rows, strict=True)]
        new = [step.frames[max(stream.fed - step.start, 0) :] for stream, step in zip(streams, map(_step, rows), strict=True)]
        tables = {
            str(i): _table(frames, stream.fed) for i, (frames, stream) in enumerate(zip(new, streams, strict=True)) if frames
        }
        sent = self._staging.send(tables)
        parts = []
        for i, (row, stream) in enumerate(zip(rows, streams, strict=True)):
            marks = np.flatnonzero(tables[str(i)][:, MARK] > 0.5) if new[i] else None
            parts += self._parts(i, stream, _step(row), marks, sent.get(str(i)))
        strands = [
            Strand(part.segment.tails if part.segment else fresh_tails(self._device), part.frames_TW[:, :WIDTH], part.ends)
            for part in parts
        ]
        sounds: list[list[Tensor]] = [[] if stream.ready_N is None else [stream.ready_N] for stream in streams]
        open_segments = [stream.segment for stream in streams]
        advanced = advance_network(self._network, strands) if strands else []
        noises = {}
        for k, (part, (_, spectra_TPB)) in enumerate(zip(parts, advanced, strict=True)):
            noises[str(k)] = self._noise(part.draw, part.segment.spectra if part.segment else part.at, len(spectra_TPB))
        drawn = self._staging.send(noises)
        for k, (part, (tails, spectra_TPB)) in enumerate(zip(parts, advanced, strict=True)):
            open_segments[part.row], sound_N = self._sound(part, tails, spectra_TPB, drawn[str(k)])
            sounds[part.row].append(sound_N)
        waves, after = [], []
        for i, row in enumerate(rows):
            step = _step(row)
            sound_N = torch.cat(sounds[i]) if sounds[i] else torch.zeros(0, device=self._device)
            if len(sound_N) < step.size * HOP:
                raise RequestError(
                    f"frames: {len(step.frames)} rows from frame {step.start} on make {len(sound_N) // HOP} frames of sound, "
                    f"size={step.size}; send size + {AHEAD} rows, or all up to the end of the segment"
                )
            samples_N, rest_N = sound_N.tensor_split([step.size * HOP])
            end = step.start + step.size
            fed = max(streams[i].fed, step.start + len(step.frames))
            after.append(_Stream(end, fed, open_segments[i], rest_N.clone() if len(rest_N) else None))
            waves.append(samples_N)

        def read(*found: Tensor) -> list[StepResult]:
            for slot, stream in zip(kept, after, strict=True):  # only now: an op that raised may be run again
                slot.stream = stream
            return [StepResult(items={"samples": samples_N.numpy()}) for samples_N in found]

        return settled(Later(Reading(*waves), read), self.late)

    def _parts(
        self, row: int, stream: _Stream, step: AudioStep, marks: npt.NDArray[np.int64] | None, table_TW: Tensor | None
    ) -> list[_Part]:
        """What the network has not seen of a row, cut at the ends of segments, which are at `marks`."""
        at, segment = stream.fed, stream.segment
        parts = []
        if marks is not None and table_TW is not None:
            stops = (marks + 1).tolist()
            marked = len(stops)
            if stops[-1:] != [len(table_TW)]:
                stops.append(len(table_TW))
            start = 0
            for i, stop in enumerate(stops):
                parts.append(_Part(row, step.draw, at + start, segment, table_TW[start:stop], i < marked or step.last))
                segment, start = None, stop
        elif step.last and segment is not None:  # its last frame was seen before anybody knew that it was the last
            parts.append(_Part(row, step.draw, at, segment, torch.zeros(0, FRAME, device=self._device), True))
        return parts

    def _sound(self, part: _Part, tails: Tails, spectra_TPB: Tensor, noise_TB: Tensor) -> tuple[_Segment | None, Tensor]:
        """The segment as it is left (None: it has ended) and the samples that became certain."""
        before = part.segment
        hz_T = part.frames_TW[:, PITCH]
        source = before.source if before else fresh_source(hz_T[0])
        overlap = before.overlap if before else fresh_overlap(self._device)
        first = before.spectra if before else part.at
        count = len(spectra_TPB)
        source, pulses_TB = advance_source(source, hz_T, part.ends, count, self._unit_window_N)
        overlap, sound_N = add_frames(overlap, _mixed(spectra_TPB, pulses_TB, noise_TB), part.ends, self._window_N)
        return None if part.ends else _Segment(tails, source, overlap, first + count), sound_N


def _mixed(spectra_TPB: Tensor, pulses_TB: Tensor, noise_TB: Tensor) -> Tensor:
    """The formula at the top of this file."""
    lh_TB, theta_TB, ln_TB, lr_TB, phi_TB = spectra_TPB.unbind(1)
    mixed_TB = steady(torch.mul, torch.polar(_loud(lh_TB), torch.tanh(theta_TB) * torch.pi), pulses_TB)
    mixed_TB += _loud(ln_TB) * noise_TB
    mixed_TB += torch.polar(_loud(lr_TB), phi_TB)
    mixed_TB[:, :: BINS - 1].imag.zero_()  # a real signal's first and last bin are real; cuFFT may use what is there
    return mixed_TB


def _loud(log_TB: Tensor) -> Tensor:
    return log_TB.clamp(max=LOUDEST).exp()


def _step(row: Row) -> AudioStep:
    if not isinstance(row.payload, AudioStep):
        raise RequestError(f"payload: decode_audio takes an AudioStep, not {type(row.payload).__name__}")
    return row.payload


def _begin(stream: _Stream | None, step: AudioStep) -> _Stream:
    """The stream that a step goes on with."""
    if step.fresh or step.start == 0:
        return _Stream(step.start, step.start)
    if stream is None or stream.next != step.start:
        expected = "0" if stream is None else f"{stream.next} or 0"
        raise RequestError(f"start={step.start}: the state kept here goes on at frame {expected}; decode again from frame 0")
    return stream


def _table(frames: Sequence[Any], at: int) -> npt.NDArray[np.float32]:
    try:
        table = np.stack([np.asarray(frame, dtype=np.float32) for frame in frames])
    except ValueError as error:
        raise RequestError(f"frames: rows from frame {at} on differ in shape ({error}); each is float32 [{FRAME}]") from error
    if table.shape[1:] != (FRAME,):
        raise RequestError(f"frames: rows of shape {table.shape[1:]}, each must be float32 [{FRAME}]")
    return table


def build(options: Mapping[str, Any], device: str) -> HibariVocoder:
    """Options: `model`, path of another voice's ONNX file.

    Raises:
        CardError: an unknown option, or one of the wrong type.
        CheckpointError: the file is not such a voice.
        MissingExtra: a package of the extra `speech` is missing.
    """
    for name in options:
        if name != "model":
            raise CardError(unknown("option of the hibari vocoder", name, ("model",)))
    model = options.get("model")
    if not isinstance(model, str | None):
        raise CardError(f"option model={model!r} of the hibari vocoder: give the path of an ONNX file as text")
    return HibariVocoder(load_network(model, device), _noise, device)


def _noise(draw: Draw, first: int, count: int) -> npt.NDArray[np.complex64]:
    """The request's own noise: the key is its seed, and the number of the loop for programs with several voices."""
    return complex_noise(draw.seed | draw.node << 64, first, count, BINS)
