"""The executor in a process: what it answers, how it dies and comes back, and what it never says."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from process_toys import Desk, call, shared, specs, workers

from omni_runtime.errors import CardError, CheckpointError, CheckpointWarning, LoadError, MissingExtra
from omni_runtime.executors.process import ProcessExecutor
from omni_runtime.executors.thread import ThreadExecutor
from omni_runtime.work import Broken, Drop, ExecutorDown, ExecutorUp, Release, TensorRef

KINDS: dict[str, Callable[..., Any]] = {"thread": ThreadExecutor, "process": ProcessExecutor}


@pytest.fixture(scope="module", params=["thread", "process"])
def either(request: pytest.FixtureRequest) -> Iterator[Desk]:
    """An executor of each kind that nothing bad happens to."""
    desk = Desk(KINDS[request.param]("cpu#1", specs(), {"toy/toy": 9}, reuse=True))
    yield desk
    desk.executor.close()


@pytest.fixture
def process() -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(options: dict[str, Any] | None = None, **how: Any) -> Desk:
        executor = ProcessExecutor("cpu#1", specs(**(options or {})), {}, **how)
        made.append(Desk(executor))
        return made[-1]

    yield make
    for desk in made:
        desk.executor.close()


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of the workers, files and folders of each test."""
    (room := tmp_path / "t").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    before = workers(), shared()
    yield
    assert (workers() - before[0], shared() - before[1], os.listdir(room)) == (set(), set(), [])


# -- What it answers


def test_it_says_what_it_hosts(either: Desk) -> None:
    assert either.up == ExecutorUp("cpu#1", ("toy/toy",), {"toy/toy": 9}, 1, True)


def test_items_come_back_as_they_went(either: Desk) -> None:
    big = np.arange(300_000, dtype=np.float32).reshape(3, -1)
    sent = (1, "é", b"b", 2.5, None, [1, 2], {"a": 1}, np.arange(6, dtype=np.int16)[::2], big, big[:, ::2], np.zeros((0, 4)))
    back = either.ask("echo", values=sent).items["out"]
    for one, other in zip(sent, back, strict=True):
        if isinstance(one, np.ndarray):
            assert np.array_equal(one, other) and one.dtype == other.dtype and one.shape == other.shape
        else:
            assert one == other


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "float16"])
def test_tensors_come_with_copies_and_are_read_where_they_are_brought(either: Desk, dtype: str) -> None:
    result = either.ask("keep", n=20_000, dtype=dtype)
    (ref,), (copy,) = result.tensors["out"], result.copies["out"]
    assert (ref.home, ref.dtype, ref.shape) == ("cpu#1", dtype, (20_000,))
    assert copy.shape == ref.shape and copy.nbytes == ref.nbytes
    away = TensorRef("gpu#7", 9, "think", "out", 0, ref.shape, dtype)
    copy = np.array(copy)
    copy.flags.writeable = False
    here = either.ask("read", refs=(ref,)).items["out"]
    there = either.ask("read", refs=(away,), brought=((away, copy),)).items["out"]
    assert here == there == [f"torch.{dtype}", here[1]]
    assert "KeyError" in either.wait(either.send("read", refs=(away,))).error  # type: ignore[union-attr]
    either.executor.send(Release("cpu#1", (ref,)))
    assert either.ask("count").items["out"] == [0, 0]


@pytest.mark.torch
def test_twenty_failures_keep_nothing(either: Desk) -> None:
    """Case 24. The tensors that an op kept before it raised were named to nobody."""
    for _ in range(20):
        report = either.wait(either.send("raise", rows=3))
        assert isinstance(report, Broken) and "out of memory" in report.error and "process_toys.py" in report.error
        assert either.ask("count").items["out"] == [0, 0]
    assert either.ask("echo", values=(1,)).items["out"] == [1]


@pytest.mark.torch
def test_an_answer_that_cannot_travel_breaks_its_batch(process: Callable[..., Desk]) -> None:
    desk = process()
    report = desk.wait(desk.send("odd"))
    assert isinstance(report, Broken) and "object cannot travel" in report.error
    report = desk.wait(desk.send("echo", values=(object(),)))
    assert isinstance(report, Broken) and "cannot travel to an executor" in report.error
    assert desk.ask("count").items["out"] == [0, 0]
    desk.executor.send(Drop("cpu#1", ((1, "loop0"),)))


# -- Loading


