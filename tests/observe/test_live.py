"""The live view: what it says, and that streamed text comes out of it whole."""

from __future__ import annotations

import io
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from rich.console import Console
from scenes import CARD, PROGRAMS, device, host

from omni_runtime.errors import MissingExtra, RequestError
from omni_runtime.observe.live import LiveView, fold, possible
from omni_runtime.observe.recorder import LoopNow, Recorder
from omni_runtime.observe.status import Rates, Status, left_of
from omni_runtime.observe.watch import Watch
from omni_runtime.sim import Simulation


class Terminal(io.StringIO):
    """What a terminal shows of what is written to it: rows above the screen are kept, colours are not."""

    def __init__(self, width: int, height: int) -> None:
        super().__init__()
        self.width, self.height = width, height
        self.rows: list[str] = [""]
        self.soft: set[int] = set()  # rows that go on in the next one, since the line was longer than the terminal
        self.y = self.x = 0
        self.top_seen = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|.|\n", text, re.DOTALL):
            if part == "\n":
                self.y, self.x = self.y + 1, 0
            elif part == "\r":
                self.x = 0
            elif part.startswith("\x1b["):
                self._control(part[2:-1], part[-1])
            else:
                if self.x == self.width:
                    self.soft.add(self.y)
                    self.y, self.x = self.y + 1, 0
                row = self._row()
                self.rows[self.y] = row[: self.x].ljust(self.x) + part + row[self.x + 1 :]
                self.x += 1
            self._row()
        return len(text)

    def _row(self) -> str:
        while len(self.rows) <= self.y:
            self.rows.append("")
        return self.rows[self.y]

    def _control(self, given: str, what: str) -> None:
        n = int(given) if given.isdigit() else 1
        if what == "A":
            top = max(0, len(self.rows) - self.height)
            assert self.y - n >= top, "the cursor cannot go above the screen: what is there could not be drawn again"
            self.y -= n
        elif what == "K":
            self.rows[self.y] = "" if given == "2" else self.rows[self.y][: self.x]
            self.soft.discard(self.y)

    @property
    def text(self) -> str:
        """All rows, with lines joined that the terminal broke."""
        joined = "".join(row + ("" if y in self.soft else "\n") for y, row in enumerate(self.rows))
        return joined.rstrip("\n")


def scene() -> tuple[Recorder, Simulation]:
    recorder = Recorder()
    sim = Simulation(host(), device(), cards=(CARD,), observers=[recorder])
    sim.submit(PROGRAMS["cascade2"], messages="hi", label="talker", think={"max_tokens": 8})
    sim.submit(PROGRAMS["paint"], messages="hi", steps=20, label="painter")
    return recorder, sim


def shown(recorder: Recorder, now: float) -> str:
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(Status(recorder, lambda: now).lines())
    return console.export_text()


def test_it_says_what_runs_and_how_fast() -> None:
    recorder, sim = scene()
    before = shown(recorder, 0.0)
    assert "talker tokenize" in before and "waits for tokenize" in before
    status = Status(recorder, lambda: sim.now)
    seen = []
    while sim.busy:
        sim.complete(sim.busy[0])
        console = Console(record=True, width=120, file=io.StringIO())
        console.print(status.lines())
        seen.append(console.export_text())
    whole = "\n".join(seen)
    for pattern in (
        r"painter paint +step \d+ of 20, 0\.\d s left",
        r"talker think +4 tokens, \d+\.\d/s",
        r"held back by talk",
        r"talker chant +0\.0 s of sound, real-time factor \d",
        r"no sound yet",
        r"2 requests · 1 running · [12] queued",
        r"✓ +talker tokenize +1 call +done",
    ):
        assert re.search(pattern, whole), f"{pattern} in {seen[len(seen) // 2]}"
    assert "0 running · 0 queued" in seen[-1]


