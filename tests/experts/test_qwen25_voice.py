"""The talker of Qwen2.5-Omni as an expert, driven by the loop it is for: whole code sequences are those of the model alone."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from driven import Flaky, Line, drive  # noqa: E402
from talk_driver import Thinker, Told, codes_alone, spec  # noqa: E402
from tiny_qwen25 import folder, talker  # noqa: E402

from omni_runtime.draw import Draw, Edits  # noqa: E402
from omni_runtime.errors import CardError, CheckpointError, RequestError  # noqa: E402
from omni_runtime.experts import qwen25_voice  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.experts.state_voice import StateVoice  # noqa: E402
from omni_runtime.request import TalkParams  # noqa: E402
from omni_runtime.weights.toy_qwen2_5_omni import write_toy_qwen25  # noqa: E402
from omni_runtime.work import AudioStep, Inset, Row, TalkStep  # noqa: E402

torch.set_num_threads(1)
EMBEDDING = folder().tensor("thinker.model.embed_tokens.weight")
BOS = {name: speaker.bos for name, speaker in folder().speakers().items()}
WIDTH, CODES = EMBEDDING.shape[1], 16


def voice(model: Any = None) -> StateVoice:
    return StateVoice(model or talker(), EMBEDDING, BOS)


def told(seed: int, prompt: int, answer: int, who: str = "Chelsie", media: bool = False) -> Told:
    """States as large as the toy thinker's."""
    v_TW = torch.randn(prompt + answer, WIDTH, generator=torch.Generator().manual_seed(seed))
    if not media:
        return Told(v_TW, prompt, None, prompt, who)
    position_3N = np.random.default_rng(seed).integers(0, 2 * prompt, (3, prompt)).astype(np.float32)
    return Told(v_TW, prompt, position_3N, int(position_3N.max()) + 1, who)


HOW: dict[str, Any] = {
    "greedy": {},
    "penalty": {"repetition_penalty": 1.3},
    "drawn": {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "repetition_penalty": 1.05},
}
REQUESTS = [
    (told(1, 30, 7), "greedy"),
    (told(2, 1, 1, "Ethan"), "penalty"),
    (told(3, 23, 40, "Ethan", media=True), "drawn"),
    (told(4, 17, 3, media=True), "penalty"),
]


def draw_of(how: str, seed: int) -> Draw:
    given = dict(HOW[how])
    penalty = given.pop("repetition_penalty", 1.0)
    return Draw(seed, 1, edits=Edits(repetition=penalty) if penalty != 1 else None, **given)


def alone(number: int) -> list[int]:
    one, how = REQUESTS[number]
    return codes_alone(talker(), EMBEDDING, BOS[one.who], one, draw_of(how, number), CODES)


def lines(slots: Slots, speakers: dict[str, str] | None = None) -> tuple[list[Line], list[Thinker]]:
    thinkers = [Thinker(run, one, slots) for run, (one, _) in enumerate(REQUESTS)]
    made = []
    for run, ((one, how), thinker) in enumerate(zip(REQUESTS, thinkers, strict=True)):
        who = (speakers or {}).get(one.who, one.who)
        params = TalkParams(max_frames=CODES, speaker=who, **HOW[how])
        made.append(Line(run, spec(talker()), params, thinker.channels, seed=run))
    return made, thinkers


def same(made: list[Line]) -> None:
    for number, line in enumerate(made):
        assert [frame[0] for frame in line.pushed["codes"]] == alone(number)


@pytest.mark.parametrize("seed", range(12))
def test_codes_are_those_of_the_model_alone(seed: int) -> None:
    """In any steps and company, whenever states come, with refused rows beside, batches that raise, and state that is lost."""
    slots, flaky = Slots("cpu#1"), Flaky(talker(), "talk", 5)
    made, thinkers = lines(slots, {"Ethan": "eTHAN"} if seed % 2 else None)
    bad = Row(77, "talk", 1, 0, (), TalkStep(0, 1, 1, (5,), (), (), (), (), -1, Draw(0, 0), Draw(0, 0), "Ethan"))

    def feed(rng: Random) -> None:
        for thinker in thinkers:
            if rng.random() < 0.5:
                thinker.feed(rng)

    drive(voice(flaky).talk, made, slots, seed, 2 + 4 * (seed % 5), feed, bad, losses=6 * (seed % 2))
    same(made)


