"""Where a text is cut depends on the text and not on how it arrived."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omni_runtime.loops.clauses import SPEAKABLE, clause_end

LONGEST = 40  # above SHORT, so that commas cut as well
TEXTS = st.text(st.sampled_from('ab日, .。！？!、\n"」)-3'), max_size=120)


def arriving(pieces: list[str], longest: int = LONGEST) -> list[str]:
    """Clauses as a reader finds them who asks after every piece."""
    text, start, clauses = "", 0, []
    for closed, piece in [*((False, p) for p in pieces), (True, "")]:
        text += piece
        while (end := clause_end(text, start, closed, longest)) is not None:
            assert end > start, "an empty clause"
            clauses.append(text[start:end])
            start = end
    assert start == len(text), f"{text[start:]!r} is never spoken"
    return clauses


@settings(max_examples=400, deadline=None, derandomize=True)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 120), max_size=10), longest=st.integers(8, LONGEST))
@example(text="日日。」日", cuts=[4], longest=40)  # a bracket closes the sentence, also if it is the last that has come
@example(text="日。。日", cuts=[3], longest=40)
@example(text="-- " + "a" * 60, cuts=[], longest=40)
def test_any_arrival_gives_the_same_clauses(text: str, cuts: list[int], longest: int) -> None:
    at = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    clauses = arriving([text[a:b] for a, b in pairwise(at)], longest)
    assert clauses == arriving([text] if text else [], longest) == arriving(list(text), longest)
    assert "".join(clauses) == text
    assert all(len(clause) <= longest for clause in clauses)
    for clause in clauses[:-1]:  # where it must be cut anyway, there may be nothing to speak
        assert SPEAKABLE.search(clause) or len(clause) == longest, f"{clause!r} cannot be spoken"


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("Pi is 3.14. Yes!", ["Pi is 3.14.", " Yes!"]),
        ('He said "no." Then he left', ['He said "no."', " Then he left"]),
        ("One, two, three, four, five, six and so on.", ["One, two, three, four, five,", " six and so on."]),
        ("そう。」と言った。", ["そう。」", "と言った。"]),
        ("first line\nsecond", ["first line\n", "second"]),
        ("... well", ["... well"]),
        ("word " * 12, ["word " * 8, "word " * 4]),
        ("x" * 85, ["x" * 40, "x" * 40, "x" * 5]),
        ("", []),
        ("!?", ["!?"]),
    ],
)
def test_where_it_cuts(text: str, clauses: list[str]) -> None:
    assert arriving([text]) == clauses
