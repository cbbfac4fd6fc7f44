"""A tiny Qwen2.5-Omni through the whole runtime: text tokens and codes equal transformers' `generate`; so does the wave where all
of it is one chunk, and a stream is what its chunks are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from forced import Preempting  # noqa: E402
from omni25_oracle import ASKED, CARD, END, PROGRAM, WHOLE, answer, log_spectral_distance, same, stream, wish  # noqa: E402
from omni_runtime.cards.qwen2_5_omni import qwen2_5_omni  # noqa: E402
from omni_runtime.programs.omni import omni  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from omni_runtime.card import OpLimits  # noqa: E402
from omni_runtime.errors import RequestError, RequestFailed  # noqa: E402
from omni_runtime.executors.lineup import lineup  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402
from omni_runtime.weights.toy_qwen2_5_omni import write_toy_qwen25  # noqa: E402

torch.set_num_threads(1)
SAMPLES = CARD.loops["flow"].repeats * CARD.loops["speak"].hop  # of a code


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime([CARD], executor="loopback", threads=1) as made:
        yield made
        assert made.idle


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_the_references(runtime: Runtime, name: str) -> None:
    same(runtime.submit(PROGRAM, **wish(name)).result(60), name)
    assert len(set(answer(name).codes)) > 2, "an answer of equal codes proves nothing"


def test_in_one_chunk_its_wave_is_the_references() -> None:
    with Runtime([WHOLE], executor="loopback", threads=1) as runtime:
        for name in (*ASKED, "lasting"):
            same(runtime.submit(omni(WHOLE), **wish(name)).result(60), name, whole=True)


def test_a_stream_begins_early_and_is_near_the_whole(runtime: Runtime) -> None:
    """Sound comes when three blocks of codes are there; what it then cannot know moves it by little, and least where chunks
    meet: a seam would be a click there."""
    handle = runtime.submit(PROGRAM, **wish("lasting"))
    sound, codes, first = [], 0, 0
    for chunk in handle:
        if chunk.samples is not None:
            assert chunk.start == sum(map(len, sound))
            first = first or codes
            sound.append(chunk.samples)
        codes += len(chunk.items) if chunk.output == "codes" else 0
    assert codes == 150 and first < 60, f"its first sound came after {first} of {codes} codes"
    found, want = np.concatenate(sound), answer("lasting").wave
    np.testing.assert_allclose(found, stream("lasting"), rtol=0, atol=1e-4)
    error = found - want
    decibel = 20 * np.log10(np.sqrt((error**2).mean() / (want**2).mean()))
    assert decibel < -40, f"{decibel:.1f} dB of the reference"
    assert log_spectral_distance(torch.tensor(found), torch.tensor(want)) < 0.5
    borders = np.cumsum(np.array(CARD.loops["flow"].chunks)) * CARD.loops["flow"].block * CARD.loops["speak"].hop
    steps = np.abs(np.diff(found))
    for border in borders[borders < len(found) - 240]:
        near = np.abs(np.diff(want))[border - 240 : border + 240]
        assert steps[border - 3 : border + 3].max() <= near.max() * 1.05, f"a click at sample {border}"


def test_eight_in_flight_are_eight_alone(runtime: Runtime) -> None:
    handles = {name: runtime.submit(PROGRAM, **wish(name)) for name in ASKED}
    for name, handle in handles.items():
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
    parts = {part: [f"qwen2_5_omni/{part}"] for part in ("talker", "flow", "vocoder")}
    parts["thinker"] = ["qwen2_5_omni/thinker", "qwen2_5_omni/hearing", "qwen2_5_omni/seeing"]
    with Runtime([CARD], executor="loopback", workers=parts, threads=1) as runtime:
        handles = {name: runtime.submit(PROGRAM, **wish(name)) for name in ASKED}
        for name, handle in handles.items():
            same(handle.result(120), name)


def test_an_answer_of_nothing_has_no_sound(runtime: Runtime) -> None:
    """The first token ends the answer: it is never fed, so never spoken. The reference raises here."""
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
        assert len(result.audio) == len(result.outputs["codes"]) * SAMPLES > 0
        for frames in (1, 2, 3):
            result = runtime.submit(omni(card), **wish(f"words{words}") | {"talk": {"max_frames": frames}}).result(60)
            assert len(result.audio) == frames * SAMPLES


def test_a_long_answer(runtime: Runtime) -> None:
    result = runtime.submit(PROGRAM, **wish("long")).result(120)
    same(result, "long")
    assert len(result.outputs["tokens"]) == 300 and result.finish["codes"] == "stop"


def test_a_talker_that_does_not_stop_is_bounded_and_says_so(runtime: Runtime) -> None:
    given = wish("video")
    given["think"] = given["think"] | {"max_tokens": 20}
    given["talk"] = given["talk"] | {"max_frames": 40}
    result = runtime.submit(PROGRAM, **given).result(60)
    assert len(result.outputs["codes"]) == 40 and result.finish["codes"] == "length"
    assert len(result.audio) == 40 * SAMPLES
    assert result.usage["talk"]["frames"] == 40 and result.usage["speak"]["samples"] == len(result.audio)
    assert result.usage["flow"]["frames"] == 80
    assert runtime.submit(PROGRAM, **wish("text") | {"talk": {"max_frames": 0}}).result(60).outputs["codes"] == []


def test_draws_are_of_the_seed_alone(runtime: Runtime) -> None:
    """The makers' parameters by default; the same alone and in company, to the sample."""
    given = {"messages": "Hello", "think": {"max_tokens": 6, "stop_tokens": [END]}, "talk": {"max_frames": 9}}
    alone = [runtime.submit(PROGRAM, **given, seed=seed).result(60) for seed in (1, 2)]
    handles = [runtime.submit(PROGRAM, **given, seed=seed) for seed in (1, 2, 1, 3)]
    crowd = [handle.result(60) for handle in handles]
    for one, other in zip(crowd[:3], [*alone, alone[0]], strict=True):
        assert one.outputs["codes"] == other.outputs["codes"]
        np.testing.assert_allclose(one.audio, other.audio, rtol=0, atol=1e-5)
    assert alone[0].outputs["codes"] != alone[1].outputs["codes"]


