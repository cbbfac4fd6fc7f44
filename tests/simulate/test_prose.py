"""Made-up text is cut where and as often as the text that was learned from."""

from __future__ import annotations

import pytest

from omni_runtime.loops.clauses import clause_end
from omni_runtime.simulate.prose import VARIANTS, Prose


def cut(text: str) -> list[int]:
    """Lengths of all clauses but the last, which the end of the text cut."""
    found, at = [], 0
    while (end := clause_end(text, at, True, 300)) is not None:
        found.append(end - at)
        at = end
    return found[:-1]


@pytest.mark.parametrize("lengths", [[31.0], [12.0, 60.0, 250.0], [5.0, 9.0]])
def test_clauses_have_the_lengths_that_were_learned(lengths: list[float]) -> None:
    prose = Prose(lengths, [77.0], 4.0)
    found = cut("".join(prose.said[3]))
    assert found[0] == 77
    assert set(found[1:]) == set(map(int, lengths))
    assert len(found) == 256


@pytest.mark.parametrize("per_token", [2.5, 4.4, 9.0])
def test_characters_of_a_token(per_token: float) -> None:
    said = Prose([20.0, 47.0, 90.0], per_token=per_token).said[5]
    assert sum(map(len, said)) / len(said) == pytest.approx(per_token, rel=0.05)


def test_a_text_is_as_long_as_was_asked() -> None:
    prose = Prose(seed=1)
    assert [len(prose.text(run, 333)) for run in range(5)] == [333] * 5
    assert prose.text(1, 400).startswith(prose.text(1, 300))
    assert prose.text(1, 300) != prose.text(2, 300)


def test_requests_say_different_things() -> None:
    prose = Prose([20.0, 47.0, 90.0])
    assert len({prose.text(request, 400) for request in range(VARIANTS)}) == VARIANTS
    assert Prose(seed=1).said != Prose(seed=2).said
    assert Prose(seed=1).said == Prose(seed=1).said
