"""Whole programs on a fake GPU: a runtime whose device is "cuda", and what each batch of its ops made the host wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from fake_gpu import FakeGpu
from fake_kernels import launched

from omni_runtime.card import ModelCard
from omni_runtime.executors.lineup import lineup
from omni_runtime.executors.mailbox import Mailbox
from omni_runtime.runtime import Runtime

KV_BYTES = 1 << 21  # of a pool: what a wrapper is given is copied, to be put back before its definition runs


class Batch(NamedTuple):
    """What the host waited for in one batch: in the op's call, and in its `collect` where it has one."""

    rows: int
    reads: int
    sends: int
    launches: int
    told: str


class DryRun:
    """A runtime on a fake GPU. `batches` has those of each op, by "expert.op"."""

    def __init__(self, runtime: Runtime, gpu: FakeGpu, batches: dict[str, list[Batch]]) -> None:
        self.runtime, self.gpu, self.batches = runtime, gpu, batches

    def most(self) -> dict[str, tuple[int, int]]:
        """(reads, sends) of an op's worst batches."""
        return {
            op: (max(one.reads for one in found), max(one.sends for one in found))
            for op, found in sorted(self.batches.items())
            if found
        }

    def told(self, op: str) -> str:
        """Where the worst batch of an op waited."""
        return max(self.batches[op], key=lambda one: one.reads + one.sends).told


class _Counted:
    """An op, counted."""

    def __init__(self, op: Any, gpu: FakeGpu, into: list[Batch]) -> None:
        self._op, self._gpu, self._into = op, gpu, into

    def __call__(self, rows: Any, slots: Any) -> Any:
        self._gpu.clear()
        found = self._op(rows, slots)
        (reads, sends), launches, told = self._gpu.waits, self._gpu.launched.total(), self._gpu.told()
        if isinstance(found, list):
            self._into.append(Batch(len(rows), reads, sends, launches, told))
            return found
        return _Collected(found, self._gpu, self._into, Batch(len(rows), reads, sends, launches, told))


class _Collected:
    """A launched batch, counted. What it waits for is all in `collect`, of whatever was queued between."""

    def __init__(self, launched: Any, gpu: FakeGpu, into: list[Batch], called: Batch) -> None:
        self._launched, self._gpu, self._into, self._called = launched, gpu, into, called

    def collect(self) -> Any:
        self._gpu.clear()
        found = self._launched.collect()
        (reads, sends), was = self._gpu.waits, self._called
        told = f"{was.told}\nin collect:\n{self._gpu.told()}"
        self._into.append(was._replace(reads=was.reads + reads, sends=was.sends + sends, told=told))
        return found


@contextmanager
def dry(cards: Sequence[ModelCard], **options: Any) -> Iterator[DryRun]:
    """A runtime on a fake GPU; `options` are those of `lineup` after the device."""
    real, batches = Mailbox._loop, defaultdict[str, list[Batch]](list)
    with FakeGpu() as gpu, launched(gpu):

        def loop(self: Mailbox) -> None:
            if not self._name.startswith("cuda"):
                return real(self)
            with gpu.here():
                return real(self)

        executors = lineup(cards, "thread", "cuda", KV_BYTES, **options)
        for executor in executors:
            if executor.name.startswith("cuda"):
                executor.start = _counting(executor, executor.start, gpu, batches)  # type: ignore[method-assign]
        with patch.object(Mailbox, "_loop", loop), Runtime(cards, executors=executors, hang_after_s=None) as runtime:
            yield DryRun(runtime, gpu, batches)


def _counting(executor: Any, start: Any, gpu: FakeGpu, batches: dict[str, list[Batch]]) -> Any:
    def started(report: Any) -> Any:
        up = start(report)
        for name, expert in executor.experts.items():
            ops = {op: _Counted(call, gpu, batches[f"{name.partition('/')[2]}.{op}"]) for op, call in expert.ops.items()}
            expert.ops = ops
        return up

    return started
