"""What an answer says: token limits, stop strings, characters over several tokens, and speech of one word."""

from __future__ import annotations

from typing import Any

import pytest
from stage import CARDS, PROGRAMS
from toys import CARD
from watch import Watch, say, scripted

from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.program import Program
from omni_runtime.work import StepResult

FORWARD = ("toy/mot", "forward")


def says(pieces: list[bytes], then: int | None = 0, **options: Any) -> Watch:
    """A world whose thinker says these pieces, and then its stop token (or, with None, one without text)."""
    return Watch(SimulatedExecutor("x", *CARDS, fakes={FORWARD: scripted(pieces, then)}, **options))


# -- Limits of tokens (case 12)


@pytest.mark.parametrize(
    ("stops_at_once", "tokens", "count", "finish"),
    [
        (False, 0, 0, "length"),
        (False, 1, 1, "length"),
        (False, 5, 5, "length"),
        (False, None, 61, "length"),
        (False, 10**9, 61, "length"),
        (True, 0, 0, "length"),
        (True, 1, 1, "stop"),
        (True, None, 1, "stop"),
    ],
)
def test_max_tokens(stops_at_once: bool, tokens: int | None, count: int, finish: str) -> None:
    """None is as many as the context of 64 holds with its prompt of 3."""
    sim = says([] if stops_at_once else [b"x"] * 100)
    handle = say(sim, prompt=3, tokens=tokens)
    absent = sim.submit(PROGRAMS["prompted"], prompt=[1, 2, 3], outputs=("text",)) if tokens is None else None
    sim.finish_all()
    assert handle.ends["text"].finish == finish
    assert handle.ends["text"].usage == {"prompt_tokens": 3, "completion_tokens": count}
    assert handle.text() == ("" if stops_at_once else "x" * count)
    if absent is not None:
        assert absent.ends["text"].usage["completion_tokens"] == min(count, 8), "the card's own default is 8"


@pytest.mark.parametrize("outputs", [("text",), ("audio",), ("text", "audio")])
def test_no_tokens_no_speech(outputs: tuple[str, ...]) -> None:
    sim = Watch(stops=0)
    handle = sim.submit(PROGRAMS["clauses3"], messages="m", outputs=outputs, think={"max_tokens": 0})
    sim.finish_all()
    assert handle.end.reason == "done"
    assert handle.chunks == {}
    assert set(handle.ends) == set(outputs)
    assert handle.end.usage["think"]["completion_tokens"] == 0
    assert handle.end.units["think"] == 0


# -- Stop strings (case 9)


@pytest.mark.parametrize(
    ("pieces", "stop", "shown", "finish"),
    [
        (["DEF", "G", "HI", "J", "K"], ["DEFGHIJ"], [], "stop"),
        (["AB", "DEF", "G", "HI", "J"], ["DEFGHIJ"], ["AB"], "stop"),
        (["DEF", "G", "HI", "X"], ["DEFGHIJ"], ["DEFGHIX"], "stop"),
        (["DEF", "G"], ["DEFGHIJ"], ["DEFG"], "stop"),  # ended by the stop token while a part is held back
        (["a", "bc", "bcd"], ["bcd", "bcde"], ["a", "bc"], "stop"),
        (["a", "b", "c"], ["b", "bc"], ["a"], "stop"),
        (["one STOP two"], ["STOP"], ["one "], "stop"),
        (["x", "☃"], ["☃"], ["x"], "stop"),
        (["no", "thing"], [], ["no", "thing"], "stop"),
    ],
)
def test_stop_strings(pieces: list[str], stop: list[str], shown: list[str], finish: str) -> None:
    sim = says([piece.encode() for piece in pieces])
    handle = say(sim, think={"stop": stop})
    beside = say(sim)
    sim.finish_all()
    assert handle.chunks.get("text", []) == shown
    assert handle.ends["text"].finish == finish
    assert beside.text() == "".join(pieces), "a neighbour without stop strings has it all"


def test_what_is_held_back_comes_out_at_the_token_limit() -> None:
    sim = says([b"DEF", b"G", b"HI"])
    handle = say(sim, tokens=2, think={"stop": "DEFGHIJ"})
    sim.finish_all()
    assert handle.text() == "DEFG"
    assert handle.ends["text"].finish == "length"


def test_a_stop_string_that_ends_with_the_last_token_is_a_stop() -> None:
    sim = says([b"ab", b"cd", b"ef"])
    handle = say(sim, tokens=2, think={"stop": "bcd"})
    sim.finish_all()
    assert handle.text() == "a"
    assert handle.ends["text"].finish == "stop"


def test_a_stop_string_ends_speech_whose_text_nobody_asked_for() -> None:
    sim = says([b"One. ", b"Two. ", b"Three. "])
    texts = []
    for stop in ([], ["Two"]):
        handle = sim.submit(PROGRAMS["clauses3"], messages="m", outputs=("audio",), think={"stop": stop})
        sim.finish_all()
        spoken = [r.payload.inputs["text"][0] for b in sim.batches if b.op == "utter" for r in b.rows if r.run == handle.run]
        texts.append("".join(spoken))
    assert texts == ["One. Two. Three. ", "One. "]


# -- Characters over several tokens (case 13)


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["61", "F09F", "9880", "62"], ["a", "😀", "b"]),
        (["61", "F0", "9F", "98", "80"], ["a", "😀"]),
        (["ED95", "9C", "65CC", "81"], ["한", "e", "\u0301"]),
        (["61", "F09F"], ["a", "\ufffd"]),
        (["FF", "61"], ["\ufffd", "a"]),
    ],
)
@pytest.mark.parametrize("crowd", [1, 3])
def test_characters_over_several_tokens(pieces: list[str], shown: list[str], crowd: int) -> None:
    sim = says([bytes.fromhex(piece) for piece in pieces])
    handles = [say(sim) for _ in range(crowd)]
    sim.finish_all()
    assert [handle.chunks["text"] for handle in handles] == [shown] * crowd


