"""Every planted bug is caught by the check that it names, and without it that check passes. What caught which: mutants.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import MUTANTS, PACKAGE, Mutant, caught, run


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_is_caught(mutant: Mutant) -> None:
    assert caught(mutant), f"{mutant.check} passes all the same"


@pytest.mark.slow
def test_without_a_bug_the_checks_pass() -> None:
    """In one process, so that what is caught is not the process."""
    checks = sorted({mutant.check for mutant in MUTANTS if not mutant.check.startswith("determinism")})
    assert run(*checks, tree=PACKAGE.parent, seconds=300.0) == ""


def test_every_mutant_can_be_planted(tmp_path: Path) -> None:
    """Text that has moved on must be found again, here in the fast lane."""
    for number, mutant in enumerate(MUTANTS):
        source = (PACKAGE / mutant.file).read_text()
        assert source.count(mutant.old) == 1, f"mutant {mutant.name!r}: its text is no longer once in {mutant.file}"
        compile(source.replace(mutant.old, mutant.new), f"mutant {number}", "exec")
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 50
