"""What every file of the project keeps to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checkout import ROOT, files

LONGEST = 450  # lines: what can be read in one sitting
DATA = {".json", ".jsonl", ".csv", ".tsv", ".svg"}
HERE = re.compile(r"(?<![\w.~/-])/(?:work|root|tmp|home|Users)\b")
UNDONE = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def faults(name: str, text: str) -> list[str]:
    """What is wrong with a file."""
    lines = text.split("\n")
    if Path(name).suffix in DATA or name == "LICENSE":
        return []
    wrong = [f"{name}: {len(lines) - 1} lines"] if len(lines) - 1 > LONGEST else []
    for number, line in enumerate(lines, 1):
        if line.startswith("\t") and Path(name).name != "Makefile":
            wrong.append(f"{name}:{number} tab")
        if HERE.search(line):
            wrong.append(f"{name}:{number} path of one machine")
        if UNDONE.search(line):
            wrong.append(f"{name}:{number} something left undone: do it, or write an issue")
    return wrong


def test_every_file() -> None:
    wrong = []
    for path in files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:  # sound, weights, pictures
            continue
        wrong += faults(str(path.relative_to(ROOT)), text)
    assert wrong == []


@pytest.mark.parametrize(
    "line", ["\tx = 1", "open('/" + "tmp/x')", "# see /" + "work/main", "x = 1  # TO" + "DO: later", "x\n" * (LONGEST + 1)]
)
def test_a_fault_is_found(line: str) -> None:
    assert faults("mutant.py", line)


def test_what_only_looks_like_a_fault() -> None:
    assert faults("fine.py", "omni_runtime/work.py, https://x.org/root/, a/home, ~/tmp\n    x = 1\n") == []


def test_rules_fit_on_one_page() -> None:
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 60