def test_the_requests_prove_something() -> None:
    codes = [alone(number) for number in range(len(REQUESTS))]
    assert all(len(set(found)) > 2 for found in codes)
    bare, how = REQUESTS[3]
    for other in (
        Told(bare.v_TW, bare.prompt, bare.position_3N, bare.next + 3, bare.who),
        Told(bare.v_TW, bare.prompt, bare.position_3N, bare.next, "Ethan"),
        Told(torch.cat([bare.v_TW[:-1], bare.v_TW[:1]]), bare.prompt, bare.position_3N, bare.next, bare.who),
    ):
        assert codes_alone(talker(), EMBEDDING, BOS[other.who], other, draw_of(how, 3), CODES) != codes[3]
    assert codes_alone(talker(), EMBEDDING, BOS[bare.who], bare, draw_of("greedy", 3), CODES) != codes[3]


# -- Steps by hand ----------------------------------------------------------------------------------------------------------


def step(start: int, size: int, slots: Slots | None = None, /, **changes: Any) -> Row:
    """Of a prompt of 4 and an answer of 3: states of all of it are one tensor. Frames are 1, 2, 3, ..."""
    ref = (slots or Slots("cpu#1")).keep(Row(0, "think", 1, 0, (), None), "states", 0, torch.ones(7, WIDTH))  # type: ignore[arg-type]
    stop, frames = start + size, range(max(0, start - 6), max(0, start + size - 6))
    text = tuple(-1 if k + 1 < 3 else 5 for k in frames)
    inner = tuple(i for i in (Inset(0, 4, ref, 0), Inset(5, 3, ref, 4)) if i.at < stop and i.at + i.count > start)
    opening = (-1, -1)[max(0, start - 4) : max(0, stop - 4)]
    given = (4, (), inner, opening, tuple((k + 1,) for k in frames), text, stop - 6 if stop >= 6 else -1)
    made = TalkStep(start, size, *given, Draw(0, 1, edits=Edits(repetition=1.3)), Draw(0, 1), "Ethan")
    return Row(3, "talk", size, 0, (), replace(made, **changes))


def test_a_row_that_runs_again_or_lower_counts_nothing_twice() -> None:
    slots, expert = Slots("cpu#1"), voice()
    whole = expert.talk([step(0, 12, slots)], slots)
    state = slots.other(3, "talk")
    c = talker().config
    wanted = [*[c.mask] * 4, c.pad, c.bos, 1, 2, 3, 4, 5, 6]
    assert state.history.ids().tolist() == wanted
    for start, size in ((11, 1), (6, 6), (5, 7), (2, 4), (6, 6), (4, 1), (5, 7), (0, 12)):
        found = expert.talk([step(start, size, slots)], slots)
        assert state.history.ids().tolist() == wanted[: start + size]
        assert state.cache.length == start + size
        if start + size == 12:
            assert found == whole
    assert found[0].items["codes"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (step(0, 3, opening=(-1,)), r"turns, opening, frames, text: \(0, 1, 0, 0\) of each, positions 0 to 3, of 4 before an"),
        (step(0, 4, turns=(1, 2, 3, 4)), r"\(4, 0, 0, 0\) of each"),
        (step(3, 5, frames=((1,),)), r"need \(0, 2, 2, 2\)"),
        (step(3, 5, text=(-1,)), r"need \(0, 2, 2, 2\)"),
        (step(5, 3, before=3), "of 3 before an opening of 2"),
        (step(0, 0), "size=0"),
        (step(-1, 2), "start=-1"),
        (step(3, 3, index=1), "index=1 after position 5; frame k is drawn after position 5 \\+ k"),
        (step(2, 2, index=-2), "index=-2"),
        (step(2, 2, index=0), "index=0"),
        (step(6, 2, frames=((1,), (1, 2))), r"frames: \(1, 2\) as frame 1, 1 codes below"),
        (step(6, 2, frames=((1,), (9999,))), r"frames: \(9999,\) as frame 1"),
        (step(6, 2, frames=((-1,), (1,))), r"frames: \(-1,\) as frame 0"),
        (step(3, 2, opening=(7,)), "opening: 7 where the speaker's mark stands, -1 needed"),
        (step(5, 2, text=(999999,), inner=()), "inner: 0 states for position 5, where no id is told"),
        (step(6, 1, text=(999999,), inner=()), "999999 is not in the thinker's vocabulary"),
        (step(6, 1, text=(-2,), inner=()), "-2 is not in the thinker's vocabulary"),
        (step(6, 1, text=(5,)), "inner: 1 states for position 6, where an id is told"),
        (step(0, 4, inner=()), "inner: 0 states for position 0"),
        (step(2, 2, speaker="Nobody"), "speaker: unknown speaker 'Nobody', known: Chelsie, Ethan"),
        (step(2, 2, speaker="chelsi"), "did you mean 'Chelsie'"),
        (step(2, 2, positions=np.zeros((3, 3), np.float32)), "positions: shape"),
        (Row(3, "talk", 1, 0, (), AudioStep(0, 1, ((0,),), True)), "op 'talk' needs a TalkStep, got AudioStep"),
    ],
)
def test_steps_that_contradict_themselves(row: Row, message: str) -> None:
    """And who is beside them is as before."""
    slots, expert = Slots("cpu#1"), voice()
    ref = slots.keep(Row(0, "think", 1, 0, (), None), "states", 0, torch.ones(7, WIDTH))  # type: ignore[arg-type]
    beside = replace(step(0, 5, slots), run=4)
    expert.talk([beside], slots)
    expert.talk([step(0, 3, slots)], slots)
    states = [slots.other(run, "talk") for run in (3, 4)]
    kept = [(state.history.ids().tolist(), state.cache.length) for state in states]
    with pytest.raises(RequestError, match=message):
        expert.talk([replace(step(2, 5, slots), run=4), row], slots)
    assert [(state.history.ids().tolist(), state.cache.length) for state in states] == kept
    assert ref


