"""How a runtime and a command stop: with grace, at once, with workers that are busy, hung, loading or dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process_toys import program, shared, specs, workers

from omni_runtime.errors import CardError, EngineStopped
from omni_runtime.executors.process import ProcessExecutor
from omni_runtime.handle import Handle
from omni_runtime.runtime import Runtime

HERE = Path(__file__).resolve().parent
SLEEP = program("sleep")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = workers(), shared()
    yield
    assert (workers() - before[0], shared() - before[1]) == (set(), set())


def runtime(**options: Any) -> Runtime:
    return Runtime(SLEEP.cards.values(), **{"executor": "process", **options})


def submit(made: Runtime, s: float) -> Handle:
    return made.submit(SLEEP, **{"in": 1, "s": s})


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_without_grace_what_is_alive_ends_at_once(kind: str) -> None:
    made = runtime(executor=kind)
    handle = submit(made, 0.4)
    time.sleep(0.05)
    threading.Timer(0.05, lambda: ends.append((handle.done, time.monotonic()))).start()
    ends: list[Any] = []
    start = time.monotonic()
    made.close()
    assert time.monotonic() - start < 3 and ends[0][0], "it was told before its batch was back"
    with pytest.raises(EngineStopped, match="the runtime was closed") as caught:
        handle.result()
    assert caught.value.partial.outputs["out"] == []
    with pytest.raises(EngineStopped, match="make a new one"):
        submit(made, 0.0)


def test_with_grace_it_may_go_on_but_nothing_new_comes() -> None:
    made = runtime()
    handle = submit(made, 0.4)
    closing = threading.Thread(target=made.close, kwargs={"grace_s": 20.0})
    closing.start()
    time.sleep(0.1)
    with pytest.raises(EngineStopped):
        submit(made, 0.0)
    handle.result(10)
    closing.join(5)
    assert not closing.is_alive()


def test_grace_ends_and_another_close_cuts_it_short() -> None:
    made = runtime()
    handle = submit(made, 0.6)
    start = time.monotonic()
    closing = threading.Thread(target=made.close, kwargs={"grace_s": 60.0})
    closing.start()
    time.sleep(0.1)
    assert not handle.done
    made.close(0.1)
    with pytest.raises(EngineStopped):
        handle.result(0)
    closing.join(5)
    assert time.monotonic() - start < 5
    with pytest.raises(ValueError, match="grace_s"):
        made.close(-1.0)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_who_hangs_is_not_waited_for(kind: str) -> None:
    made = runtime(executor=kind)
    made._engine._stop_s = 0.3
    handle = submit(made, 60.0 if kind == "process" else 1.5)
    time.sleep(0.1)
    start = time.monotonic()
    made.close()
    assert time.monotonic() - start < (3 if kind == "process" else 1.3)
    assert handle.done


def test_closing_while_a_worker_is_down() -> None:
    executor = ProcessExecutor("cpu#1", specs(), {}, backoff_s=(20.0, 20.0))
    made = Runtime(SLEEP.cards.values(), executors=[executor])
    handle = submit(made, 60.0)
    time.sleep(0.1)
    executor.lose("for the test")
    time.sleep(0.1)
    start = time.monotonic()
    made.close()
    assert time.monotonic() - start < 3
    with pytest.raises(EngineStopped):
        handle.result(0)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_batch_that_hangs_is_noticed_and_others_go_on(kind: str) -> None:
    with runtime(executor=kind, hang_after_s=0.4, hang_factor=1.0) as made:
        name = next(iter(made._engine._executors.values())).name
        hung = submit(made, 3.0)
        time.sleep(0.6)
        other = submit(made, 0.0)
        hung.cancel()
        assert other.result(20).outputs["out"]
        assert next(iter(made._engine._executors.values())).name != name


def test_replicas_and_workers() -> None:
    with runtime(replicas=2) as made:
        assert list(made._engine._executors) == ["cpu-1", "cpu-2"]
        start = time.monotonic()
        handles = [submit(made, 0.3 + i / 1000) for i in range(2)]
        pids = {handle.result(20).outputs["out"][0] for handle in handles}
        assert len(pids) <= 2 and time.monotonic() - start < 10
    with runtime(executor="thread", workers={"one": ["toy/toy"], "other": ["toy/toy"]}) as made:
        assert list(made._engine._executors) == ["one", "other"]
        assert submit(made, 0.0).result(10).outputs["out"] == [os.getpid()]
    for wrong in ({"a#1": ["toy/toy"]}, {"a": ["toy/tod"]}, {"a": []}, {"host": ["toy/toy"]}, {"a": "toy/toy"}):
        with pytest.raises(CardError, match="workers"):
            runtime(workers=wrong)
    with pytest.raises(CardError, match="replicas"):
        runtime(workers={"a": ["toy/toy"]}, replicas=2)


@pytest.mark.parametrize(
    ("stage", "signals", "status"),
    [
        ("loads", [signal.SIGINT], 130),
        ("runs", [signal.SIGINT], 130),
        ("runs", [signal.SIGTERM], 143),
        ("hangs", [signal.SIGINT, signal.SIGINT], 130),
        ("hangs", [signal.SIGTERM, signal.SIGINT], 143),
    ],
)
def test_a_command_is_interrupted(tmp_path: Path, stage: str, signals: list[signal.Signals], status: int) -> None:
    (flag := tmp_path / "flag").write_text("slow" if stage == "loads" else "")
    mark, room = f"command{os.getpid()}x{tmp_path.name[-12:]}".replace("_", "-"), tmp_path / "t"
    room.mkdir()
    command = [sys.executable, str(HERE / "commanded.py"), mark, stage, str(flag)]
    env = {**os.environ, "TMPDIR": str(room)}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A group of its own, as a terminal's foreground job is: Ctrl-C goes to all of it.
    with subprocess.Popen(command, **pipes, env=env, process_group=0) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        wanted = "loading" if stage == "loads" else "running"
        while parent.stdout.readline().strip() != wanted:
            pass
        time.sleep(0.3)
        for one in signals:
            os.killpg(parent.pid, one) if one == signal.SIGINT else parent.send_signal(one)
            time.sleep(0.3)
        assert parent.wait(8) == status
        told = parent.stderr.read()
        assert "once more stops at once" in told and "Traceback" not in told
        deadline = time.monotonic() + 5
        while workers(mark) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not workers(mark) and os.listdir(room) == []
