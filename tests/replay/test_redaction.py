"""Stand-ins lead to the same decisions, and tell nothing that they need not tell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.loops.clauses import CUT, clause_end
from omni_runtime.loops.text import TextStream
from omni_runtime.replay import Recording, RecordLog, play
from omni_runtime.replay.read import Log
from omni_runtime.replay.redact import error, hidden
from omni_runtime.replay.shape import Mask, shape, shaped
from omni_runtime.sim import Simulation
from omni_runtime.work import Answer, StepResult

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
import toys

SECRET = ("Zebra", "quagga", "okapi")
letters = st.text(st.sampled_from('abcAB01_ .,!?\n"é日。ß🙂�—☃'), max_size=40)


def cut(text: str, sizes: list[int]) -> list[bytes]:
    """The bytes of a text in pieces, of which some end in the middle of a character."""
    data, pieces = text.encode(), []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@settings(deadline=None)
@given(
    letters,
    st.lists(st.integers(0, 5), max_size=12),
    st.lists(st.text("ab é日.�", min_size=1, max_size=4), max_size=3),
    st.binary(),
)
@example("日本", [1, 1, 1, 1], [], b"\xe6")
@example("aab", [1, 1], ["ab"], b"")
@example("🙂a", [2], [], b"\xf0\x9f")
@example("a", [1], ["�"], b"\xe0\x80\xff")
def test_text_comes_out_as_before(text: str, sizes: list[int], stops: list[str], noise: bytes) -> None:
    """Piece by piece as many characters, cut in the same places, stopped at the same piece; malformed bytes included."""
    mask, real, stand_in = Mask(stops), TextStream(tuple(stops)), TextStream(tuple(stops))
    shown = hidden_ = ""
    for piece in [*cut(text, sizes), noise[:1], noise[1:3], *cut(text, sizes[:3]), noise[3:]]:
        if real.stopped:
            break
        a, b = real.feed(piece), stand_in.feed(mask.feed(piece))
        assert (len(a), real.stopped) == (len(b), stand_in.stopped)
        shown, hidden_ = shown + a, hidden_ + b
    a, b = real.end(), stand_in.end()
    assert (len(a), real.stopped) == (len(b), stand_in.stopped)
    shown, hidden_ = shown + a, hidden_ + b
    for longest in (8, 25, 300):
        for closed in (False, True):
            assert clause_end(shown, 0, closed, longest) == clause_end(hidden_, 0, closed, longest)


@settings(deadline=None)
@given(st.text())
def test_text_is_cut_where_it_was(text: str) -> None:
    assert len(shaped(text)) == len(text)
    for at in range(0, len(text), 7):
        assert clause_end(text, at, True, 20) == clause_end(shaped(text), at, True, 20)


def test_every_character_that_cuts_is_kept() -> None:
    assert all(shape(char) == char for char in CUT.pattern if not char.isalnum())
    assert shaped("Zoë: 3.14, 日本語。") == "Xxà: 0.00, 攀攀詀。".replace("à", shape("ë")).replace("攀攀詀", shaped("日本語"))
    assert shape("日") not in "日本語"


def record(path: Path, redact: bool = True) -> None:
    """Requests that share beginnings, with stop strings, samples, speech in clauses, logprobs and an error in the middle."""
    sim = Simulation(cards=(toys.CARD,))
    log = RecordLog(Recording(path, redact=redact), sim.core, [toys.CARD])
    sim.up(SimulatedExecutor("x#1", toys.CARD, blocks=60, reuse=True, fakes={("toy/host", "tokenize"): tokenize}))
    for i in range(24):
        text = f"{SECRET[0]} and {SECRET[1]} live here, in the far south; the {SECRET[2]} does not." * 2
        program = (toys.text, toys.clauses, toys.cascade)[i % 3]()
        more: dict[str, Any] = {"max_tokens": 14, "stop": ("la lo", "日")} if i % 2 else {"logit_bias": {17: 2.0}}
        messages = [{"role": "user", "content": text}]
        sim.submit(program, messages=messages, seed=i % 5, n=1 + i % 2, label=SECRET[0], think={"max_tokens": 30, **more})
        sim.run(until=sim.now + 0.01)
    sim.run()
    log.close()


def tokenize(row: Any, slots: Any) -> StepResult:
    (messages,) = row.payload.inputs["messages"]
    return StepResult(items={"tokens": [ord(char) for char in messages[0]["content"][:24]]})


@pytest.mark.parametrize("redact", [False, True])
def test_a_redacted_log_is_replayed_and_says_nothing(tmp_path: Path, redact: bool) -> None:
    path = tmp_path / "log.jsonl"
    record(path, redact)
    played = play(path)
    played.check()
    assert played.runs == 24 and not played.alive
    text = path.read_text()
    for word in SECRET:
        assert (word in text) is not redact
    assert ('"logit_bias"' in text) is not redact
    tokens = [t for feed in Log(path).feeds() for a in feed.inputs if isinstance(a, Answer) for r in a.results for t in drawn(r)]
    assert all(token >= 1 << 30 or token == 0 for token in tokens) is redact
    assert len(set(tokens)) > 100 or not redact, "equal tokens after other tokens do not look equal"
    ends = [line for line in played.core.story(24) if "ended" in line]
    assert ends


def drawn(result: StepResult) -> list[int]:
    return [*([result.token] if result.token >= 0 else []), *result.items.get("tokens", [])]


def test_shared_beginnings_are_still_shared(tmp_path: Path) -> None:
    """Otherwise nothing would be copied, and the log would diverge; with no shared ones this test says nothing."""
    for redact in (False, True):
        path = tmp_path / f"{redact}.jsonl"
        record(path, redact)
        played = play(path)
        forks = [g.fork for _, o in played.core._log if type(o).__name__ == "Dispatch" for g in o.grants if g.fork is not None]
        assert len(forks) > 3 and played.difference is None


def test_two_logs_have_keys_of_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        record(tmp_path / name)
    a, b = ((tmp_path / name).read_text() for name in ("a", "b"))
    assert a != b


@pytest.mark.parametrize(
    ("value", "stand_in"),
    [
        ("Zebra!", "xxxxxx"),
        (b"ab", b"\0\0"),
        ([1.5, ("a", 3), True, None], [0.0, ("x", 0), False, None]),
        ({"role": "user", "content": [{"text": "ab"}]}, {"role": "xxxx", "content": [{"text": "xx"}]}),
        (np.int64(7), np.int64(0)),
    ],
)
def test_values_of_the_same_size(value: Any, stand_in: Any) -> None:
    assert hidden(value) == stand_in and type(hidden(value)) is type(stand_in)


def test_errors_keep_their_type() -> None:
    assert error("ValueError('Zebra')") == "ValueError" and error("(Zebra)") == "error"
