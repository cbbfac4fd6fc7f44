"""Logs of live runtimes: replayed in another process, killed, hung, broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omni_runtime.errors import CardError, OmniError, RequestError
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.observe.watch import Watch
from omni_runtime.replay import Recording, play
from omni_runtime.runtime import Runtime
from omni_runtime.scheduler.scheduler import Scheduler
from omni_runtime.work import Answer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "core"))
from toys import CARD, PROGRAMS  # noqa: E402

NAMES = sorted(PROGRAMS)


def omni(*arguments: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", "from omni_runtime.cli import main; main()", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def serve(record: Any, requests: int = 84, **how: Any) -> None:
    """Toy requests of every program, a dozen at once, some cancelled."""
    with Runtime([CARD], executors=[SimulatedExecutor("sim#1", CARD, blocks=200, reuse=True)], record=record, **how) as runtime:
        for first in range(0, requests, 12):
            handles = [
                runtime.submit(PROGRAMS[name := NAMES[i % len(NAMES)]], messages=f"Cinderella {i}", seed=i, **given(name))
                for i in range(first, min(first + 12, requests))
            ]
            handles[0].cancel()
            for handle in handles[1:]:
                handle.result(60)


def given(name: str) -> dict[str, Any]:
    return {"think": {"max_tokens": 20}} if "think" in PROGRAMS[name].nodes else {}


@pytest.mark.parametrize("redact", [False, True])
def test_a_thousand_units_in_another_process(tmp_path: Path, redact: bool) -> None:
    path = tmp_path / "log.jsonl"
    serve(Recording(path, redact=redact))
    played = play(path, cards=[CARD])
    played.check()
    assert played.units >= 1_000 and not played.alive and not played.flying
    assert ("Cinderella" in path.read_text()) is not redact
    for seed in (1, 4242):
        done = omni("replay", str(path), "--story", "3", hash_seed=seed)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"same decisions in {played.feeds:,} feeds" in done.stdout and "submit " in done.stdout


def test_what_is_on_disk_when_the_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    script = (
        f"import sys, os, signal; sys.path[:0] = [{str(ROOT)!r}, {str(HERE.parent / 'core')!r}, {str(HERE)!r}]\n"
        "from test_runtime_log import Runtime, SimulatedExecutor, CARD, PROGRAMS\n"
        f"runtime = Runtime([CARD], executors=[SimulatedExecutor('sim#1', CARD, pace=20.0)], record={str(path)!r})\n"
        "handle = runtime.submit(PROGRAMS['text'], messages='hi', think={'max_tokens': 50, 'ignore_eos': True})\n"
        "next(iter(handle))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr
    played = play(path)
    played.check()
    assert played.alive == [1] and len(played.flying) == 1 and not played.broke
    told = omni("replay", str(path)).stdout
    assert "alive at the end: 1; --story 1 tells why" in told and "in flight at the end: batch" in told


def test_a_hang_becomes_a_unit_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that forgets to go on: the log shows it, the same code hangs again, the right code is told apart."""
    path = tmp_path / "hang.jsonl"
    right = Scheduler._batch_done

    def wrong(self: Scheduler, event: Any, out: list[Any]) -> None:
        right(self, event, out)
        if event.batch == 9:
            for executor in self.executors.values():
                executor.slots = 0

    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "_batch_done", wrong)
        patch.setitem(__import__("omni_runtime.scheduler.scheduler", fromlist=["HANDLERS"]).HANDLERS, _event("BatchDone"), wrong)
        with Runtime([CARD], executors=[SimulatedExecutor("sim#1", CARD)], record=path) as runtime:
            handle = runtime.submit(PROGRAMS["text"], messages="hi", seed=5, think={"max_tokens": 50, "ignore_eos": True})
            with pytest.raises(TimeoutError):
                handle.result(0.5)
            lines = path.read_bytes()
        path.write_bytes(lines)  # as it was while it hung: no close, no cancel
        played = play(path)
        assert played.difference is None and played.alive == [1]
        with pytest.raises(AssertionError, match="think offers"):
            played.check()
    mended = play(path)
    assert mended.difference is not None and mended.difference.feed == played.feeds
    assert mended.books() == ""
    done = omni("replay", str(path))
    assert done.returncode == 1 and f"decides differently from feed {played.feeds} on" in done.stdout


def _event(name: str) -> type:
    from omni_runtime import orders

    found: type = getattr(orders, name)
    return found


def test_the_feed_that_breaks_the_core_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    from omni_runtime.flow import flow

    right = flow.INPUTS[Answer]

    def wrong(self: Any, item: Answer) -> None:
        if item.batch == 4:
            raise ZeroDivisionError("four")
        right(self, item)

    with monkeypatch.context() as patch:
        patch.setitem(flow.INPUTS, Answer, wrong)
        runtime = Runtime([CARD], executors=[SimulatedExecutor("sim#1", CARD)], record=path)
        with runtime, pytest.raises(OmniError, match="four"):
            runtime.submit(PROGRAMS["text"], messages="hi", seed=5, think={"max_tokens": 50}).result(60)
        assert "ZeroDivisionError('four')" in play(path).broke
    assert play(path).broke == "came back"
    assert "never came back when recorded" in omni("replay", str(path)).stdout


def test_a_recorder_that_fails_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: a warning, a log that can be read until then, and requests that go on."""
    from omni_runtime.replay.log import RecordLog

    path, write, count = tmp_path / "log.jsonl", RecordLog._write, [0]

    def full(self: RecordLog, data: bytes) -> None:
        count[0] += 1
        if count[0] > 12:
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(RecordLog, "_write", full)
    warned: list[str] = []
    monkeypatch.setattr("omni_runtime.replay.log.warn", lambda text, *_, **__: warned.append(text))
    with Runtime([CARD], executors=[SimulatedExecutor("sim#1", CARD)], record=path) as runtime:
        runtime.submit(PROGRAMS["text"], messages="hi", seed=5, think={"max_tokens": 50, "ignore_eos": True}).result(60)
    assert len(warned) == 1 and "recording ended at feed" in warned[0] and "No space left" in warned[0]
    assert play(path).difference is None


def test_what_a_command_offers(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert Watch(record=path, redact=True, live=False).recording == Recording(path, redact=True)
    assert Watch(live=False).recording is None
    with pytest.raises(RequestError, match="add --record FILE"):
        Watch(redact=True, live=False)
    assert omni("replay", str(path)).stderr.startswith(f"omni: {path}: there is no such file")
    assert "redact: only a log is redacted" in omni("calibrate", "--redact").stderr


def test_where_a_log_may_be_written(tmp_path: Path) -> None:
    def runtime(record: Any) -> Runtime:
        return Runtime([CARD], executors=[SimulatedExecutor("sim#1", CARD)], record=record)

    for wrong in (tmp_path / "none" / "log.jsonl", tmp_path):
        with pytest.raises(RequestError, match="record: "):
            runtime(wrong)
    with pytest.raises(CardError, match="record: a path"):
        runtime(7)
    path = tmp_path / "log.jsonl"
    runtime(path).close()
    first = path.read_bytes()
    runtime(str(path)).close()
    assert (tmp_path / "log.jsonl.old").read_bytes() == first
