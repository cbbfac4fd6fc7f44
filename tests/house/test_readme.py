"""Every Python block of the README runs.

A comment on the line above a block says what it needs: `<!-- needs torch -->`, `<!-- needs weights -->` or `<!-- needs gpu -->`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from checkout import ROOT

MARKS = {"weights": pytest.mark.oracle, "torch": pytest.mark.torch, "gpu": pytest.mark.gpu}
BLOCK = re.compile(r"(?:^<!-- needs (?P<needs>.*?) -->\n)?^```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    line: int
    needs: list[str]
    code: str


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page, with the number of their first line."""
    return [
        Block(text.count("\n", 0, found.start("code")) + 1, (found["needs"] or "").replace(",", " ").split(), found["code"])
        for found in BLOCK.finditer(text)
    ]


def run(block: Block) -> None:
    """Runs a block as a script; a traceback shows the lines of the page."""
    code = compile("\n" * (block.line - 1) + block.code, "README.md", "exec")
    exec(code, {"__name__": "__main__"})


def cases() -> list[Any]:
    found = blocks((ROOT / "README.md").read_text())
    return [pytest.param(b, marks=[MARKS[need] for need in b.needs], id=f"line{b.line}") for b in found]


@pytest.mark.parametrize("block", cases())
def test_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(block)


def test_blocks_are_found_and_can_fail() -> None:
    page = "text\n```python\nx = 1\n```\n<!-- needs weights, torch -->\n```python\n1 / 0\n```\n```bash\nmake\n```\n"
    first, second = blocks(page)
    assert (first.line, first.needs, first.code) == (3, [], "x = 1\n")
    assert (second.line, second.needs) == (7, ["weights", "torch"])
    run(first)
    with pytest.raises(ZeroDivisionError) as caught:
        run(second)
    assert caught.traceback[-1].lineno == 7 - 1  # pytest counts from 0