@pytest.mark.parametrize("kind", ["thread", "process"])
@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ("checkpoint", CheckpointError, "tensor 'w' is missing; download it again"),
        ("extra", MissingExtra, "pip install teeth"),
        ("file", FileNotFoundError, r"^weights.bin is not there$"),
    ],
)
def test_what_goes_wrong_while_loading_is_raised_as_it_is(
    tmp_path: Path, kind: str, said: str, error: type[Exception], match: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (flag := tmp_path / "flag").write_text(said)
    executor = KINDS[kind]("cpu#1", specs(flag=str(flag)), {})
    with pytest.raises(error, match=match):
        executor.start(lambda report: None)
    executor.close()


def test_a_worker_that_dies_while_loading_tells_its_last_words(tmp_path: Path) -> None:
    (flag := tmp_path / "flag").write_text("die")
    executor = ProcessExecutor("cpu#1", specs(flag=str(flag)), {})
    with pytest.raises(LoadError, match="ended with status 7; it said: the weights are cursed"):
        executor.start(lambda report: None)
    executor.close()


def test_a_worker_that_loads_for_ever_is_given_up(tmp_path: Path) -> None:
    (flag := tmp_path / "flag").write_text("slow")
    executor = ProcessExecutor("cpu#1", specs(flag=str(flag)), {}, load_s=1.0)
    with pytest.raises(LoadError, match="load_s"):
        executor.start(lambda report: None)
    executor.close()


def test_warnings_of_a_checkpoint_arrive(tmp_path: Path, process: Callable[..., Desk]) -> None:
    (flag := tmp_path / "flag").write_text("warn")
    with pytest.warns(CheckpointWarning, match="an extra tensor"):
        process({"flag": str(flag)})


def test_options_that_cannot_travel_are_refused() -> None:
    executor = ProcessExecutor("cpu#1", specs(odd=lambda: 1), {})
    with pytest.raises(CardError, match="options that cannot go to another process"):
        executor.start(lambda report: None)
    executor.close()


def test_closing_while_it_loads(tmp_path: Path) -> None:
    (flag := tmp_path / "flag").write_text("slow")
    executor = ProcessExecutor("cpu#1", specs(flag=str(flag)), {})
    caught: list[BaseException] = []

    def start() -> None:
        try:
            executor.start(lambda report: None)
        except LoadError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    time.sleep(0.3)
    executor.close()
    thread.join(5)
    assert "closed while it loaded" in str(caught[0])


# -- Dying and coming back


def test_a_killed_worker_comes_back_and_nothing_reaches_the_wrong_one(process: Callable[..., Desk]) -> None:
    desk = process()
    first = desk.executor.pid
    desk.send("die")
    down = desk.wait(ExecutorDown)
    assert down == ExecutorDown("cpu#1", f"worker process {first} was killed by SIGKILL", back=True)
    desk.executor.send(call("cpu#1", 77, "pid"))  # nobody lives: dropped
    up = desk.wait(ExecutorUp)
    assert up == ExecutorUp("cpu#2", ("toy/toy",), {}) and desk.executor.name == "cpu#2"
    desk.executor.send(call("cpu#1", 78, "pid"))  # to one that is dead
    assert desk.ask("pid").items["out"] == [desk.executor.pid] != [first]
    assert [type(report) for report in desk.reports][:2] == [ExecutorDown, ExecutorUp]
    assert not [r for r in desk.reports if getattr(r, "batch", 0) in (77, 78)]


def test_deaths_leave_no_descriptor_and_no_thread(process: Callable[..., Desk]) -> None:
    desk = process(backoff_s=(0.01, 0.01))
    counts = []
    gc.disable()  # it must not take that to free them
    try:
        for number in range(2, 5):
            assert desk.executor.pid is not None
            desk.ask("echo", values=(np.ones(1 << 16),))
            os.kill(desk.executor.pid, signal.SIGKILL)
            desk.wait(ExecutorDown)
            assert desk.wait(ExecutorUp).executor == f"cpu#{number}"
            desk.reports.clear()
            counts.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    finally:
        gc.enable()
    assert counts[0] == counts[1] == counts[2]


def test_an_op_that_leaves_is_a_death_too(process: Callable[..., Desk]) -> None:
    desk = process()
    desk.send("leave")
    assert "ended with status" in desk.wait(ExecutorDown).reason  # type: ignore[union-attr]
    desk.wait(ExecutorUp)


def test_a_worker_that_is_declared_lost_says_nothing_more(process: Callable[..., Desk]) -> None:
    desk = process()
    batch = desk.send("sleep", s=0.3)
    time.sleep(0.05)
    desk.executor._child.kill = lambda: None  # so that it does answer
    desk.executor.lose("it hangs")
    assert desk.reports == [ExecutorDown("cpu#1", "it hangs", back=True)]
    desk.executor.lose("again")  # nobody lives: nothing to lose
    desk.wait(ExecutorUp)
    time.sleep(0.4)
    assert not [r for r in desk.reports if getattr(r, "batch", 0) == batch] and len(desk.reports) == 2


def test_a_stopped_process_is_missed(process: Callable[..., Desk]) -> None:
    desk = process(silence_s=1.5)
    assert desk.executor.pid is not None
    os.kill(desk.executor.pid, signal.SIGSTOP)
    assert "no sign of life for 1.5 s" in desk.wait(ExecutorDown).reason  # type: ignore[union-attr]
    desk.wait(ExecutorUp)


def test_starts_that_fail_are_tried_again_and_then_given_up(tmp_path: Path, process: Callable[..., Desk]) -> None:
    flag = tmp_path / "flag"
    desk = process({"flag": str(flag)}, backoff_s=(0.01, 0.05), loads=3)
    flag.write_text("checkpoint")
    desk.send("die")
    desk.wait(ExecutorDown)
    deadline = time.monotonic() + 10
    while len(desk.reports) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    last = desk.reports[-1]
    assert isinstance(last, ExecutorDown) and (last.executor, last.back) == ("cpu#1", False)
    assert "3 starts failed" in last.reason and "download it again" in last.reason
    desk.send("pid")
    desk.executor.close()


def test_one_failed_start_is_no_end(tmp_path: Path, process: Callable[..., Desk]) -> None:
    flag = tmp_path / "flag"
    desk = process({"flag": str(flag)}, backoff_s=(0.3, 0.3))
    flag.write_text("checkpoint")
    desk.send("die")
    desk.wait(ExecutorDown)
    time.sleep(0.5)
    flag.unlink()
    assert desk.wait(ExecutorUp).executor == "cpu#2"


def test_closing_while_an_op_runs_waits_for_it_or_kills(process: Callable[..., Desk]) -> None:
    desk = process(stop_s=5.0)
    batch = desk.send("sleep", s=0.3)
    desk.executor.close()
    desk.executor.close()
    assert [r for r in desk.reports if getattr(r, "batch", 0) == batch]
    hung = process(stop_s=0.2)
    hung.send("sleep", s=60)
    start = time.monotonic()
    hung.executor.close()
    assert time.monotonic() - start < 3 and hung.reports == []


def test_what_a_terminal_sends_to_all_is_for_the_parent(process: Callable[..., Desk]) -> None:
    desk = process()
    first = desk.executor.pid
    assert first is not None
    os.kill(first, signal.SIGINT)
    assert desk.ask("pid").items["out"] == [first]


def test_two_at_once(process: Callable[..., Desk]) -> None:
    one, other = process(), process()
    assert one.ask("pid").items["out"] != other.ask("pid").items["out"]
    one.send("die")
    one.wait(ExecutorDown)
    assert other.ask("echo", values=(3,)).items["out"] == [3]


# -- Threads


def test_a_thread_that_is_lost_is_replaced_and_its_late_answer_unheard() -> None:
    desk = Desk(ThreadExecutor("cpu#1", specs(), {}))
    ops, carried_out = desk.executor.experts["toy/toy"].ops, []
    ops["count"] = lambda rows, slots: carried_out.append(rows)
    batch = desk.send("sleep", s=0.2)
    desk.executor.send(call("cpu#1", 50, "count"))  # queued behind it
    time.sleep(0.05)
    desk.executor.lose("it hangs")
    assert desk.reports == [ExecutorDown("cpu#1", "it hangs", back=True), ExecutorUp("cpu#2", ("toy/toy",), {})]
    assert desk.ask("echo", values=(4,)).items["out"] == [4]
    time.sleep(0.3)
    assert not [r for r in desk.reports if getattr(r, "batch", 0) in (batch, 50) and r.executor == "cpu#1"]
    assert carried_out == []
    desk.executor.close()


def test_a_thread_that_ends_by_itself_comes_back_a_few_times() -> None:
    desk = Desk(ThreadExecutor("cpu#1", specs(), {}))
    for number in range(1, 6):
        desk.send("leave")
        deadline = time.monotonic() + 5
        while len(desk.reports) < min(2 * number, 9) and time.monotonic() < deadline:
            time.sleep(0.002)
    assert [r.back for r in desk.reports if isinstance(r, ExecutorDown)] == [True] * 4 + [False]
    assert desk.executor.name == "cpu#6"
    desk.executor.close()
