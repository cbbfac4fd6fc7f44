"""The executor for a device of this process: the experts of some cards behind one mailbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock

from omni_runtime.card import ExpertSpec
from omni_runtime.executors.mailbox import Mailbox
from omni_runtime.executors.workbench import Exact, Workbench, build_all
from omni_runtime.experts.base import Expert
from omni_runtime.experts.slots import Slots
from omni_runtime.work import ExecutorDown, ExecutorUp, Message, Report, base

DEATHS = 5  # of its thread by itself, in a row without an answer, after which it is not started again
STOP_S = 30.0  # seconds that close() waits for the batch that is running


class ThreadExecutor:
    """Runs batches in a thread of its own, in the order given. On a GPU the next one is launched while one is still running.

    A thread cannot be killed: one that is lost goes on until its op returns, and what it says then is not passed on. The next
    incarnation works in a new thread, with the same experts and nothing else.

    Args:
        name: of the first incarnation of the executor.
        experts: "card/expert" -> its line on the card; built when the executor starts.
        pools: "card/expert" -> KV blocks that may be in use at once.
        device: as torch names it.
        slots: batches that may lie in the mailbox, or be queued on the device, at once.
        threads: of torch on a CPU; None leaves the process's setting.
        reuse: keep the KV of ended loops while there is room, for requests that begin with the same text.
        exact: batch-invariant mode, and what is asked of the experts in it; None: off.
    """

    def __init__(
        self,
        name: str,
        experts: Mapping[str, ExpertSpec],
        pools: Mapping[str, int],
        device: str = "cpu",
        slots: int = 1,
        threads: int | None = None,
        reuse: bool = False,
        exact: Exact | None = None,
    ) -> None:
        self.specs, self.exact = dict(experts), exact
        self.up = ExecutorUp(name, tuple(experts), dict(pools), slots, reuse, exact is not None)
        self.device = device
        self.threads = threads
        self.experts: dict[str, Expert] = {}
        self._bench = self._new_bench()
        self._mailbox = Mailbox(name, self._bench.launch, self._died, slots)
        self._number = 1
        self._deaths = 0
        self._closed = False
        self._lock = Lock()  # held while anything is reported, so that nothing of an incarnation follows its end
        self._report: Callable[[Report], None] = lambda report: None

    @property
    def name(self) -> str:
        return self.up.executor

    @property
    def slots(self) -> Slots:
        """What the incarnation that lives now keeps."""
        return self._bench.slots

    def start(self, report: Callable[[Report], None]) -> ExecutorUp:
        """Builds the experts in the calling thread, so that what goes wrong is raised here.

        Raises:
            OmniError: a card, a checkpoint or a missing package.
        """
        self._report = report
        self.experts.update(build_all(self.specs, self.up.pools, self.device, self.threads, self.exact))
        self._open()
        return self.up

    def send(self, message: Message) -> None:
        with self._lock:
            if message.executor == self.name:
                self._mailbox.send(message)

    def lose(self, reason: str) -> None:
        self._replace(self._mailbox, reason, back=True)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            mailbox = self._mailbox
        mailbox.close(STOP_S)

    def _new_bench(self) -> Workbench:
        exact = self.exact is not None
        return Workbench(self.name, self.experts, self.device, batch_invariant=exact, threads=self.threads)

    def _open(self) -> None:
        mailbox = self._mailbox
        mailbox.start(lambda report: self._pass_on(mailbox, report))

    def _pass_on(self, mailbox: Mailbox, report: Report) -> None:
        with self._lock:
            if mailbox is self._mailbox:
                self._deaths = 0
                self._report(report)

    def _died(self, mailbox: Mailbox, reason: str) -> None:
        self._deaths += 1
        self._replace(mailbox, f"its thread ended: {reason}", back=self._deaths < DEATHS)

    def _replace(self, mailbox: Mailbox, reason: str, back: bool) -> None:
        with self._lock:
            if mailbox is not self._mailbox:
                return
            back = back and not self._closed
            self._report(ExecutorDown(self.name, reason, back))
            mailbox.abandon()
            self._number += 1
            self.up = ExecutorUp(f"{base(self.name)}#{self._number}", *_hosted(self.up))
            self._bench = self._new_bench()
            self._mailbox = Mailbox(self.name, self._bench.launch, self._died, self.up.slots)
            if back:
                self._open()
                self._report(self.up)


def _hosted(up: ExecutorUp) -> tuple[tuple[str, ...], dict[str, int], int, bool, bool]:
    return up.experts, up.pools, up.slots, up.reuse, up.batch_invariant
