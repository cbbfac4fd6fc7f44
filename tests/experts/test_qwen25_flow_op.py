"""Flow and vocoder of Qwen2.5-Omni as experts, driven by the loops they are for: mel frames and sound are those of the models."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from driven import Flaky, Line, drive  # noqa: E402
from flow_driver import streamed  # noqa: E402
from tiny_qwen25 import bigvgan, flow, folder, voice  # noqa: E402

from omni_runtime.card import AudioDecode, FlowDecode, Slot  # noqa: E402
from omni_runtime.channel import Channel  # noqa: E402
from omni_runtime.draw import Draw  # noqa: E402
from omni_runtime.errors import RequestError  # noqa: E402
from omni_runtime.experts.bigvgan import BigVGAN  # noqa: E402
from omni_runtime.experts.flow_op import FlowOp  # noqa: E402
from omni_runtime.experts.mel_vocoder import MelVocoder  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.loops.flow_chunks import FlowChunks  # noqa: E402
from omni_runtime.request import AudioParams, FlowParams  # noqa: E402
from omni_runtime.weights.qwen2_5_omni_parts import WAVES  # noqa: E402
from omni_runtime.work import AudioStep, FlowStep, Row  # noqa: E402

torch.set_num_threads(1)
BLOCK, REPEATS, MELS, HOP = 8, 2, 16, 240
SPEC = FlowDecode(expert="flow", repeats=REPEATS, block=BLOCK)
SPEAK = AudioDecode(
    expert="vocoder", sample_rate=24_000, hop=HOP, ahead=34, behind=34, reads={"frames": Slot(type="mel", mode="stream")}
)
SPEAKERS = {name: (one.condition_K, one.mel_TM) for name, one in folder().speakers().items()}
STREAMS: list[tuple[int, str, dict[str, Any]]] = [  # codes, who, parameters
    (33, "Chelsie", {"num_steps": 4}),
    (1, "Ethan", {"num_steps": 2}),
    (61, "Ethan", {"num_steps": 3, "guidance_scale": 0.0}),
    (24, "Chelsie", {"num_steps": 3, "guidance_scale": 1.5}),
    (8, "Ethan", {"num_steps": 5}),
]


def codes(count: int, seed: int) -> list[int]:
    found: list[int] = torch.randint(0, 79, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def wanted(number: int) -> torch.Tensor:
    count, who, asked = STREAMS[number]
    given, guidance = codes(count, number), asked.get("guidance_scale", 0.5)
    found: torch.Tensor = streamed(flow(), FlowChunks(BLOCK), given, voice(who), number, asked["num_steps"], guidance=guidance)
    return found


class Codes:
    """Codes that come a few at a time, and a speaker that comes some time."""

    def __init__(self, given: Sequence[int], who: str) -> None:
        self.given, self.who, self.channels = given, who, {"codes": Channel(), "speaker": Channel()}

    def feed(self, rng: Random) -> None:
        told = self.channels["codes"]
        if rng.random() < 0.3:
            self.channels["speaker"].push(0, [self.who])
        elif told.tail == len(self.given):
            told.close("stop")
        else:
            told.push(told.tail, [(code,) for code in self.given[told.tail :][: rng.randint(1, 9)]])


def lines() -> tuple[list[Line], list[Codes]]:
    fed = [Codes(codes(count, run), who) for run, (count, who, _) in enumerate(STREAMS)]
    made = [Line(run, SPEC, FlowParams(**STREAMS[run][2]), one.channels, seed=run) for run, one in enumerate(fed)]
    return made, fed


def step(chunk: int = 0, call: int = 0, **changes: Any) -> Row:
    """Of a stream of 40 codes, with two points of time."""
    plan = FlowChunks(BLOCK).chunk(chunk, 80, True)
    own = codes(40, 1)
    if plan is None:
        plan = FlowChunks(BLOCK).chunk(1, 80, True)
    assert plan is not None
    made = FlowStep(
        chunk, call, 4, call / 3, 1.0, plan.start, plan.stop, plan.high, tuple(own[plan.start // 2 : plan.high // 2]), 0.5,
        Draw(1, 1), "Ethan",
    )  # fmt: skip
    return Row(5, "flow_decode", 1, 0, (), replace(made, **changes))


@pytest.mark.parametrize("seed", range(8))
def test_mel_frames_are_those_of_the_model_alone(seed: int) -> None:
    """In company, whenever codes come, with refused rows beside, batches that raise when all is computed, and lost state."""
    made, fed = lines()
    slots, bad = Slots("cpu#1"), replace(step(1, 2), run=77)

    def feed(rng: Random) -> None:
        for one in fed:
            if rng.random() < 0.5:
                one.feed(rng)

    drive(FlowOp(Flaky(flow(), "velocity", 7), SPEAKERS).velocity, made, slots, seed, 1, feed, bad, losses=25 * (seed % 2))
    for number, line in enumerate(made):
        mel_TM = np.stack(line.pushed["mel"])
        assert mel_TM.dtype == np.float32
        torch.testing.assert_close(torch.from_numpy(mel_TM), wanted(number), rtol=0, atol=2e-5)
    assert seed % 2 == 0 or sum(line.again for line in made) > 0


def held_bytes(state: Any) -> int:
    stream = state.stream
    tensors = [stream.path.x_TM, *stream.path.slopes, *stream.past, *stream.kept]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None)


@pytest.mark.parametrize("guidance", [0.5, 0.0])
def test_memory_of_a_stream_is_bounded(guidance: float) -> None:
    """Keys and values of one block a call, and a trajectory: also while the second chunk leaves its own."""
    slots, expert, c = Slots("cpu#1"), FlowOp(flow(), SPEAKERS), flow().config
    fed = Codes(codes(200, 1), "Ethan")
    line, rng, most, ends = Line(1, SPEC, FlowParams(num_steps=4, guidance_scale=guidance), fed.channels), Random(1), 0, []
    for _ in range(200):
        fed.feed(rng)
    branches = 2 if guidance else 1
    one = len(c.back) * 2 * branches * c.heads * c.block * c.head_dim * 4
    while (row := line.row(1)) is not None:
        (result,) = expert.velocity([row], slots)
        line.took(result)
        held = held_bytes(slots.other(1, "flow_decode"))
        window = 4 * 9 * BLOCK * MELS * 4  # x and three slopes
        assert held <= 12 * one + window
        most = max(most, held)
        if result.items:
            ends.append(held)
    assert most > 12 * one
    assert ends[:-1] == [12 * one] * (len(ends) - 1)
    # The published shape: what the module says.
    assert pytest.approx(28.3e6, rel=1e-2) == 36 * 2 * 2 * 2 * 16 * 24 * 64 * 4


def test_the_first_call_begins_anew_and_others_follow() -> None:
    slots, expert = Slots("cpu#1"), FlowOp(flow(), SPEAKERS)
    first = [expert.velocity([step(0, call)], slots)[0] for call in range(4)]
    assert [list(result.items) for result in first] == [[], [], [], ["mel"]]
    assert first[3].items["mel"].shape == (16, MELS)
    second = [expert.velocity([step(1, call)], slots)[0] for call in range(4)]
    for call in range(3):
        expert.velocity([step(0, call)], slots)
    for again, before in ((0, first), (1, second)):
        found = [expert.velocity([step(again, call)], slots)[0] for call in range(3 if not again else 0, 4)][-1]
        np.testing.assert_array_equal(found.items["mel"], before[3].items["mel"])
    assert expert.velocity([], slots) == []
    with pytest.raises(AssertionError, match="two rows of one loop"):
        expert.velocity([step(), step()], slots)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (step(0, 3), "call 3 of chunk 0: what is kept here goes on with call 2 of chunk 0; begin again with chunk 0"),
        (step(0, 1), "goes on with call 2 of chunk 0"),
        (step(1, 0), "goes on with call 2 of chunk 0"),
        (step(1, 2), "goes on with call 2 of chunk 0"),
        (step(0, 2, guidance_scale=0.0), "guidance_scale=0.0, after guidance_scale=0.5"),
        (step(0, 2, calls=8), "calls=8, after calls=4"),
        (step(0, 2, speaker="Chelsie"), "speaker='Chelsie', after speaker='Ethan'"),
        (step(0, 2, draw=Draw(2, 1)), "draw=.*after draw="),
        (step(0, 2, codes=(1,) * 12), "codes="),
        (step(0, 2, stop=8), "stop=8, after stop=16"),
        (step(0, 4), "call 4 of 4 of chunk 0: calls count from 0"),
        (step(0, 0, calls=6), "four for each step"),
        (step(0, 2, time=float("nan")), "time=nan"),
        (step(0, 2, width=float("inf")), "width=inf"),
        (step(0, 2, guidance_scale=float("nan")), "guidance_scale=nan"),
        (step(0, 2, start=8), "frames 8 to 16, .*chunk 0 with frame 0"),
        (step(1, 0, start=0, codes=(1,) * 32), "frames 0 to 40"),
        (step(1, 0, start=12), "a chunk begins with a block of 8"),
        (step(0, 2, stop=0), "frames 0 to 0"),
        (step(0, 2, high=12), "frames 0 to 16, looking ahead to 12"),
        (step(0, 2, stop=12), "whole blocks of 8"),
        (step(0, 2, codes=(1,) * 11), "11 codes of 2 frames each for frames 0 to 16, looking ahead to 24"),
        (step(0, 0, codes=(1,) * 11 + (80,)), "codes: 80 is no code of sound"),
        (step(0, 0, speaker="Nobody"), "unknown speaker 'Nobody', known: Chelsie, Ethan"),
        (Row(5, "flow_decode", 1, 0, (), AudioStep(0, 1, (), True)), "op 'velocity' needs a FlowStep, got AudioStep"),
    ],
)
def test_steps_that_do_not_fit(row: Row, message: str) -> None:
    """After calls 0 and 1 of chunk 0; and who is beside them is as before."""
    slots, expert = Slots("cpu#1"), FlowOp(flow(), SPEAKERS)
    for call in range(2):
        expert.velocity([step(0, call), replace(step(0, call), run=6)], slots)
    kept = [slots.other(run, "flow_decode").stream for run in (5, 6)]
    with pytest.raises(RequestError, match=message):
        expert.velocity([replace(step(0, 2), run=6), row], slots)
    assert [slots.other(run, "flow_decode").stream for run in (5, 6)] == kept
    for call in (2, 3):
        ours, theirs = expert.velocity([step(0, call), replace(step(0, call), run=6)], slots)
    np.testing.assert_array_equal(ours.items["mel"], theirs.items["mel"])


def test_another_chunk_goes_on_where_the_last_ended() -> None:
    slots, expert = Slots("cpu#1"), FlowOp(flow(), SPEAKERS)
    for call in range(4):
        expert.velocity([step(0, call)], slots)
    for changes, message in (
        ({"start": 24, "codes": (1,) * 12}, "start=24, after start=0"),
        ({"guidance_scale": 0.0}, "guidance_scale=0.0"),
        ({"calls": 8}, "calls=8"),
    ):
        with pytest.raises(RequestError, match=message):
            expert.velocity([step(1, 0, **changes)], slots)
    expert.velocity([step(1, 0)], slots)


def test_nothing_is_kept_yet() -> None:
    for chunk, call in ((0, 1), (1, 0), (1, 2)):
        with pytest.raises(RequestError, match="goes on with nothing; begin again with chunk 0"):
            FlowOp(flow(), SPEAKERS).velocity([step(chunk, call)], Slots("cpu#1"))


def test_frames_that_are_not_numbers_are_not_given() -> None:
    """And who was computed before them in that batch is as before."""
    condition_K, mel_TM = SPEAKERS["Ethan"]
    slots, expert = Slots("cpu#1"), FlowOp(flow(), SPEAKERS | {"Broken": (condition_K * torch.nan, mel_TM)})
    for call in range(3):
        expert.velocity([step(0, call), replace(step(0, call, speaker="Broken"), run=6)], slots)
    for run in (6, 5):
        with pytest.raises(FloatingPointError, match="frames 0 to 16"):
            expert.velocity([replace(step(0, 3), run=5), replace(step(0, 3, speaker="Broken"), run=6)], slots)
        assert slots.other(run, "flow_decode").stream.step.call == 2
    assert expert.velocity([step(0, 3)], slots)[0].items["mel"].shape == (16, MELS)


def test_a_voice_is_made_once_a_speaker() -> None:
    slots, counted = Slots("cpu#1"), Flaky(flow(), "voice", 1000)
    expert = FlowOp(counted, SPEAKERS)
    for run, who in enumerate(["Ethan", "ethan", "ETHAN", "Chelsie", "", "chelsie"]):
        expert.velocity([replace(step(0, 0, speaker=who), run=run)], slots)
    assert counted.calls == 2


# -- Sound ------------------------------------------------------------------------------------------------------------------


def mel(frames: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    found: np.ndarray[Any, np.dtype[np.float32]] = np.random.default_rng(seed).standard_normal((frames, MELS)).astype(np.float32)
    return found


@pytest.mark.parametrize(("seed", "most"), [(0, 1), (1, 3), (2, 17), (3, 40), (4, 200), (5, 24)])
def test_sound_in_pieces_is_that_of_one_call(seed: int, most: int) -> None:
    """Whatever frames come when, and whoever is beside; without a seam, since no sample is further off than elsewhere."""
    lengths = [1, 34, 35, 90] if most > 1 else [1, 40]
    mels = [mel(frames, run) for run, frames in enumerate(lengths)]
    channels = [Channel() for _ in mels]
    made = [Line(run, SPEAK, AudioParams(), {"frames": channel}) for run, channel in enumerate(channels)]

    def feed(rng: Random) -> None:
        for channel, frames_TM in zip(channels, mels, strict=True):
            if channel.tail == len(frames_TM):
                channel.close("stop")
            else:
                channel.push(channel.tail, list(frames_TM[channel.tail :][: rng.randint(1, 2 * most)]))

    slots = Slots("cpu#1")
    drive(MelVocoder(Flaky(bigvgan(), "piece", 9)).decode_audio, made, slots, seed, most, feed, sound(-1), losses=seed)
    assert slots.counts == (0, 0)
    for line, frames_TM in zip(made, mels, strict=True):
        found = np.array(line.pushed["samples"])
        assert found.dtype == np.float32 and len(found) == HOP * len(frames_TM)
        whole = bigvgan().decode(torch.from_numpy(frames_TM)[None])[0].numpy()
        assert whole.std() > 0.03
        np.testing.assert_allclose(found, whole, rtol=0, atol=1e-5)


def sound(start: int, size: int = 10, /, **changes: Any) -> Row:
    made = AudioStep(start, size, mel(34 + size + 34, 1), False, Draw(0, 0), False, 34)
    return Row(9, "audio_decode", size, 0, (), replace(made, **changes))


def test_rows_in_company_are_rows_alone_to_the_bit() -> None:
    expert, slots = MelVocoder(bigvgan()), Slots("cpu#1")
    rows = [replace(sound(40 + run), run=run) for run in range(3)]
    rows += [sound(0, 30, back=0, last=True, frames=mel(30, 4)), sound(50, 1)]
    for row, found in zip(rows, expert.decode_audio(rows, slots), strict=True):
        np.testing.assert_array_equal(found.items["samples"], expert.decode_audio([row], slots)[0].items["samples"])
    # More rows than are needed change nothing.
    more = mel(78 + 20, 1)
    more[10:88] = rows[0].payload.frames
    (wide,) = expert.decode_audio([sound(44, back=44, frames=tuple(map(list, more)))], slots)
    (narrow,) = expert.decode_audio([sound(44)], slots)
    np.testing.assert_array_equal(wide.items["samples"], narrow.items["samples"])


def test_launched_with_fused_activations_it_is_the_same() -> None:
    """As on a GPU: two batches at once, the Snakes by their kernel's definition."""
    assert folder().config.waves is not None
    expert, slots = MelVocoder(BigVGAN(folder().config.waves, folder().named(WAVES), form="torch")), Slots("gpu#1")
    expert.late = True
    rows = [sound(40), replace(sound(50, 7), run=3)]
    launched = [expert.decode_audio([row], slots) for row in rows]
    for one, other in zip(launched, MelVocoder(bigvgan()).decode_audio(rows, slots), strict=True):
        found = one.collect()[0].items["samples"]
        np.testing.assert_allclose(found, other.items["samples"], rtol=0, atol=1e-5)
        assert found.std() > 0.01


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (sound(-1), "at least one frame"),
        (sound(40, 10, size=0), "at least one frame"),
        (sound(40, back=33), "back=33: at least one frame, with 34 before it or all that are; the card's loop needs behind=34"),
        (sound(20, back=19), "back=19"),
        (sound(20, back=34), "back=34"),
        (sound(40, frames=mel(77, 1)), "77 rows, of which 34 before, leave 33 ahead; 34 are needed where last is false"),
        (sound(40, frames=mel(43, 1), last=True), "leave -1 ahead"),
        (sound(40, frames=mel(78, 1)[:, :15]), r"of shape \(78, 15\); rows of 16 finite numbers"),
        (sound(40, frames=mel(78, 1)[0]), r"of shape \(16,\)"),
        (sound(40, frames=[[1.0] * 16] * 77 + [[1.0]]), "rows of 16 numbers each"),
        (sound(40, frames=[["a"] * 16] * 78), "rows of 16 numbers each"),
        (sound(40, frames=np.full((78, 16), np.nan, np.float32)), "16 finite numbers"),
        (sound(40, frames=()), r"of shape \(0,\)"),
        (replace(step(0, 0), loop="speak"), "op 'decode_audio' needs an AudioStep, got FlowStep"),
    ],
)
def test_frames_that_are_refused(row: Row, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        MelVocoder(bigvgan()).decode_audio([sound(40), row], Slots("cpu#1"))