# -- Speech (cases 14, 16)


def granted(sim: Watch, size: int) -> Watch:
    """Batches of the vocoders hold so many frames at the most."""
    allowed = sim.core.scheduler.limits
    for op in ("decode_codes", "decode_audio"):
        allowed["toy/voice", op] = allowed["toy/voice", op].model_copy(update={"size": size})
    return sim


@pytest.mark.parametrize("size", [1, 2, 3, 4, 25])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6])
def test_short_speech_is_spoken(tokens: int, size: int) -> None:
    """Every frame gives its samples, whatever the chunk, if there is one frame or a chunk and one."""
    sim = granted(Watch(stops=0), size)
    handle = sim.submit(
        PROGRAMS["cascade2"], messages="m", outputs=("audio",), think={"max_tokens": tokens}, talk={"max_tokens": tokens}
    )
    sim.finish_all()
    assert handle.end.usage["chant"] == {"frames": tokens, "samples": 2 * tokens}
    assert len(handle.chunks["audio"]) == 2 * tokens
    one = granted(Watch(stops=0), 1000)
    whole = one.submit(
        PROGRAMS["cascade2"], messages="m", outputs=("audio",), think={"max_tokens": tokens}, talk={"max_tokens": tokens}
    )
    one.finish_all()
    assert handle.chunks == whole.chunks


@pytest.mark.parametrize("size", [1, 2, 25])
@pytest.mark.parametrize("word", ["Hi", "Hi.", "Oh no! ", "日。", "A much longer answer, of two clauses."])
def test_one_word_through_the_clauses(word: str, size: int) -> None:
    """The text front end gives three frames a clause here, the last of them marked."""

    def utter(row: Any, slots: Any) -> StepResult:
        return StepResult(items={"frames": [(i, float(i == 2)) for i in range(3)]})

    fakes = {FORWARD: scripted([word[:2].encode(), word[2:].encode()]), ("toy/voice", "utter"): utter}
    sim = granted(Watch(SimulatedExecutor("x", *CARDS, fakes=fakes)), size)
    handle = sim.submit(PROGRAMS["clauses3"], messages="m", outputs=("text", "audio"))
    sim.finish_all()
    clauses = handle.end.usage["utter"]["calls"]
    assert clauses >= 1
    assert handle.text() == word
    assert len(handle.chunks["audio"]) == handle.end.usage["speak"]["samples"] == clauses * 3 * CARD.loops["speak"].hop


def test_sound_comes_before_the_text_is_complete() -> None:
    """All loops of a request advance together: that is what the runtime is for."""
    sim = Watch(stops=0)
    handle = sim.submit(PROGRAMS["cascade2"], messages="m", outputs=("text", "audio"), think={"max_tokens": 30})
    sim.finish_all()
    assert handle.times["audio"][0] < handle.times["text"][8] < handle.times["text"][-1]


def test_a_marked_segment_is_spoken_without_look_ahead() -> None:
    """`speak` looks two frames ahead, but what a mark ends needs nothing that comes after it."""

    def utter(row: Any, slots: Any) -> StepResult:
        return StepResult(items={"frames": [(1, 0.0), (2, 1.0)]})

    fakes = {FORWARD: scripted([b"One. ", b"Two. ", b"Three. "] * 5, None), ("toy/voice", "utter"): utter}
    sim = Watch(SimulatedExecutor("x", *CARDS, fakes=fakes), policy="first_come")
    handle = sim.submit(PROGRAMS["clauses3"], messages="m", outputs=("text", "audio"), think={"max_tokens": 12})
    while not handle.chunks.get("audio"):
        sim.step()
    assert handle.end is None
    frames = [row.payload for batch in sim.batches if batch.op == "decode_audio" for row in batch.rows]
    assert [(f.start, f.size, len(f.frames), f.last) for f in frames] == [(0, 2, 2, False)]


# -- Hand-offs


def cascade(mode: Any, capacity: int | None) -> Program:
    p = Program("p", CARD)
    prompt = p.call("tokenize", p.input("messages"))
    thought = p.loop("think", prompt=prompt)
    talk = p.loop("talk", prompt=prompt, conditioning=p.handoff(thought.hidden, mode, capacity))
    p.output("audio", p.loop("chant", frames=p.handoff(talk.tokens, mode, capacity)).samples)
    return p


def clauses(mode: Any, capacity: int | None) -> Program:
    p = Program("p", CARD)
    thought = p.loop("think", prompt=p.call("tokenize", p.input("messages")))
    utter = p.loop("utter", text=p.handoff(thought.text, mode, capacity))
    p.output("audio", p.loop("speak", frames=p.handoff(utter.frames, mode, capacity)).samples)
    return p


@pytest.mark.parametrize("build", [cascade, clauses])
@pytest.mark.parametrize("seed", range(5))
def test_streamed_or_whole_the_answer_is_the_same(build: Any, seed: int) -> None:
    """Cases 14 and 22: when things arrive, and how many together, is not data."""
    answers = []
    for mode, capacity in (("full", None), ("stream", None), ("stream", 1), ("stream", 3)):
        sim = Watch(stops=31)
        handle = sim.submit(build(mode, capacity), messages="m", seed=seed, think={"max_tokens": 20})
        sim.finish_all()
        assert handle.end.reason == "done"
        answers.append(handle.chunks)
    assert answers[0]["audio"]
    assert all(answer == answers[0] for answer in answers)