def test_parameters_of_the_flow_are_heard(runtime: Runtime) -> None:
    def sound(**flow: float) -> np.ndarray:
        return runtime.submit(PROGRAM, **wish("text") | {"flow": {"num_steps": 4} | flow}).result(60).audio

    usual = sound()
    assert len(usual) == len(sound(guidance_scale=0.0))
    for other in ({"guidance_scale": 0.0}, {"guidance_scale": 2.0}, {"num_steps": 3}, {"sway_coefficient": 0.0}):
        assert np.abs(sound(**other) - usual).max() > 1e-4, other


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"talk": {"speaker": "Nobody"}}, "talk: speaker: unknown speaker 'Nobody'"),
        ({"flow": {"num_steps": 1}}, "num_steps"),
        ({"flow": {"guidance_scale": -1.0}}, "guidance_scale"),
        ({"flow": {"sway_coefficient": 3.0}}, "sway_coefficient"),
        ({"talk": {"max_frames": -1}}, "max_frames"),
        ({"talk": {"predict": {"temperature": 0.0}}}, "talk: predict: this talker's frames have one code"),
        ({"flow": {"steps": 1}}, "unknown field 'steps'"),
    ],
)
def test_wrong_wishes_are_refused_at_submit(runtime: Runtime, more: dict[str, dict[str, object]], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        runtime.submit(PROGRAM, **wish("text") | more)


def test_a_folder_without_a_voice_gives_text_and_says_what_it_lacks(tmp_path: Path) -> None:
    silent = {"enable_audio_output": False, "talker_config": None, "token2wav_config": None}
    card = qwen2_5_omni(str(write_toy_qwen25(tmp_path / "mute", silent, seed=3)))
    program = omni(card)
    with Runtime([card], executor="loopback", threads=1) as runtime:
        result = runtime.submit(program, messages="Hello", max_tokens=5).result(60)
        assert list(result.outputs) == ["text", "tokens", "logprobs"] and len(result.outputs["tokens"]) == 5
        with pytest.raises(RequestError, match="no output 'audio': the checkpoint has no voice"):
            runtime.submit(program, messages="Hello", outputs="audio")


@pytest.mark.parametrize(
    ("tensor", "said"),
    [("bigvgan_model.conv_post.weight", "not all samples are numbers"), ("dit_model.proj_out.bias", "frames 0 to")],
)
def test_a_voice_that_gives_no_numbers_is_told(tmp_path: Path, tensor: str, said: str) -> None:
    """All of the sound was NaN, and the request was done."""
    folder = write_toy_qwen25(tmp_path / "bad", seed=3, shards=1)
    tensors = load_file(folder / "model.safetensors")
    tensors[f"token2wav.code2wav_{tensor}"] *= float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    card = qwen2_5_omni(str(folder))
    with Runtime([card], executor="loopback", threads=1) as runtime:
        with pytest.raises(RequestFailed, match=said):
            runtime.submit(omni(card), messages="Hello", max_tokens=5).result(60)
        assert runtime.submit(omni(card), messages="Hello", outputs="text", max_tokens=5).result(60).text
