"""Text that may be shown does not depend on how its bytes arrived."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omni_runtime.loops.text import TextStream

LETTERS = st.text("abcé日", min_size=1, max_size=4)  # few letters, so that stop strings are found


def cut(whole: bytes, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The definition: character by character, until a stop string is complete."""
    text = ""
    for character in whole.decode("utf-8", "replace"):
        text += character
        ended = [stop for stop in stops if text.endswith(stop)]
        if ended:
            return text[: -len(max(ended, key=len))], True
    return text, False


def stream(pieces: list[bytes], stops: tuple[str, ...]) -> tuple[list[str], bool]:
    found = TextStream(stops)
    shown = []
    for piece in pieces:
        shown.append(found.feed(piece))
        if found.stopped:
            break
    return [*shown, found.end()], found.stopped


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    whole=st.one_of(st.binary(max_size=24), st.text("abcé日☃😀", max_size=16).map(str.encode)),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    stops=st.lists(LETTERS, max_size=3).map(tuple),
)
@example(whole=b"abcd", cuts=[3], stops=("abcd", "bc"))  # "bc" is complete first, also if all arrives at once
@example(whole=b"abcd", cuts=[], stops=("abcd", "bc"))
@example(whole="é".encode(), cuts=[1], stops=("é",))
@example(whole=b"a\xe6", cuts=[2], stops=("\ufffd",))  # a cut character may itself be asked for
def test_any_split_gives_the_same_text(whole: bytes, cuts: list[int], stops: tuple[str, ...]) -> None:
    at = sorted({0, len(whole), *(c for c in cuts if c < len(whole))})
    pieces = [whole[a:b] for a, b in pairwise(at)]
    shown, stopped = stream(pieces, stops)
    assert ("".join(shown), stopped) == cut(whole, stops)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=st.text("abcdé日", max_size=16), stops=st.lists(LETTERS, min_size=1, max_size=3).map(tuple))
def test_what_was_shown_is_never_the_beginning_of_a_stop_string(text: str, stops: tuple[str, ...]) -> None:
    """And nothing is held back longer than it may still become one."""
    found, shown = TextStream(stops), ""
    for at, character in enumerate(text, 1):
        shown += found.feed(character.encode())
        if found.stopped:
            break
        held = text[len(shown) : at]
        assert text.startswith(shown)
        assert not held or any(stop.startswith(held) for stop in stops), f"{held!r} is held back for nothing"
        assert not any(shown.endswith(stop[:n]) for stop in stops for n in range(1, len(stop)) if held == ""), shown


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["F0", "9F98", "80"], ["", "", "😀", ""]),
        (["61", "ED95", "9C62"], ["a", "", "한b", ""]),
        (["F09F98"], ["", "\ufffd"]),
        (["FF61"], ["\ufffda", ""]),
    ],
)
def test_no_chunk_holds_a_part_of_a_character(pieces: list[str], shown: list[str]) -> None:
    assert stream([bytes.fromhex(piece) for piece in pieces], ())[0] == shown


def test_nothing_comes_after_the_stop() -> None:
    found = TextStream(("b",))
    assert found.feed(b"ab\xf0") == "a"
    assert found.stopped
    assert found.end() == ""


def cut_late(pieces: list[bytes], stops: tuple[str, ...], least: int) -> str:
    """The definition of a least number: a stop string counts if its last character comes with piece number `least` or later."""
    text, ends, size = "", [], 0
    for piece in pieces:
        size += len(piece)
        ends.append(size)
    for character in b"".join(pieces).decode():
        text += character
        number = next(i for i, end in enumerate(ends, 1) if end >= len(text.encode()))
        ended = [stop for stop in stops if text.endswith(stop)]
        if ended and number >= least:
            return text[: -len(max(ended, key=len))]
    return text


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    whole=st.text("abcé", max_size=16).map(str.encode),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    stops=st.lists(LETTERS, min_size=1, max_size=3).map(tuple),
    least=st.integers(0, 8),
)
@example(whole=b"abc", cuts=[2], stops=("b", "abc"), least=2)  # "b" was complete too early, and is held back for "abc"
@example(whole=b"abx", cuts=[2], stops=("b", "abc"), least=2)
@example(whole=b"aab", cuts=[1, 2], stops=("aa", "ab"), least=3)
def test_no_stop_string_before_the_least_piece(whole: bytes, cuts: list[int], stops: tuple[str, ...], least: int) -> None:
    at = sorted({0, len(whole), *(c for c in cuts if c < len(whole))})
    pieces = [whole[a:b] for a, b in pairwise(at)]
    found, shown = TextStream(stops), ""
    for number, piece in enumerate(pieces, 1):
        shown += found.feed(piece, number < least)
        if found.stopped:
            break
    assert shown + found.end() == cut_late(pieces, stops, least)
