"""The host cost of a unit in Python calls: the same on every machine, so it can be held by a test. Time is in benchmarks/."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import overhead


@pytest.mark.parametrize(("program", "most"), [(overhead.text_program(), 20), (overhead.speech_program(), 50)])
def test_calls_a_unit(program: overhead.Program, most: int) -> None:
    """Found 13.3 (text) and 36.5 (speech) on 2026-11-29; the trial of the contracts needed about 98."""
    python, _ = overhead.calls(program, live=64, units=1024)
    assert 1 < python <= most
    assert python == overhead.calls(program, live=64, units=1024)[0], "it is the same every time"
