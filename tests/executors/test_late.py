"""Batches that end late, behind real threads and a real process: in which order they are begun and answered, and who waits."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
sys.path.append(str(Path(__file__).resolve().parents[1] / "experts"))
from fake_queue import FakeQueue
from process_toys import Desk, Toy, call, specs

from omni_runtime.executors.lineup import usual_slots
from omni_runtime.executors.mailbox import Mailbox
from omni_runtime.executors.process import ProcessExecutor
from omni_runtime.executors.thread import ThreadExecutor
from omni_runtime.executors.workbench import Workbench
from omni_runtime.work import Answer, Broken, Drop, ExecutorDown, Release, Report, TensorRef

pytestmark = pytest.mark.torch
WAIT_S = 30.0


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def thread() -> Iterator[Desk]:
    desk = Desk(ThreadExecutor("cpu#1", specs(), {}, slots=2))
    yield desk
    desk.executor.close()


def outs(reports: list[Any]) -> list[Any]:
    return [report.results[0].items["out"] if isinstance(report, Answer) else type(report) for report in reports]


def test_what_is_there_is_begun_before_what_was_launched_is_read(thread: Desk) -> None:
    both = threading.Event()
    thread.send("fly", at="a", calls=lambda toy: both.wait(WAIT_S))
    thread.send("fly", at="b")
    thread.send("fly", at="c")
    both.set()
    until(lambda: len(thread.reports) == 3)
    first = ["call a", "call b", "collect a"]  # two at a time, so c waits for a
    assert outs(thread.reports) == [first, [*first, "call c", "collect b"], [*first, "call c", "collect b", "collect c"]]
    assert [report.batch for report in thread.reports] == [1, 2, 3]


def test_with_nothing_in_the_mailbox_it_is_read_at_once(thread: Desk) -> None:
    for name, before in (("a", 0), ("b", 2)):
        thread.send("fly", at=name)
        until(lambda before=before: len(thread.reports) > before // 2)  # type: ignore[misc]
        assert thread.reports[-1].results[0].items["out"][before:] == [f"call {name}", f"collect {name}"]


def test_an_op_that_is_waited_for_is_answered_in_its_place(thread: Desk) -> None:
    both = threading.Event()
    for count in (2, 4):  # the first time nobody knows that it is waited for
        both.clear()
        thread.send("fly", at="a", calls=lambda toy: both.wait(WAIT_S))
        thread.send("echo", values=("b",))
        both.set()
        until(lambda count=count: len(thread.reports) == count)  # type: ignore[misc]
    assert [report.batch for report in thread.reports] == [1, 2, 3, 4]


def test_one_that_breaks_takes_no_other_with_it(thread: Desk) -> None:
    both = threading.Event()
    thread.send("fly", at="a", fault="collect", keep=True, calls=lambda toy: both.wait(WAIT_S))
    thread.send("fly", at="b", rows=1)
    both.set()
    until(lambda: len(thread.reports) == 2)
    assert isinstance(thread.reports[0], Broken) and "found when it was read" in thread.reports[0].error
    assert outs(thread.reports)[1][-1] == "collect b" and thread.executor.slots.counts == (0, 0)


def test_close_waits_for_what_is_on_the_device() -> None:
    desk = Desk(ThreadExecutor("cpu#1", specs(), {}, slots=2))
    gate = threading.Event()
    desk.send("fly", at="a", calls=lambda toy: gate.wait(WAIT_S))
    desk.send("fly", at="b", collects=lambda flown: time.sleep(0.05))
    gate.set()
    desk.executor.close()
    assert [report.batch for report in desk.reports] == [1, 2]


def test_who_is_lost_says_nothing_more(thread: Desk) -> None:
    there, gate = threading.Event(), threading.Event()

    def hangs(flown: Any) -> None:
        there.set()
        gate.wait(WAIT_S)

    both = threading.Event()
    thread.send("fly", at="a", collects=hangs, calls=lambda toy: both.wait(WAIT_S))
    thread.send("fly", at="b")
    both.set()
    assert there.wait(WAIT_S)
    thread.executor.lose("hung")
    thread.send("fly", at="c")
    until(lambda: len(thread.reports) == 3)
    gate.set()
    time.sleep(0.05)
    down, up, answer = thread.reports
    assert isinstance(down, ExecutorDown) and up.executor == answer.executor == "cpu#2" and answer.batch == 3
    assert "collect b" not in thread.executor.experts["toy/toy"].diary


def test_a_thread_that_ends_while_it_reads_is_told(thread: Desk) -> None:
    both = threading.Event()
    thread.send("fly", at="a", fault="exit", calls=lambda toy: both.wait(WAIT_S))
    thread.send("fly", at="b")
    both.set()
    until(lambda: len(thread.reports) == 2)
    down, up = thread.reports
    assert isinstance(down, ExecutorDown) and "SystemExit" in down.reason and down.back and up.executor == "cpu#2"


def test_a_message_that_comes_while_the_device_works_is_not_kept_waiting() -> None:
    """The first batch ends only when the second has been launched, which comes when the first is on the device."""
    launched, order = threading.Event(), []

    class Flight:
        def __init__(self, batch: int) -> None:
            self.batch = batch

        def wait(self) -> None:
            assert self.batch != 1 or launched.wait(WAIT_S)

        def collect(self) -> Answer:
            order.append(f"collect {self.batch}")
            return Answer("gpu#1", self.batch, [])

    def launch(message: Any) -> Flight:
        order.append(f"call {message.batch}")
        if message.batch == 2:
            launched.set()
        return Flight(message.batch)

    reports: list[Report] = []
    mailbox = Mailbox("gpu#1", launch, most=2)
    mailbox.start(reports.append)
    mailbox.send(call("gpu#1", 1, "fly"))
    until(lambda: order == ["call 1"])
    mailbox.send(call("gpu#1", 2, "fly"))
    until(lambda: len(reports) == 2)
    mailbox.close(WAIT_S)
    assert order == ["call 1", "call 2", "collect 1", "collect 2"]


def test_in_a_process() -> None:
    desk = Desk(ProcessExecutor("cpu#1", specs(), {}, slots=2))
    ref = TensorRef("cpu#1", 1, "loop0", "out", 0, (2,), "float32")
    try:
        desk.send("fly", at="a", s=0.6, keep=True)  # so long that the others are there
        desk.executor.send(Release("cpu#1", (ref,)))
        desk.send("fly", at="b", fault="collect", keep=True)
        desk.executor.send(Drop("cpu#1", ((1, "loop0"),)))
        desk.send("fly", at="c")
        desk.send("count")
        until(lambda: len(desk.reports) == 4)
        one, two, three, four = desk.reports
        assert one.results[0].items["out"][:2] == ["call a", "call b"] and one.results[0].copies["out"][0].tolist() == [1.0, 1.0]
        assert isinstance(two, Broken) and three.results[0].items["out"][-1] == "collect c"
        assert four.results[0].items["out"] == [0, 0]
        desk.send("fly", at="d", s=0.2)
        desk.send("fly", at="e")
    finally:
        desk.executor.close()
    assert [report.batch for report in desk.reports] == [1, 2, 3, 4, 5, 6]


class Refusing(FakeQueue):
    """Once it has failed, everything fails, as after an illegal access."""

    failed = False

    def mark(self, timed: bool = False) -> Any:
        made = super().mark(timed)
        wait = made.wait

        def refuses() -> None:
            if self.failed:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            wait()

        made.wait = refuses  # type: ignore[method-assign]
        return made


@pytest.mark.parametrize("lasts", [True, False])
def test_an_error_that_lasts_ends_the_incarnation(lasts: bool) -> None:
    """In the call as in `collect`; one that does not last is its batch's."""
    for where in ("calls", "collects"):
        queue = Refusing()

        def fails(toy: Any, queue: Refusing = queue) -> None:
            queue.failed = lasts
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        reports: list[Report] = []
        bench = Workbench("gpu#1", {"toy/toy": Toy({})}, "cpu", queue=queue)
        mailbox = Mailbox("gpu#1", bench.launch)
        mailbox.start(reports.append)
        mailbox.send(call("gpu#1", 1, "fly", at="a", **{where: fails}))
        mailbox.send(call("gpu#1", 2, "fly", at="b"))
        until(lambda reports=reports: len(reports) == (1 if lasts else 2))  # type: ignore[misc]
        mailbox.close(WAIT_S)
        if lasts:
            assert isinstance(reports[0], ExecutorDown) and "DeviceLost" in reports[0].reason and "op 'fly'" in reports[0].reason
        else:
            assert isinstance(reports[0], Broken) and isinstance(reports[1], Answer)


def test_how_many_are_usual() -> None:
    assert [usual_slots(device) for device in ("cpu", "cuda", "cuda:1", "mps")] == [1, 2, 2, 1]
