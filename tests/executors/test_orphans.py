"""Case 28: whatever happens to the parent, its workers end, and nothing of theirs is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from process_toys import shared, workers

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize(
    ("stage", "delay"),
    [
        ("begun", 0.0),
        ("begun", 0.03),
        ("begun", 0.1),
        ("begun", 0.2),
        ("loading", 0.0),
        ("idle", 0.0),
        ("sleep", 0.1),
        ("hold", 0.1),
    ],
)
def test_the_parent_is_killed(tmp_path: Path, stage: str, delay: float, how: signal.Signals) -> None:
    (flag := tmp_path / "flag").write_text("slow" if stage == "loading" else "")
    (room := tmp_path / "t").mkdir()  # short: a socket's name has at most 107 characters
    before, mark = shared(), f"orphan{os.getpid()}x{tmp_path.name[-12:]}"
    command = [sys.executable, str(HERE / "orphans.py"), mark, stage, str(flag)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(room)}) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        time.sleep(delay)
        assert workers(mark) or stage == "begun"
        parent.send_signal(how)
        parent.wait(5)
        deadline = time.monotonic() + 10
        # Of shared memory the whole machine's is looked at: that of others comes and goes.
        while (workers(mark) or os.listdir(room) or not shared() <= before) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not workers(mark)
        assert os.listdir(room) == []
        assert shared() <= before
