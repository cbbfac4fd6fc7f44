"""The experts of an executor, loaded, and what one incarnation of it keeps: carries out one message at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from omni_runtime.card import ExpertSpec
from omni_runtime.errors import CardError, OmniError, ResultError
from omni_runtime.executors import tensors
from omni_runtime.experts.base import Expert, verified
from omni_runtime.experts.slots import Slots
from omni_runtime.work import Answer, Broken, Message, Release, RunBatch, StepResult


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


def build_all(specs: Mapping[str, ExpertSpec], device: str, threads: int | None = None) -> dict[str, Expert]:
    """All experts of an executor, by name.

    Args:
        device: as torch names it.
        threads: of torch on a CPU, a setting of the whole process; None leaves it.

    Raises:
        OmniError: a card, a checkpoint, a missing package, or kernels that `OMNI_KERNELS` asks for and that cannot run there.
    """
    if threads is not None or device != "cpu":
        import torch

        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as e:
            raise CardError(f"device={device!r}: torch cannot use it here: {str(e).splitlines()[0]}") from None
        if threads is not None:
            torch.set_num_threads(threads)
    if asked := os.environ.get("OMNI_KERNELS"):  # now, and not when the first request comes
        import torch

        from omni_runtime.kernels import settled

        computes = any(spec.place == "device" for spec in specs.values())  # the host's experts are free to take what they need
        settled("OMNI_KERNELS", asked, torch.device(device) if computes else None)
    return {name: build(name, spec, device) for name, spec in specs.items()}


def told(error: Exception) -> str:
    """An exception as a sentence: ours say all, of others the place in the code helps."""
    if isinstance(error, OmniError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"
    return f"{error!r}{where}"


class Workbench:
    """Carries out messages.

    Args:
        name: of the incarnation that works here.
        experts: resident and without state of their own, so that the next incarnation may have them too.
        device: where they are.
        own: arrays that are brought, and can be written to, were made for nobody else.
    """

    def __init__(self, name: str, experts: Mapping[str, Expert], device: str, own: bool = False) -> None:
        self.name, self.experts, self.device, self.own = name, experts, device, own
        self.slots = Slots(name)

    def run(self, message: Message) -> Answer | Broken | None:
        """Carries out one message; batches are answered."""
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
            with self.slots.batch(tensors.tensors(batch.brought, self.device, self.own)):
                results = verified(self.experts[batch.expert].ops[batch.op](batch.rows, self.slots), batch.rows)
                self._copy(results)
        except Exception as error:  # text only: a kept exception keeps its frames' tensors alive
            return Broken(self.name, batch.batch, f"expert {batch.expert!r}, op {batch.op!r}: {told(error)}")
        return Answer(self.name, batch.batch, results, time.perf_counter() - start)

    def forget(self, answer: Answer) -> None:
        """Lets go of the tensors of an answer that nobody will hear."""
        for result in answer.results:
            for refs in result.tensors.values():
                self.slots.release(refs)

    def _copy(self, results: list[StepResult]) -> None:
        """Fills `copies`: what was given outlives the executor."""
        refs = [ref for result in results for refs in result.tensors.values() for ref in refs]
        if not refs:
            return
        try:
            arrays = iter(tensors.arrays([self.slots.read(ref) for ref in refs]))
        except KeyError as error:
            raise ResultError(f"gave the name of a tensor that is not kept: {error}; name what slots.keep returned") from None
        for result in results:
            result.copies = {port: tuple(next(arrays) for _ in refs) for port, refs in result.tensors.items()}
