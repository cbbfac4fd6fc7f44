"""The executor for a device of this process: the experts of some cards behind one mailbox."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from omni_runtime.card import ExpertSpec
from omni_runtime.errors import CardError, OmniError
from omni_runtime.executors.mailbox import Mailbox
from omni_runtime.experts.base import Expert, verified
from omni_runtime.experts.slots import Slots
from omni_runtime.work import Answer, Broken, ExecutorUp, Message, Release, Report, RunBatch


def build(name: str, spec: ExpertSpec, device: str) -> Expert:
    """The expert that a card describes.

    Raises:
        CardError: the builder does not exist, or the expert lacks an op of the card.
    """
    module, _, function = spec.build.partition(":")
    try:
        builder = getattr(import_module(module), function)
    except (ModuleNotFoundError, AttributeError) as e:
        raise CardError(f"expert {name!r}: build={spec.build!r} cannot be found: {e}") from None
    expert: Expert = builder(spec.options, device)
    for op in spec.ops:
        if op not in expert.ops:
            raise CardError(f"expert {name!r}: {spec.build} has ops {sorted(expert.ops)}, the card names {op!r}")
    return expert


def told(error: Exception) -> str:
    """An exception as a sentence: ours say all, of others the place in the code helps."""
    if isinstance(error, OmniError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"
    return f"{error!r}{where}"


class ThreadExecutor:
    """Runs batches in a thread of its own, in the order given.

    Args:
        name: of this incarnation of the executor.
        experts: "card/expert" -> its line on the card; built when the executor starts.
        pools: "card/expert" -> KV blocks that may be in use at once.
        device: as torch names it.
        slots: batches that may lie in the mailbox at once.
        threads: of torch on a CPU; None leaves the process's setting.
        reuse: keep the KV of ended loops while there is room, for requests that begin with the same text.
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
    ) -> None:
        self.name = name
        self.specs = dict(experts)
        self.up = ExecutorUp(name, tuple(experts), dict(pools), slots, reuse)
        self.device = device
        self.threads = threads
        self.slots = Slots(name)
        self.experts: dict[str, Expert] = {}
        self._mailbox = Mailbox(name, self._run)

    def start(self, report: Callable[[Report], None]) -> ExecutorUp:
        """Builds the experts in the calling thread, so that what goes wrong is raised here.

        Raises:
            OmniError: a card, a checkpoint or a missing package.
        """
        if self.threads is not None or self.device != "cpu":
            self._prepare()
        self.experts = {name: build(name, spec, self.device) for name, spec in self.specs.items()}
        self._mailbox.start(report)
        return self.up

    def _prepare(self) -> None:
        import torch

        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as e:
            raise CardError(f"device={self.device!r}: torch cannot use it here: {str(e).splitlines()[0]}") from None
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def send(self, message: Message) -> None:
        self._mailbox.send(message)

    def close(self) -> None:
        self._mailbox.close()

    def _run(self, message: Message) -> Answer | Broken | None:
        if isinstance(message, RunBatch):
            return self._batch(message)
        if isinstance(message, Release):
            self.slots.release(message.refs)
        else:
            for run, loop in message.slots:
                self.slots.drop(run, loop)
        return None

    def _batch(self, batch: RunBatch) -> Answer | Broken:
        start = time.perf_counter()
        try:
            results = verified(self.experts[batch.expert].ops[batch.op](batch.rows, self.slots), batch.rows)
        except Exception as error:  # text only: a kept exception keeps its frames' tensors alive
            return Broken(self.name, batch.batch, f"expert {batch.expert!r}, op {batch.op!r}: {told(error)}")
        return Answer(self.name, batch.batch, results, time.perf_counter() - start)
