"""Real weights end to end, every message encoded both ways: a crowd gives what each gives alone; streamed equals staged."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omni_runtime.programs.chat import chat
from omni_runtime.programs.say import say
from omni_runtime.programs.speak import speak

from omni_runtime.errors import RequestCancelled, RequestError, RequestTooLarge
from omni_runtime.runtime import Runtime
from omni_runtime.wav import WavWriter

pytestmark = [pytest.mark.oracle, pytest.mark.torch]

QUESTIONS = [
    "What is the capital of France? Answer in one sentence.",
    "Name three colours.",
    "What is two plus two?",
    "Write a sentence about the sea, with a comma, please.",
    "Say hello in French.",
    "Who wrote Hamlet?",
    "What do bees make?",
    "Count from one to five.",
]


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(list(speak().cards.values()), executor="loopback", threads=1) as made:
        yield made


def ask(runtime: Runtime, at: int, **more: Any) -> Any:
    """Request `at` of the eight: text, text and speech, or speech alone; some are sampled."""
    given: dict[str, Any] = {"messages": QUESTIONS[at], "max_tokens": 12 + 3 * at, "seed": at}
    if at % 4 == 1:
        given |= {"temperature": 0.8, "top_p": 0.9}
    if at % 2:
        return runtime.submit(chat(), outputs=["text", "tokens"], **given, **more)
    return runtime.submit(speak(), outputs=["text", "audio"] if at % 4 == 0 else ["audio"], **given, **more)


def test_eight_mixed_requests_give_what_each_gives_alone(runtime: Runtime) -> None:
    alone = [ask(runtime, at).result(120) for at in range(8)]
    crowd = [handle.result(240) for handle in [ask(runtime, at) for at in range(8)]]
    for at, (one, many) in enumerate(zip(alone, crowd, strict=True)):
        assert one.outputs.keys() == many.outputs.keys()
        assert one.finish == many.finish
        assert one.outputs.get("text") == many.outputs.get("text"), QUESTIONS[at]
        assert one.outputs.get("tokens") == many.outputs.get("tokens"), QUESTIONS[at]
        if "audio" in one.outputs:
            assert len(one.audio) == len(many.audio) > 24_000
            np.testing.assert_allclose(one.audio, many.audio, atol=1e-4)
    assert runtime.idle


def test_together_equals_staged(runtime: Runtime) -> None:
    given: dict[str, Any] = {"messages": QUESTIONS[0], "max_tokens": 20, "seed": 3}
    together = runtime.submit(speak(), **given)
    chunks = [c for c in together if c.output == "audio"]
    staged = runtime.submit(speak(mode="full"), **given).result(120)
    result = together.result()
    assert result.text == staged.text
    assert "Paris" in result.text
    np.testing.assert_allclose(result.audio, staged.audio, atol=1e-4)
    assert chunks[0].start == 0
    assert sum(len(c.samples) for c in chunks) == len(result.audio)
    assert result.usage["speak"]["samples"] == len(result.audio)


def test_sound_file_is_valid_at_every_moment(runtime: Runtime, tmp_path: Path) -> None:
    handle = runtime.submit(speak(), outputs="audio", messages=QUESTIONS[3], max_tokens=30, seed=1)
    path = tmp_path / "answer.wav"
    lengths = []
    with WavWriter(path, handle.sample_rates["audio"]) as wav:
        for chunk in handle:
            wav.write(chunk.samples)
            with wave.open(str(path)) as file:
                lengths.append(file.getnframes())
                assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(handle.result().audio)
    assert path.read_bytes().count(b"RIFF") == 1


@pytest.mark.parametrize("tokens", [0, 1, 2, 3])
def test_short_answers_are_spoken(runtime: Runtime, tokens: int) -> None:
    """Case 16: an answer shorter than every threshold still sounds, and no answer is no sound."""
    result = runtime.submit(speak(), messages=QUESTIONS[2], max_tokens=tokens, seed=1).result(60)
    assert (len(result.audio) > 0) == (tokens > 0)
    assert len(result.audio) % 300 == 0
    assert result.usage["speak"]["samples"] == len(result.audio)


def test_stop_string_and_length(runtime: Runtime) -> None:
    whole = runtime.submit(chat(), outputs="text", messages=QUESTIONS[0], max_tokens=20).result(60)
    cut = runtime.submit(chat(), outputs="text", messages=QUESTIONS[0], max_tokens=20, stop=" is Par").result(60)
    assert cut.text == whole.text[: whole.text.index(" is Par")]
    assert cut.finish == {"text": "stop"}


def test_a_prompt_above_the_context_is_refused(runtime: Runtime) -> None:
    with pytest.raises(RequestTooLarge, match=r"the prompt has \d+ tokens, the context of 8192"):
        runtime.submit(chat(), messages="word " * 9000).result(60)


def test_cancelled_speech_leaves_nothing(runtime: Runtime) -> None:
    handle = runtime.submit(speak(), messages="Tell me a long story about a robot.", max_tokens=200, seed=1)
    for chunk in handle:
        if chunk.samples is not None:
            handle.cancel()
    with pytest.raises(RequestCancelled) as caught:
        handle.result(10)
    assert caught.value.partial.text
    assert runtime.submit(chat(), outputs="text", messages=QUESTIONS[2], max_tokens=3).result(60).text
    assert runtime.idle


def test_speech_parameters(runtime: Runtime) -> None:
    given: dict[str, Any] = {"messages": QUESTIONS[2], "outputs": "audio", "max_tokens": 8, "seed": 1}
    usual = runtime.submit(speak(), **given).result(60)
    fast = runtime.submit(speak(), **given, speed=2.0, voice="heart").result(60)
    assert 0.35 * len(usual.audio) < len(fast.audio) < 0.65 * len(usual.audio)
    for bad in ({"speed": 2.1}, {"speed": 0.4}, {"speed": "fast"}, {"voice": "nobody"}, {"speed": float("nan")}):
        with pytest.raises(RequestError, match=next(iter(bad))):
            runtime.submit(speak(), **given, **bad)


def test_text_of_any_length_and_punctuation_is_spoken(runtime: Runtime) -> None:
    """Case 17: nothing is lost in silence; what cannot be spoken is no sound, and a text beyond the limit is refused."""
    spoken = {
        text: len(runtime.submit(say(), text=text, seed=1).result(120).audio)
        for text in ("", " ", "...!?", "日本語", "🙂", "Yes", "one " * 100, "one " * 200, "a" * 3000)
    }
    assert [spoken[text] for text in ("", " ", "...!?")] == [0, 0, 0]
    assert spoken["Yes"] > 4_000
    assert 1.7 < spoken["one " * 200] / spoken["one " * 100] < 2.3
    assert spoken["a" * 3000] > 24_000
    assert all(samples % 300 == 0 for samples in spoken.values())
    streamed = [c.samples for c in runtime.submit(say(), text="one " * 100, seed=1)]
    assert sum(len(s) for s in streamed if s is not None) == spoken["one " * 100]
    with pytest.raises(RequestError, match="text of 600000 characters"):
        runtime.submit(say(), text="a" * 600_000)


def test_side_inputs_belong_to_the_request(runtime: Runtime) -> None:
    """Case 6: two speakers with parameters of their own, in one batch from the first frame on or staggered, sound as alone."""
    asked = [("Bees make honey, and wax.", 0.7), ("The sea is blue and wide today.", 1.6)]
    alone = [runtime.submit(say(), text=text, speed=speed, seed=at).result(60).audio for at, (text, speed) in enumerate(asked)]
    for order in ((0, 1), (1, 0)):
        for wait in (False, True):
            handles = {}
            for at in order:
                handles[at] = runtime.submit(say(), text=asked[at][0], speed=asked[at][1], seed=at)
                if wait:
                    next(iter(handles[at]))
            for at, handle in handles.items():
                np.testing.assert_allclose(handle.result(60).audio, alone[at], atol=1e-5)
