"""A log cut at any byte, and what is no log at all: a sentence with what to do, never an error of Python's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_runtime.errors import ReplayError
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.replay import Recording, RecordLog, play
from omni_runtime.replay.command import replay
from omni_runtime.replay.read import Log
from omni_runtime.sim import Simulation

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
import toys


def record(path: Path, full: bool = False) -> Path:
    sim = Simulation(cards=(toys.CARD,))
    writer = RecordLog(Recording(path, full=full), sim.core, [toys.CARD])
    sim.up(SimulatedExecutor("x#1", toys.CARD))
    sim.submit(toys.text(), messages="hi", seed=1, think={"max_tokens": 2})
    sim.run()
    writer.close()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:6]))  # a plan, and feeds of every kind: enough to cut
    return path


def lost(log: Path, whole: bytes) -> set[tuple[int, bytes]]:
    """What is wrong at each cut behind the head: how much is there, and the line that was cut."""
    wrong = set()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 10]
    reader = Log(log)  # its head is read once
    for at in range(ends[0], len(whole) + 1):
        log.write_bytes(whole[:at])
        reader.torn = False
        lines = whole[:at].split(b"\n")
        last = lines.pop()
        feeds = sum(line.startswith(b'{"now"') for line in lines[1:])
        rest = whole[at:].partition(b"\n")[0]
        complete = not last or rest in (b"", b"}") or (last.startswith(b'{"now"') and rest.startswith(b',"full"'))
        half = rest.startswith(b',"out"')
        counted = last.startswith(b'{"now"') and (complete or half)
        try:
            found = list(reader.feeds())
        except ReplayError as error:
            wrong.add((at, str(error).encode()[-60:]))
            continue
        if len(found) != feeds + counted or reader.torn == (complete or half):
            wrong.add((at, last[-30:]))
        if half and found[-1].out is not None:
            wrong.add((at, b"a feed that never came back"))
    return wrong


@pytest.mark.parametrize("full", [False, True])
def test_every_cut(tmp_path: Path, full: bool) -> None:
    """Behind the head. Every line is cut at each of its bytes while it is the last one."""
    log = record(tmp_path / "log", full)
    assert lost(log, log.read_bytes()) == set()


def test_a_reader_that_closes_every_object_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`{"now":29` with a bracket is an object too, and no feed: the mutant takes it for one."""
    import msgspec

    def line(self: Log, at: int, text: bytes) -> Any:
        for whole in (text, text + b"}"):
            try:
                return msgspec.json.decode(whole)
            except ValueError:
                continue
        self.torn = True
        return None

    log = record(tmp_path / "log")
    monkeypatch.setattr(Log, "_line", line)
    assert len(lost(log, log.read_bytes())) > 9


def test_cuts_are_told_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = record(tmp_path / "log")
    whole = log.read_bytes()
    start = whole.rindex(b'{"now"')
    for at in (start + 1, start + 6, start + 8, start + 9, whole.rindex(b"]"), whole.rindex(b'"out"') + 3):
        log.write_bytes(whole[:at])
        played = play(log)
        played.check()
        assert played.torn and not played.broke
        assert replay(log) == 0 and "the last line was cut" in capsys.readouterr().out


def test_a_cut_in_the_head(tmp_path: Path) -> None:
    log = record(tmp_path / "log")
    head = log.read_bytes().partition(b"\n")[0]
    for at in (0, 1, 9, 30, len(head) // 2, len(head) - 1):
        log.write_bytes(head[:at])
        told = "was cut in its first line, before anything happened" if at >= 30 else "no log of omni_runtime"
        with pytest.raises(ReplayError, match=f"{told}.*--record FILE"):
            play(log)
    log.write_bytes(head)
    assert play(log).feeds == 0


@pytest.mark.parametrize("path", [5, None, b"log", ["log"], 1.5])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(ReplayError, match=r"path: the path of a log is needed, not .*--record FILE"):
        play(path)


@pytest.mark.parametrize("until", ["3", -1, 0, True, 1.5, [1]])
def test_what_is_no_feed(until: Any, tmp_path: Path) -> None:
    log = record(tmp_path / "log")
    with pytest.raises(ReplayError, match=r"until=.*: the number of a feed is needed, from 1 on; leave it out"):
        play(log, until=until)
    with pytest.raises(ReplayError, match="until="):
        replay(log, until=until)
    assert play(log, until=1).feeds == 1


def test_what_is_no_list_of_cards(tmp_path: Path) -> None:
    log = record(tmp_path / "log")
    for cards in (toys.CARD, 3, "toy", ["toy"]):
        with pytest.raises(ReplayError, match=r"cards: .*; write \[card\]"):
            play(log, cards=cards)  # type: ignore[arg-type]


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def deep(folder: Path) -> Path:
    (folder / "deep").write_text("[" * 100_000)
    return folder / "deep"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda _: "/proc/self/mem", "cannot be read: Input/output error"),
        (lambda _: "/dev/full", "no file but a device, pipe or socket"),
        (lambda _: "/dev/zero", "no file but a device"),
        (fifo, "no file but a device"),
        (lambda folder: folder, "is a folder; name the file"),
        (lambda folder: folder / "none", "there is no such file"),
        (lambda _: "a\0b", "names no file: .*null"),
        (lambda _: "a\ud800", "no such file|names no file"),
        (lambda folder: folder / ("x" * 300), "cannot be read: File name too long"),
        (deep, "no log of omni_runtime"),
    ],
)
def test_what_is_no_file(make: Callable[[Path], Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match=f"{told}.*--record FILE") as caught:
        play(make(tmp_path))
    assert len(str(caught.value)) < 800 and str(caught.value).isprintable()


LINES = [
    b"[" * 100_000,
    b'{"now":1,"in":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"now":1,"in":[{"~a":["<f4",[1000000000000000]]}]}',
    b'{"now":1,"in":[{"~a":["<f4",[2,2],{"0":[9]}]}]}',
    b'{"now":1,"in":[{"~n":["|i1",99999]}]}',
    b'{"now":1,"in":3}',
    b'{"now":1,"in":[],"out":"x","full":3}',
    b'{"plan":[],"is":3}',
    b'{"now":1}',
]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_line_that_was_changed(line: bytes, tmp_path: Path) -> None:
    log = record(tmp_path / "log")
    lines = log.read_bytes().split(b"\n")
    lines[2] = line
    log.write_bytes(b"\n".join(lines))
    with pytest.raises(ReplayError, match=r"line 3: .*it was changed after it was written; replay the file as it was") as caught:
        play(log)
    assert len(str(caught.value)) < 800
