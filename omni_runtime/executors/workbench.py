"""The experts of an executor, loaded, and what one incarnation of it keeps: carries out messages."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from omni_runtime.card import ExpertSpec
from omni_runtime.errors import CardError, OmniError, ResultError
from omni_runtime.executors import tensors
from omni_runtime.experts.base import Expert, Launched, Op, invariant, verified
from omni_runtime.experts.slots import Batch, Slots
from omni_runtime.work import Answer, Broken, Message, Release, Row, RunBatch, StepResult

if TYPE_CHECKING:
    from omni_runtime.experts.device_queue import DeviceQueue, Mark

Exact = Mapping[str, Collection[str]]
""""card/expert" -> ops of which rows must be exact in any company and any granted size"""


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


def build_all(
    specs: Mapping[str, ExpertSpec],
    pools: Mapping[str, int],
    device: str,
    threads: int | None = None,
    exact: Exact | None = None,
) -> dict[str, Expert]:
    """All experts of an executor, by name.

    Args:
        specs: their lines on their cards.
        pools: KV blocks, for those that keep some.
        device: as torch names it.
        threads: of torch on a CPU, a setting of the whole process; None leaves it.
        exact: what is asked of them in batch-invariant mode; None: that is off.

    Raises:
        OmniError: a card, a checkpoint, a missing package, or kernels that `OMNI_KERNELS` asks for and that cannot run there.
        CardError: an op cannot be what `exact` asks.
    """
    if threads is not None or device != "cpu":
        import torch

        try:
            kind = torch.empty(0, device=device).device.type
        except (RuntimeError, AssertionError) as e:
            reason = str(e).splitlines()[0][:120]
            remedy = "take device='cpu', or a torch that is built for this machine's GPU, if nvidia-smi or rocm-smi shows one"
            raise CardError(f"device={device!r}: torch cannot use it here: {reason}; {remedy}") from None
        if kind not in ("cpu", "cuda"):
            raise CardError(f"device={device!r}: experts compute on 'cpu' and 'cuda' (which is also AMD's, by ROCm)")
        if threads is not None:
            torch.set_num_threads(threads)
    if asked := os.environ.get("OMNI_KERNELS"):  # now, and not when the first request comes
        import torch

        from omni_runtime.kernels import settled

        computes = any(spec.place == "device" for spec in specs.values())  # the host's experts are free to take what they need
        settled("OMNI_KERNELS", asked, torch.device(device) if computes else None)
    found = {name: build(name, spec, device) for name, spec in specs.items()}
    for name, ops in (exact or {}).items():
        if short := sorted(set(ops) - invariant(found[name])):
            own = "the expert does not name it in `invariant`; see designs/0029-batch-invariant.md, or leave batch_invariant out"
            why = getattr(found[name], "varies", "") or own
            raise CardError(
                f"expert {name!r}, op {short[0]!r}: batch_invariant=True needs results that do not depend on how much work is "
                f"granted at once, and these do: {why}"
            )
    for name, expert in found.items():
        if name in pools and (allot := getattr(expert, "allot", None)) is not None:
            allot(pools[name], specs[name].block)
    return found


def told(error: Exception) -> str:
    """An exception as a sentence: ours say all, of others the place in the code helps."""
    if isinstance(error, OmniError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"
    return f"{error!r}{where}"


class DeviceLost(BaseException):
    """The device refuses all work, as after an illegal access: only a new process can use it. Ends the thread or the process."""


class Workbench:
    """Carries out messages, all in one thread.

    Args:
        name: of the incarnation that works here.
        experts: resident and without state of their own, so that the next incarnation may have them too.
        device: where they are.
        own: arrays that are brought, and can be written to, were made for nobody else.
        batch_invariant: every result is the same to the bit in any company: ops that do not see to that run row by row.
        threads: what torch is set to before every batch in that mode, since others in the process may set it, too; None: nothing.
        queue: of the device; found by itself.
    """

    def __init__(
        self,
        name: str,
        experts: Mapping[str, Expert],
        device: str,
        own: bool = False,
        batch_invariant: bool = False,
        threads: int | None = None,
        queue: DeviceQueue | None = None,
    ) -> None:
        self.name, self.experts, self.device, self.own = name, experts, device, own
        self.slots = Slots(name, batch_invariant)
        self._threads = threads if batch_invariant else None
        self.queue = queue
        self.ended = 0.0  # when the last batch was over, on the host's clock
        self._open = queue is not None or device == "cpu"

    def run(self, message: Message) -> Answer | Broken | None:
        """Carries out one message to its end; batches are answered."""
        found = self.launch(message)
        return found.collect() if isinstance(found, Flying) else found

    def launch(self, message: Message) -> Answer | Broken | Flying | None:
        """Carries out one message; of a batch that its op has only launched, what will answer it: to be collected in order."""
        if isinstance(message, RunBatch):
            return self._batch(message)
        if isinstance(message, Release):
            self.slots.release(message.refs)
        else:
            for run, loop in message.slots:
                self.slots.drop(run, loop)
        return None

    def _batch(self, batch: RunBatch) -> Answer | Broken | Flying:
        if not self._open:  # streams are chosen by thread, so it is done here and not where the bench was made
            from omni_runtime.experts.device_queue import opened

            self.queue, self._open = opened(self.device), True
        start = time.perf_counter()
        if self._threads is not None:
            import torch

            torch.set_num_threads(self._threads)
        queue = self.queue
        begun = None if queue is None else queue.mark(timed=True)
        try:
            with self.slots.batch(tensors.tensors(batch.brought, self.device, self.own, queue)) as held:
                expert = self.experts[batch.expert]
                op = expert.ops[batch.op]
                if self.slots.batch_invariant and batch.op not in invariant(expert):
                    results: list[StepResult] | Launched = self._by_row(op, batch.rows)
                else:
                    results = op(batch.rows, self.slots)
                if isinstance(results, list) or not callable(getattr(results, "collect", None)):
                    results = verified(results, batch.rows)
                    self._copy(results)
        except Exception as error:
            return self.broken(batch, error)
        if isinstance(results, list):
            self.ended = time.perf_counter()
            return Answer(self.name, batch.batch, results, self.ended - start)
        held.stay()
        begun, end = getattr(results, "marks", None) or (begun, None if queue is None else queue.mark(timed=True))
        return Flying(self, batch, held, results, start, begun, end)

    def collected(self, batch: RunBatch, held: Batch, launched: Launched, after: Mark | None) -> list[StepResult]:
        """The results of a batch that was launched."""
        with held:
            results = verified(launched.collect(), batch.rows)
            self._copy(results, after)
        return results

    def broken(self, batch: RunBatch, error: Exception) -> Broken:
        """Text only: a kept exception keeps its frames' tensors alive.

        Raises:
            DeviceLost: it was no fault of the batch's that ends with it.
        """
        text = f"expert {batch.expert!r}, op {batch.op!r}: {told(error)}"
        if self.queue is not None and isinstance(error, RuntimeError):  # what torch raises
            try:
                self.queue.mark().wait()
            except RuntimeError:
                raise DeviceLost(text) from None
        return Broken(self.name, batch.batch, text)

    def _by_row(self, op: Op, rows: Sequence[Row]) -> list[StepResult]:
        """A call for each row. One that raises leaves the states of all as they were: they will be run again."""
        saved, found = self.slots.saved(rows), []
        try:
            for row in rows:
                made: object = op([row], self.slots)
                found += verified(made.collect() if hasattr(made, "collect") else made, [row])
        except BaseException:
            self.slots.restore(saved)
            raise
        return found

    def forget(self, answer: Answer) -> None:
        """Lets go of the tensors of an answer that nobody will hear."""
        for result in answer.results:
            for refs in result.tensors.values():
                self.slots.release(refs)

    def _copy(self, results: list[StepResult], after: Mark | None = None) -> None:
        """Fills `copies`: what was given outlives the executor. With `after`, read behind that moment only."""
        refs = [ref for result in results for refs in result.tensors.values() for ref in refs]
        if not refs:
            return
        try:
            found = [self.slots.read(ref) for ref in refs]
        except KeyError as error:
            raise ResultError(f"gave the name of a tensor that is not kept: {error}; name what slots.keep returned") from None
        arrays = iter(tensors.arrays(found, self.queue, after))
        for result in results:
            result.copies = {port: tuple(next(arrays) for _ in refs) for port, refs in result.tensors.items()}


class Flying:
    """A batch on the device. Its seconds are the device's: from the later of its launch and the end of the batch before it."""

    def __init__(
        self,
        bench: Workbench,
        batch: RunBatch,
        held: Batch,
        launched: Launched,
        start: float,
        begun: Mark | None,
        end: Mark | None,
    ) -> None:
        self._bench, self._batch, self._held, self._launched = bench, batch, held, launched
        self._start, self._begun, self._end = start, begun, end

    def wait(self) -> None:
        if self._end is not None:
            try:
                self._end.wait()
            except Exception:  # in another thread: `collect` waits again, and says it
                pass

    def collect(self) -> Answer | Broken:
        bench, batch = self._bench, self._batch
        try:
            if self._end is not None:
                self._end.wait()
            results = bench.collected(batch, self._held, self._launched, self._end)
        except Exception as error:
            return bench.broken(batch, error)
        before, bench.ended = bench.ended, time.perf_counter()
        if self._begun is not None and self._end is not None:
            return Answer(bench.name, batch.batch, results, self._end.since(self._begun))
        return Answer(bench.name, batch.batch, results, bench.ended - max(self._start, before))
