"""A model is cheap to add (designs/adding-a-model.md): what a family has of its own stays small."""

from __future__ import annotations

import re

from checkout import ROOT

CARD, EXPERTS = 150, 600  # lines


def lines(path: str) -> int:
    return sum(len(found.read_text().splitlines()) for found in ROOT.glob(path))


def test_a_family_is_small() -> None:
    program = (ROOT / "programs" / "omni.py").read_text()
    wired = program.partition("def _by_states(")[2].splitlines()
    assert 6 < len(wired) + lines("cards/qwen2_5_omni.py") <= CARD
    assert 400 < lines("omni_runtime/experts/qwen25_*.py") <= EXPERTS


def test_the_page_tells_the_sizes() -> None:
    page = (ROOT / "designs" / "adding-a-model.md").read_text()
    told = re.search(r"\| experts of the family .*\| (\d+) \| (\d+) \|", page)
    assert told is not None
    assert [int(number) for number in told.groups()] == [lines(f"omni_runtime/experts/{own}_*.py") for own in ("qwen25", "qwen3")]
