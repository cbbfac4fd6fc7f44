"""Whatever text comes, what can be spoken of it is spoken, in order."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("hibari")
pytest.importorskip("onnxruntime")

from omni_runtime.errors import CardError, MissingExtra, RequestError
from omni_runtime.experts import hibari_phonemes, hibari_talker
from omni_runtime.experts.hibari_phonemes import LIMIT, cut
from omni_runtime.experts.hibari_talker import HibariTalker
from omni_runtime.experts.slots import Slots
from omni_runtime.work import AudioStep, CallStep, Row

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def talker() -> HibariTalker:
    return hibari_talker.build({}, "cpu")


def call(text: object, run: int = 1, **params: object) -> Row:
    return Row(run, "talk", 1, 0, (), CallStep(0, {"text": (text,)}, {}, params))


def test_a_sentence_is_one_segment(talker: HibariTalker) -> None:
    frames = talker.speak([call("Hello there.")], Slots("a"))[0].items["frames"]
    assert frames.dtype == np.float32
    assert frames.shape[1] == 132
    assert 60 < len(frames) < 160  # 0.75 to 2 s
    assert frames[:, 131].tolist() == [0.0] * (len(frames) - 1) + [1.0]
    assert np.allclose(frames[:, 128], np.log1p(np.maximum(frames[:, 130], 0)) / 5, atol=1e-5)
    assert 100 < np.median(frames[frames[:, 130] > 40, 130]) < 300  # a woman's voice, Hz


def test_frames_are_what_hibari_decodes(talker: HibariTalker) -> None:
    """The whole graph on the same ids has the same number of frames, and the same pitch but for the rounding of its 8-bit parts.

    Measured: 0.35 Hz. onnxruntime fuses the whole graph otherwise than our part of it, and an ulp can tip an 8-bit number.
    """
    from hibari import Hibari

    whole = Hibari()
    for text in ["The capital of France is Paris, and 3 of 4 people know it.", "Dr. Smith asked: why?"]:
        (phonemes,) = whole.phonemize(text)
        ids = np.array([whole.ids(phonemes)], np.int64)
        (hz,) = whole.sess.run(["f0"], {"ids": ids, "speed": np.array([1.0], np.float32)})
        frames = talker.frames(text)
        assert len(frames) == hz.shape[1]
        assert np.abs(frames[:, 130] - hz[0]).max() < 2


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n", "...", "?!", "—", "“”", "😀😀", "你好，世界", "中" * 2000, "\x00", "(" * 2100, "'"]
)
def test_nothing_to_say_is_no_frames(talker: HibariTalker, text: str) -> None:
    assert talker.frames(text).shape == (0, 132)


@pytest.mark.parametrize(
    ("text", "at_least"),
    [
        ("x" * 3000, 8),
        ("lorem" * 600, 6),
        ("1" * 3000, 20),
        ("hello " * 333, 4),
        ("a-" * 1000, 2),
        ("aB" * 1000, 5),
        ("http://example.com/" + "abc/def?" * 40, 1),
        ("One. Two! Three?", 3),
        ("你好 hello 世界", 1),
        ("ＦＵＬＬ　ｗｉｄｔｈ。", 1),
        ("e\u0301te\u0301 \u200b &", 1),
        ("[a](/日本/) but this", 1),
    ],
    ids=lambda value: str(value)[:12],
)
def test_odd_texts_are_spoken(talker: HibariTalker, text: str, at_least: int) -> None:
    pieces = talker._phonemes.pieces(text)
    assert len(pieces) >= at_least
    assert max(map(len, pieces)) <= LIMIT
    if len(text) < 100:
        frames = talker.frames(text)
        assert frames[:, 131].sum() == len(pieces)
        assert frames[-1, 131] == 1


def test_long_text_is_said_word_for_word_in_order(talker: HibariTalker) -> None:
    """2,000 characters without punctuation: every word, once, where it stood."""
    words = ["one", "two", "three", "four", "five", "six", "seven"] * 60
    read = " ".join(talker._phonemes.pieces(" ".join(words))).split()
    assert read == [talker._phonemes.pieces(word)[0] for word in words]


def test_a_long_word_is_read_to_its_end(talker: HibariTalker) -> None:
    """hibari itself reads 24 letters of it."""
    (piece,) = talker._phonemes.pieces("zaborunatelifokamideposu" * 2 + "zzgleph")
    (head,) = talker._phonemes.pieces("zaborunatelifokamideposu")
    assert len(piece) > 2 * len(head)


def test_cuts() -> None:
    text = "aa bb, cc dd. ee ff gg"
    assert list(cut(text, 100)) == [text]
    assert list(cut(text, 15)) == ["aa bb, cc dd.", "ee ff gg"]
    assert list(cut(text, 8)) == ["aa bb,", "cc dd.", "ee ff gg"]
    assert list(cut("abcdefghij", 4)) == ["abcd", "efgh", "ij"]
    assert list(cut("", 4)) == []


def test_the_same_text_gives_the_same_frames_in_any_company(talker: HibariTalker) -> None:
    alone = talker.speak([call("The same answer.")], Slots("a"))[0].items["frames"]
    rows = [call("Other words, many more of them.", 2), call("The same answer.", 3), call("...", 4)]
    crowd = [result.items["frames"] for result in talker.speak(rows, Slots("a"))]
    assert np.array_equal(crowd[1], alone)
    assert len(crowd[2]) == 0


def test_speed(talker: HibariTalker) -> None:
    slow, usual, fast = (
        len(talker.speak([call("How fast is it?", speed=speed)], Slots("a"))[0].items["frames"]) for speed in (0.5, 1.0, 2)
    )
    assert slow > 1.7 * usual > 2.5 * fast


def test_wrong_calls_are_refused(talker: HibariTalker) -> None:
    slots = Slots("a")
    for bad, message in [
        (call("a", speed=3), "speed=3.*0.5 to 2.0"),
        (call("a", speed=float("nan")), "speed=nan"),
        (call("a", speed="1"), "speed='1'"),
        (call("a", sped=1.0), "did you mean 'speed'"),
        (call(b"a"), "bytes"),
        (Row(1, "talk", 1, 0, (), CallStep(0, {}, {}, {})), "0 items"),
        (Row(1, "talk", 1, 0, (), AudioStep(0, 1, (), True)), "CallStep, not AudioStep"),
    ]:
        with pytest.raises(RequestError, match=message):
            talker.speak([call("fine"), bad], slots)
    assert slots.counts == (0, 0)


def test_wrong_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for options, message in [
        ({"thread": 1}, "did you mean 'threads'"),
        ({"threads": 0}, "threads=0"),
        ({"model": 1}, "model=1"),
    ]:
        with pytest.raises(CardError, match=message):
            hibari_talker.build(options, "cpu")
    monkeypatch.setitem(__import__("sys").modules, "hibari.g2p", None)
    with pytest.raises(MissingExtra, match=r"pip install 'omni_runtime\[speech\]'"):
        hibari_phonemes.Phonemes(())
