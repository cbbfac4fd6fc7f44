"""Made-up text is cut where and as often as the text that was learned from."""

from __future__ import annotations

import itertools

import pytest

from omni_runtime.loops.clauses import clause_end
from omni_runtime.simulate.prose import Prose


def cut(text: str) -> list[int]:
    """Lengths of all clauses but the last, which the end of the text cut."""
    found, at = [], 0
    while (end := clause_end(text, at, True, 300)) is not None:
        found.append(end - at)
        at = end
    return found[:-1]


@pytest.mark.parametrize("lengths", [[31.0], [12.0, 60.0, 250.0], [5.0, 9.0]])
def test_clauses_have_the_lengths_that_were_learned(lengths: list[float]) -> None:
    prose = Prose(lengths, 4.0)
    found = cut("".join(prose.pieces))
    assert set(found) == set(map(int, lengths))
    assert len(found) == 255


@pytest.mark.parametrize("per_token", [2.5, 4.4, 9.0])
def test_characters_of_a_token(per_token: float) -> None:
    prose = Prose([20.0, 47.0, 90.0], per_token)
    assert sum(map(len, prose.pieces)) / len(prose.pieces) == pytest.approx(per_token, rel=0.05)


def test_a_text_is_as_long_as_was_asked() -> None:
    prose = Prose(seed=1)
    assert [len(prose.text(run, 333)) for run in range(5)] == [333] * 5
    assert prose.text(1, 400).startswith(prose.text(1, 300))
    assert prose.text(1, 300) != prose.text(2, 300)


def test_requests_begin_everywhere() -> None:
    prose = Prose([20.0, 47.0, 90.0])
    starts = sorted(prose.start(run) for run in range(200))
    assert max(b - a for a, b in itertools.pairwise(starts)) < len(prose.pieces) / 40
    assert set(starts) <= set(prose.starts)