def test_rates_and_times_left_are_exact() -> None:
    rates, loop = Rates(), LoopNow("think", "ar_decode")
    found = []
    for i in range(1, 60):
        loop.drawn, loop.moved = i, loop.moved + (0.5 if i < 20 else 0.1)  # it becomes five times as fast
        found.append(rates.of(1, loop, loop.moved))
    assert found[0] is None
    assert found[10] == pytest.approx(2.0)
    assert found[-1] == pytest.approx(10.0), "what was slow is forgotten after a few seconds"
    rates.keep(set())
    assert rates.of(1, loop, 6.0) is None
    paint = LoopNow("paint", "diffusion_denoise", units=5, goal=20, began=10.0, moved=12.0)
    assert left_of(paint) == pytest.approx(15 * 2.0 / 5)
    assert left_of(LoopNow("paint", "diffusion_denoise", goal=20)) is None


def test_many_loops_fit() -> None:
    recorder = Recorder()
    sim = Simulation(host(), device(), cards=(CARD,), observers=[recorder])
    for seed in range(9):
        sim.submit(PROGRAMS["cascade2"], messages="hi", seed=seed)
    text = shown(recorder, 0.0)
    assert "12 of 36 loops shown" in text
    assert len(text.splitlines()) == 14


TEXTS = [
    "one line",
    "two\nlines, the second of which is longer than the terminal is wide, so that it wraps once and then once more\n",
    "\n\nempty ones\n\n",
    "[bold]not markup[/bold] :smile: https://x.y 1234\n" * 3,
    "x" * 2000,
    " leading and trailing spaces \n  here too  ",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("width", "height"), [(100, 30), (40, 14)])
def test_streamed_text_comes_out_whole(text: str, width: int, height: int) -> None:
    recorder, sim = scene()
    terminal = Terminal(width, height)
    console = Console(file=terminal, force_terminal=True, width=width, height=height, highlight=False, _environ={"TERM": "xterm"})
    dice = random.Random(len(text) + width)
    rest = text
    with LiveView(recorder, console, clock=lambda: sim.now, redraw=False) as view:
        view.write("")
        while rest:
            n = dice.randint(1, 9)
            view.write(rest[:n])
            rest = rest[n:]
            if sim.busy:
                sim.complete(sim.busy[0])
        assert "running" in "\n".join(terminal.rows), "the status stands below"
    console.file.write("\nafter")
    broken_by_us = terminal.text.replace("\n", "") == (text + "after").replace("\n", "")
    if len(text) < 1000:
        want = "\n".join(line.rstrip() for line in (text + "\nafter").split("\n"))
        assert "\n".join(line.rstrip() for line in terminal.text.split("\n")) == want
    else:  # a line of more rows than a third of the screen is finished row by row
        assert broken_by_us


def test_fold_breaks_where_a_terminal_does() -> None:
    assert fold("abcdef", 3) == ["abc", "def"]
    assert fold("", 3) == [""]
    assert fold("日本語", 5) == ["日本", "語"], "a wide character never straddles the edge"


def test_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert not possible(Console(file=io.StringIO()))
    assert not possible(Console(file=Terminal(80, 24), force_terminal=True, _environ={"TERM": "dumb"}))
    assert possible(Console(file=Terminal(80, 24), force_terminal=True, _environ={"TERM": "xterm"}))
    watch = Watch(live=True)  # standard output is a file here
    assert not watch.live and watch.observers == []
    with watch.stream() as show:
        show("plain")
    assert capsys.readouterr().out == "plain"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert Watch().live and not Watch(live=False).live
    monkeypatch.setitem(sys.modules, "rich", None)
    assert not Watch().live
    with pytest.raises(MissingExtra, match="rich"):
        Watch(live=True)


@pytest.mark.parametrize("which", ["timeline", "trace"])
def test_files_are_checked_early_and_written_in_the_end(which: str, tmp_path: Path) -> None:
    wrong: Any = {which: tmp_path / "nowhere" / "out"}
    with pytest.raises(RequestError, match=r"nowhere.*folder does not exist"):
        Watch(**wrong)
    wrong = {which: tmp_path}
    with pytest.raises(RequestError, match="is a folder"):
        Watch(**wrong)
    right: Any = {which: tmp_path / "out"}
    watch = Watch(**right)
    assert watch.observers == [watch.recorder]
    with pytest.raises(ZeroDivisionError), watch:
        raise ZeroDivisionError
    assert (tmp_path / "out").stat().st_size > 50, "also what went wrong can be looked at"
