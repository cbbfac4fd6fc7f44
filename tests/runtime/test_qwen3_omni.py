"""A tiny Qwen3-Omni through the whole runtime: text tokens and codes equal transformers' `generate`, waves to 1e-4."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from forced import Preempting  # noqa: E402
from omni_oracle import ASKED, CARD, PROGRAM, TOKENS, answer, same, wish  # noqa: E402
from omni_runtime.cards.qwen3_omni import qwen3_omni  # noqa: E402
from omni_runtime.programs.omni import omni  # noqa: E402

from omni_runtime.card import OpLimits  # noqa: E402
from omni_runtime.errors import RequestError  # noqa: E402
from omni_runtime.executors.lineup import lineup  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402
from omni_runtime.weights.toy_qwen3_omni import write_toy_omni  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime([CARD], executor="loopback", threads=1) as made:
        yield made
        assert made.idle


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_the_references(runtime: Runtime, name: str) -> None:
    same(runtime.submit(PROGRAM, **wish(name)).result(60), name)
    assert len(set(answer(name).codes)) > 3, "an answer of equal frames proves nothing"


def test_it_streams_what_it_gives_as_a_whole(runtime: Runtime) -> None:
    handle = runtime.submit(PROGRAM, **wish("image"))
    sound, frames = [], 0
    for chunk in handle:
        if chunk.samples is not None:
            assert chunk.start == sum(map(len, sound))
            sound.append(chunk.samples)
        frames += len(chunk.items) if chunk.output == "codes" else 0
    assert frames == len(answer("image").codes)
    np.testing.assert_allclose(np.concatenate(sound), answer("image").wave, rtol=0, atol=1e-4)


def test_eight_in_flight_are_eight_alone(runtime: Runtime) -> None:
    names = list(ASKED)
    handles = [runtime.submit(PROGRAM, **wish(name)) for name in names]
    for name, handle in zip(names, handles, strict=True):
        same(handle.result(120), name)


def test_preempted_after_every_unit_that_made_progress() -> None:
    names = ["text", "audio", "loud"]
    forced = [Preempting(executor) for executor in lineup([CARD], "loopback", threads=1)]
    with Runtime([CARD], executors=forced) as runtime:
        handles = [runtime.submit(PROGRAM, **wish(name)) for name in names]
        for name, handle in zip(names, handles, strict=True):
            result = handle.result(120)
            assert result.rebuilt > 0, "nothing was lost"
            same(result, name)
        assert sum(executor.preempted for executor in forced) > 40
        assert runtime.idle


def test_each_part_on_an_executor_of_its_own() -> None:
    parts = {part: [f"qwen3_omni/{part}"] for part in ("talker", "vocoder")}
    parts["thinker"] = ["qwen3_omni/thinker", "qwen3_omni/hearing", "qwen3_omni/seeing"]
    with Runtime([CARD], executor="loopback", workers=parts, threads=1) as runtime:
        handles = {name: runtime.submit(PROGRAM, **wish(name)) for name in ASKED}
        for name, handle in handles.items():
            same(handle.result(120), name)


def test_an_answer_of_nothing_has_no_sound(runtime: Runtime) -> None:
    """The first token ends the answer: it is never fed, so never spoken."""
    given = wish("text")
    given["think"] = given["think"] | {"stop_tokens": [answer("text").tokens[0]]}
    result = runtime.submit(PROGRAM, **given).result(60)
    assert len(result.outputs["tokens"]) == 1
    assert len(result.audio) == 0 and not result.outputs["codes"]
    assert result.finish == {"text": "stop", "tokens": "stop", "logprobs": "stop", "audio": "done", "codes": "done"}


@pytest.mark.parametrize("size", [1, 4, 25])
@pytest.mark.parametrize("words", [1, 2, 3])
def test_an_answer_of_a_word_has_its_sound(words: int, size: int) -> None:
    """Case 16, whatever the largest chunk of the vocoder."""
    vocoder = CARD.experts["vocoder"].model_copy(update={"ops": {"decode_audio": OpLimits(units=2, size=size)}})
    card = CARD.model_copy(update={"experts": {**CARD.experts, "vocoder": vocoder}})
    with Runtime([card], executor="loopback", threads=1) as runtime:
        result = runtime.submit(omni(card), **wish(f"words{words}")).result(60)
        same(result, f"words{words}")
        assert len(result.outputs["tokens"]) == words + 1, "and the one that ends it"
        assert len(result.audio) > 0
        for frames in (1, 2, 3):
            result = runtime.submit(omni(card), **wish(f"words{words}") | {"talk": {"max_frames": frames}}).result(60)
            assert len(result.audio) == frames * CARD.loops["speak"].hop - CARD.loops["speak"].lag


def test_a_long_answer(runtime: Runtime) -> None:
    result = runtime.submit(PROGRAM, **wish("long")).result(120)
    same(result, "long")
    assert len(result.outputs["codes"]) == 601 and result.finish["codes"] == "stop"


def test_a_talker_that_does_not_stop_is_bounded_and_says_so(runtime: Runtime) -> None:
    given = wish("video")
    given["think"] = given["think"] | {"max_tokens": 20}
    given["talk"] = given["talk"] | {"max_frames": 40}
    result = runtime.submit(PROGRAM, **given).result(60)
    assert len(result.outputs["codes"]) == 40 and result.finish["codes"] == "length"
    vocoder = CARD.loops["speak"]
    assert len(result.audio) == 40 * vocoder.hop - vocoder.lag
    assert result.usage["talk"]["frames"] == 40 and result.usage["speak"]["samples"] == len(result.audio)
    assert runtime.submit(PROGRAM, **wish("text") | {"talk": {"max_frames": 0}}).result(60).outputs["codes"] == []


def test_draws_are_of_the_seed_alone(runtime: Runtime) -> None:
    """The makers' parameters by default; the same alone and in company."""
    given = {"messages": "Hello", "think": {"max_tokens": 6, "stop_tokens": [TOKENS.im_end]}, "talk": {"max_frames": 9}}
    alone = [runtime.submit(PROGRAM, **given, seed=seed).result(60) for seed in (1, 2)]
    handles = [runtime.submit(PROGRAM, **given, seed=seed) for seed in (1, 2, 1, 3)]
    crowd = [handle.result(60) for handle in handles]
    assert [one.outputs["codes"] for one in crowd[:3]] == [
        alone[0].outputs["codes"],
        *(one.outputs["codes"] for one in alone[::-1]),
    ]
    assert alone[0].outputs["codes"] != alone[1].outputs["codes"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"talk": {"speaker": "Nobody"}}, "talk: speaker: unknown speaker 'Nobody'"),
        ({"talk": {"predict": {"temperature": -1.0}}}, "temperature"),
        ({"talk": {"max_frames": -1}}, "max_frames"),
        ({"talk": {"max_token": 1}}, "unknown field 'max_token'"),
    ],
)
def test_wrong_wishes_are_refused_at_submit(runtime: Runtime, more: dict[str, dict[str, object]], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        runtime.submit(PROGRAM, **wish("text") | more)


def test_a_folder_without_a_voice_gives_text_and_says_what_it_lacks(tmp_path: Path) -> None:
    silent = {"enable_audio_output": False, "talker_config": None, "code2wav_config": None}
    card = qwen3_omni(str(write_toy_omni(tmp_path / "mute", silent, seed=3)))
    program = omni(card)
    with Runtime([card], executor="loopback", threads=1) as runtime:
        result = runtime.submit(program, messages="Hello", max_tokens=5).result(60)
        assert list(result.outputs) == ["text", "tokens", "logprobs"] and len(result.outputs["tokens"]) == 5
        with pytest.raises(RequestError, match="no output 'audio': the checkpoint has no voice"):
            runtime.submit(program, messages="Hello", outputs="audio")
