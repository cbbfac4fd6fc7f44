"""Sound in chunks is the sound of one call, whoever else is in the batch and whatever went wrong before."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hibari_toys import AHEAD, HOP, decode, frames, noise, row, shifted, steps, toy
from hypothesis import given, settings
from hypothesis import strategies as st
from omni_runtime.kernels import cpu_build

from omni_runtime.errors import CardError, CheckpointError, MissingExtra, RequestError
from omni_runtime.experts import hibari_vocoder
from omni_runtime.experts.slots import Slots
from omni_runtime.work import AudioStep, CallStep, Draw, Row

pytestmark = pytest.mark.torch
CLOSE = 0.0 if cpu_build.wanted() else 1e-5  # torch's products of other shapes sum in another order
TOY = toy()
STREAM = frames(70, 1, 33, 2, 90)
WHOLE = decode(TOY, STREAM)


def apart(a: np.ndarray, b: np.ndarray) -> float:
    assert a.shape == b.shape
    assert a.dtype == b.dtype == np.float32
    return float(np.abs(a - b).max(initial=0.0))


def test_the_toy_makes_sound() -> None:
    assert 0.1 < np.abs(WHOLE).max() < 10
    assert np.isfinite(WHOLE).all()


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (7,), (40,), (1, 60), (AHEAD,), (AHEAD + 1,)], ids=str)
def test_chunks_of_a_size(sizes: tuple[int, ...]) -> None:
    assert apart(decode(TOY, STREAM, sizes), WHOLE) <= CLOSE


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(1, 99), min_size=1, max_size=9), st.lists(st.integers(1, 70), min_size=1, max_size=4), st.integers(0, 9)
)
def test_any_chunks_of_any_segments(sizes: list[int], lengths: list[int], seed: int) -> None:
    table = frames(*lengths, seed=seed)
    assert apart(decode(TOY, table, sizes), decode(TOY, table)) <= CLOSE


@pytest.mark.parametrize("count", [0, 1, 2, AHEAD - 1, AHEAD, AHEAD + 1, 2 * AHEAD + 1])
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "unmarked"])
def test_every_frame_is_300_samples(count: int, marked: bool) -> None:
    table = frames(count) if count else frames(1)[:0]
    table[:, -1] *= marked
    whole = decode(TOY, table)
    assert whole.shape == (count * HOP,)
    for sizes in [(1,), (4,), (25,), (count + 1,)]:
        assert apart(decode(TOY, table, sizes), whole) <= CLOSE


def test_a_step_of_nothing() -> None:
    results = TOY.decode_audio([row(AudioStep(0, 0, (), True))], Slots("a"))
    assert results[0].items["samples"].shape == (0,)
    assert TOY.decode_audio([], Slots("a")) == []


def test_a_segment_sounds_as_if_it_were_alone() -> None:
    at = 0
    for length in (70, 1, 33, 2, 90):
        alone = decode(toy(shifted(at)), STREAM[at : at + length])
        assert apart(alone, WHOLE[at * HOP : (at + length) * HOP]) <= CLOSE
        at += length


def test_up_to_a_mark_no_look_ahead_is_needed() -> None:
    slots = Slots("a")
    first = TOY.decode_audio([row(AudioStep(0, 70, tuple(STREAM[:70]), False))], slots)[0].items["samples"]
    rest = TOY.decode_audio([row(AudioStep(70, 126, tuple(STREAM[70:]), True))], slots)[0].items["samples"]
    assert apart(np.concatenate([first, rest]), WHOLE) <= CLOSE


def test_an_end_that_is_known_late() -> None:
    """The last frames were seen while the stream was still open, so the last step has nothing new but the end."""
    table = frames(AHEAD + 3)
    table[-1, -1] = 0
    slots = Slots("a")
    first = TOY.decode_audio([row(AudioStep(0, 3, tuple(table), False))], slots)[0].items["samples"]
    rest = TOY.decode_audio([row(AudioStep(3, AHEAD, tuple(table[3:]), True))], slots)[0].items["samples"]
    assert apart(np.concatenate([first, rest]), decode(TOY, table)) <= CLOSE


@pytest.mark.parametrize("column", [5, 130], ids=["features", "pitch"])
def test_ahead_is_exactly_what_is_felt(column: int) -> None:
    """Two streams that differ in one frame: the sound differs AHEAD frames earlier (pitch: 4), and not a frame before."""
    table = frames(120)
    table[:, 130] = 200
    other = table.copy()
    other[100, column] += 50
    a, b = decode(TOY, table), decode(TOY, other)
    reach = AHEAD if column < 130 else 4
    touched = np.flatnonzero((a != b).reshape(-1, HOP).any(1))
    assert touched[0] == 100 - reach
    assert AHEAD == 29


def test_neighbours_leave_no_trace() -> None:
    tables = [frames(50, 40, seed=1), frames(3, seed=2), frames(200, seed=3), frames(91, seed=4)]
    sizes = [(20,), (1, 2), (35,), (9, 30)]
    tables[3][:, 7] = np.nan
    queues = [list(steps(table, size)) for table, size in zip(tables, sizes, strict=True)]
    slots, sounds = Slots("a"), [[] for _ in tables]
    while any(queues):
        alive = [i for i, queue in enumerate(queues) if queue]
        results = TOY.decode_audio([row(queues[i].pop(0), run=i) for i in alive], slots)
        for i, result in zip(alive, results, strict=True):
            sounds[i].append(result.items["samples"])
    for sound, table in zip(sounds[:3], tables[:3], strict=True):
        assert apart(np.concatenate(sound), decode(TOY, table)) <= CLOSE
    assert np.isnan(np.concatenate(sounds[3])).all()
    assert slots.counts == (4, 0)


@pytest.mark.parametrize("when", [0, 1, 2])
def test_a_batch_that_raised_can_be_run_again(when: int) -> None:
    """The noise of the second row breaks after the first row was done: nothing of either may be kept."""
    broken = False
    calls: list[int] = []

    def fragile(draw: Draw, first: int, count: int) -> np.ndarray:
        calls.append(first)
        if broken and len(calls) == 2:
            raise RuntimeError("the device went away")
        return noise(draw, first, count)

    vocoder, slots = toy(fragile), Slots("a")
    tables = [frames(150, seed=1), frames(150, seed=2)]
    sounds: list[list[np.ndarray]] = [[], []]
    for turn, pair in enumerate(zip(steps(tables[0], (30,)), steps(tables[1], (31,)), strict=True)):
        rows = [row(step, run) for run, step in enumerate(pair)]
        if turn == when:
            broken = True
            calls.clear()
            with pytest.raises(RuntimeError, match="went away"):
                vocoder.decode_audio(rows, slots)
            broken = False
        for sound, result in zip(sounds, vocoder.decode_audio(rows, slots), strict=True):
            sound.append(result.items["samples"])
    for sound, table in zip(sounds, tables, strict=True):
        assert apart(np.concatenate(sound), decode(TOY, table)) <= CLOSE


def test_start_0_begins_anew() -> None:
    slots = Slots("a")
    for step in list(steps(STREAM, (50,)))[:2]:
        TOY.decode_audio([row(step)], slots)
    again = [TOY.decode_audio([row(step)], slots)[0].items["samples"] for step in steps(STREAM, (64,))]
    assert apart(np.concatenate(again), WHOLE) <= CLOSE


def test_wrong_steps_are_refused() -> None:
    slots = Slots("a")
    TOY.decode_audio([row(AudioStep(0, 10, tuple(STREAM[: 10 + AHEAD]), False))], slots)
    for step, message in [
        (AudioStep(9, 1, tuple(STREAM[9 : 10 + AHEAD]), False), "start=9: .* frame 10 or 0"),
        (AudioStep(10, 5, tuple(STREAM[10 : 14 + AHEAD]), False), rf"make 4 frames of sound, size=5; send size \+ {AHEAD}"),
        (AudioStep(10, 5, tuple(STREAM[10:60, :130]), False), "shape"),
        (AudioStep(10, 5, (*STREAM[10:50], STREAM[50, :9]), False), "differ in shape"),
        (AudioStep(0, 2, tuple(STREAM[:1]), True), "size=2"),
    ]:
        with pytest.raises(RequestError, match=message):
            TOY.decode_audio([row(step)], slots)
    with pytest.raises(RequestError, match="AudioStep, not CallStep"):
        TOY.decode_audio([Row(1, "speak", 1, 0, (), CallStep(0, {}, {}, {}))], slots)
    with pytest.raises(RequestError, match=r"start=5: .* frame 0"):
        TOY.decode_audio([row(AudioStep(5, 1, tuple(STREAM[5:50]), False), run=2)], slots)
    rest = TOY.decode_audio([row(AudioStep(10, 186, tuple(STREAM[10:]), True))], slots)[0].items["samples"]
    assert apart(rest, WHOLE[10 * HOP :]) <= CLOSE


def test_no_global_generator_is_touched() -> None:
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    decode(TOY, frames(5))
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()


def test_state_is_small() -> None:
    """What is kept of a stream of 3 s does not grow with the chunk that was decoded."""
    slots = Slots("a")
    TOY.decode_audio([row(next(steps(frames(400), (240,))))], slots)
    (slot,) = slots._state.values()
    segment = slot.stream.segment
    tensors = [*segment.tails, segment.source.hz_T, segment.source.wave_N, *segment.overlap[:2]]
    assert sum(tensor.untyped_storage().nbytes() for tensor in tensors) < 100_000


def test_importing_the_expert_imports_no_package_of_the_extra() -> None:
    code = (
        "import sys, omni_runtime.experts.hibari_vocoder, omni_runtime.experts.hibari_talker\n"
        "assert not {'onnx', 'onnxruntime', 'hibari', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_wrong_options_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for options, message in [
        ({"modle": 1}, "did you mean 'model'"),
        ({"model": 3}, "model=3"),
    ]:
        with pytest.raises(CardError, match=message):
            hibari_vocoder.build(options, "cpu")
    pytest.importorskip("onnx")
    with pytest.raises(CheckpointError, match="cannot be read"):
        hibari_vocoder.build({"model": str(tmp_path / "no.onnx")}, "cpu")
    (tmp_path / "bad.onnx").write_bytes(b"RIFF0000")
    with pytest.raises(CheckpointError, match="ONNX"):
        hibari_vocoder.build({"model": str(tmp_path / "bad.onnx")}, "cpu")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'omni_runtime\[speech\]'"):
        hibari_vocoder.build({}, "cpu")