def test_states_of_another_model_or_too_few() -> None:
    slots, expert, think = Slots("cpu#1"), voice(), Row(0, "think", 1, 0, (), None)  # type: ignore[arg-type]
    narrow, short = (slots.keep(think, "states", i, torch.ones(shape)) for i, shape in enumerate([(4, WIDTH - 1), (3, WIDTH)]))
    with pytest.raises(RequestError, match=rf"states of shape \(4, {WIDTH - 1}\)"):
        expert.talk([step(0, 4, inner=(Inset(0, 4, narrow),))], slots)
    with pytest.raises(RequestError, match="inner: rows 0 to 4 of 3 states"):
        expert.talk([step(0, 2, inner=(Inset(0, 4, short),))], slots)
    with pytest.raises(RequestError, match="inner: 2 states for position 0, where no id"):
        expert.talk([step(0, 1, inner=(Inset(0, 3, short), Inset(0, 1, short)))], slots)
    with pytest.raises(AssertionError, match="starts at 3, its cache holds 0"):
        expert.talk([step(3, 1, slots)], slots)
    twice = step(0, 4, slots)
    with pytest.raises(AssertionError, match="two rows of one loop"):
        expert.talk([twice, twice], slots)
    assert expert.talk([], slots) == []


def test_rows_beyond_the_last_position_change_nothing() -> None:
    slots, expert, room = Slots("cpu#1"), voice(), talker().config.decoder.positions
    held = expert.talk([step(0, 6, slots)], slots)
    frames, text = tuple((1,) for _ in range(room)), tuple(5 for _ in range(room))
    ref = step(6, 1, slots).payload.inner[0].vectors
    row = step(6, 1, slots, inner=(Inset(0, 4, ref),), size=room, frames=frames, text=text, index=room)
    with pytest.raises(RequestError, match="positions, the model takes"):
        expert.talk([row], slots)
    assert len(slots.other(3, "talk").history) == 6
    assert expert.talk([step(5, 1, slots)], slots) == held


# -- Builders ---------------------------------------------------------------------------------------------------------------

BUILDERS = [qwen25_voice.build, qwen25_voice.build_flow, qwen25_voice.build_vocoder]


def test_build() -> None:
    slots, built = Slots("cpu#1"), qwen25_voice.build({"checkpoint": str(folder().folder), "linear": "plain"}, "cpu")
    assert built.talk([step(0, 12, slots)], slots) == voice().talk([step(0, 12, slots)], slots)
    assert [list(build({"checkpoint": str(folder().folder)}, "cpu").ops) for build in BUILDERS] == [
        ["talk"],
        ["velocity"],
        ["decode_audio"],
    ]


@pytest.mark.parametrize("build", BUILDERS)
def test_options_and_folders_without_a_voice(build: Any, tmp_path: Path) -> None:
    with pytest.raises(CardError, match=r"unknown option 'checkpiont'.*did you mean 'checkpoint'"):
        build({"checkpiont": "x"}, "cpu")
    with pytest.raises(CheckpointError, match="names no checkpoint"):
        build({}, "cpu")
    silent = write_toy_qwen25(tmp_path, {"enable_audio_output": False, "talker_config": None, "token2wav_config": None})
    with pytest.raises(CheckpointError, match="this checkpoint has no voice"):
        build({"checkpoint": str(silent)}, "cpu")
