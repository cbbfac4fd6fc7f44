"""Where a log may be written: all else is refused at once, and nothing that was there is lost."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_runtime.core import Core
from omni_runtime.errors import CardError, OmniError, RequestError
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.replay import Recording, RecordLog, play
from omni_runtime.replay.log import check_writable
from omni_runtime.runtime import Runtime

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from toys import CARD


def runtime(record: Any) -> Runtime:
    return Runtime([CARD], executors=[SimulatedExecutor("sim#1", CARD)], record=record)


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def link_to_fifo(folder: Path) -> Path:
    (folder / "link").symlink_to(fifo(folder))
    return folder / "link"


def loop_of_links(folder: Path) -> Path:
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    return folder / "a"


def in_a_file(folder: Path) -> Path:
    (folder / "file").write_text("x")
    return folder / "file" / "log"


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a device": (lambda _: "/dev/full", "is no file but a device, pipe or socket; name a file"),
    "another": (lambda _: Path("/dev/null"), "is no file but"),
    "a pipe": (fifo, "is no file but"),
    "a link to one": (link_to_fifo, "is no file but"),
    "memory": (lambda _: "/proc/self/mem", "cannot be written: .*; name a file"),
    "null": (lambda _: "a\0b", "cannot be written: .*null.*; name a file"),
    "half a character": (lambda _: "a\ud800", "cannot be written|is no file|folder"),
    "a long name": (lambda folder: folder / ("x" * 300), "cannot be written: .*too long.*; name a file"),
    "links in a circle": (loop_of_links, "cannot be written: .*; name a file"),
    "a folder": (lambda folder: folder, "is a folder; name a file in it"),
    "nothing": (lambda _: "", "is a folder"),
    "no folder": (lambda folder: folder / "none" / "log", "its folder does not exist; make it first"),
    "in a file": (in_a_file, "its folder does not exist"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_place(name: str, tmp_path: Path) -> None:
    make, told = WRONG[name]
    path = make(tmp_path)
    for refused in (lambda: runtime(path), lambda: check_writable(path), lambda: RecordLog(Recording(path), Core({}), [])):
        with pytest.raises(RequestError, match=f"(?s)^record: '.*{told}") as caught:
            refused()
        assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: Recording(path, redact="yes"), "redact='yes': True or False is needed"),
        (lambda path: Recording(path, full=3), "full=3: True or False is needed"),
        (lambda path: Recording(path, redact=None), "redact=None: True"),
        (lambda path: Recording(7), r"a path or a Recording is needed, not 7; write record='log\.jsonl'"),
        (lambda path: runtime(b"log"), "a path or a Recording is needed, not b'log'"),
        (lambda path: runtime([path]), "a path or a Recording is needed"),
        (lambda path: runtime(False), "a path or a Recording is needed, not False"),
    ],
)
def test_what_is_no_recording(make: Callable[[Any], Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(CardError, match=f"^record: {told}"):
        make(tmp_path / "log")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for path in (tmp_path / "log", tmp_path / "link", tmp_path / "ü log"):
        runtime(path).close()
        play(path).check()
    assert (tmp_path / "target").is_file() and len(list(tmp_path.iterdir())) == 4


def full(log: RecordLog, data: bytes) -> None:
    assert log._file is not None
    log._file.write(data[:9])
    raise OSError(28, "No space left on device")


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordLog, "_write", full)


def test_a_disk_that_is_full_at_once_takes_no_log_away(tmp_path: Path, no_room: None) -> None:
    """Twice: a service is started again and again, and the log of the process that hung must outlive that."""
    path = tmp_path / "log"
    path.write_text("of the process that hung")
    for _ in range(2):
        with pytest.raises(RequestError, match=r"No space left on device; name a file in a folder .* with room on its disk"):
            runtime(path)
    assert path.read_text() == "of the process that hung" and list(tmp_path.iterdir()) == [path]


def test_an_old_log_that_cannot_be_moved(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first")
    (tmp_path / "log.old").mkdir()
    with pytest.raises(RequestError, match=r"^record: .*cannot be written"):
        runtime(path)
    assert path.read_text() == "first"


def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("s")
        with pytest.raises(OmniError, match="is no file but a device, pipe or socket"):
            runtime("s")
