"""What an executor keeps: the state of loops by (run, loop), and tensors by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from omni_runtime.work import Row, TensorRef

T = TypeVar("T")
ALIGNED = 64  # bytes: where torch lets a tensor of its own begin on a CPU


class Batch:
    """What one batch was brought and what it has kept, from the call of its op until it is answered.

    It is entered around the call, and again around `collect` where there is one; other batches may be entered in between. What
    was brought can be read while it is entered. What the op kept is let go when either raises: nobody will ever hear of those
    names. A state that the op made stays, and is dropped with its loop.
    """

    __slots__ = ("_brought", "_kept", "_slots")

    def __init__(self, slots: Slots, brought: Iterable[tuple[TensorRef, Any]]) -> None:
        self._slots, self._brought = slots, {ref: slots.fresh(tensor) for ref, tensor in brought}
        self._kept: list[tuple[TensorRef, Any, Any]] = []  # names, what was there before, what is there since

    def __enter__(self) -> Batch:
        self._slots._brought, self._slots._kept = self._brought, self._kept
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        slots = self._slots
        slots._brought, slots._kept = {}, None
        if kind is None:
            return
        for ref, before, since in reversed(self._kept):
            if slots._tensors.get(ref) is not since:  # released or kept anew since the call: that stands
                continue
            if before is None:
                del slots._tensors[ref]
            else:
                slots._tensors[ref] = before

    def stay(self) -> None:
        """What it kept can be read around `collect` also if it is released before."""
        self._brought |= {ref: since for ref, _, since in self._kept}


class Slots:
    """The state of one executor. An op reaches its own loops' state through `state`, others' tensors through `read`.

    The state of a loop belongs to one expert, so one table serves all experts of an executor.

    With `batch_invariant` a result must be the same to the bit in any company: ops choose their kernels by it. Tensors are
    contiguous and aligned then, wherever they came from, or a product could depend on that.
    """

    def __init__(self, home: str, batch_invariant: bool = False) -> None:
        self.home, self.batch_invariant = home, batch_invariant
        self._state: dict[tuple[int, str], Any] = {}
        self._tensors: dict[TensorRef, Any] = {}
        self._brought: dict[TensorRef, Any] = {}
        self._kept: list[tuple[TensorRef, Any, Any]] | None = None  # of the batch that is entered

    def batch(self, brought: Iterable[tuple[TensorRef, Any]] = ()) -> Batch:
        """To be entered around the op of one batch."""
        return Batch(self, brought)

    def state(self, row: Row, make: Callable[[], T]) -> T:
        """State of the row's loop, made on first use."""
        key = (row.run, row.loop)
        found = self._state.get(key)
        if found is None:
            found = self._state[key] = make()
        return found

    def other(self, run: int, loop: str) -> Any:
        """State of another loop, to copy from.

        Raises:
            KeyError: it was dropped, or never made here.
        """
        return self._state[run, loop]

    def saved(self, rows: Sequence[Row]) -> dict[tuple[int, str], Any]:
        """States of the rows' loops, as they stand: shallow copies, None where there is none."""
        return {key: copy.copy(self._state.get(key)) for key in ((row.run, row.loop) for row in rows)}

    def restore(self, saved: Mapping[tuple[int, str], Any]) -> None:
        """States are again what they were."""
        for key, state in saved.items():
            if state is None:
                self._state.pop(key, None)
            else:
                self._state[key] = state

    def drop(self, run: int, loop: str) -> None:
        self._state.pop((run, loop), None)

    def keep(self, row: Row, port: str, index: int, tensor: Any) -> TensorRef:
        """Keeps a tensor until nobody reads it, and names it."""
        tensor = self.fresh(tensor)
        ref = TensorRef(self.home, row.run, row.loop, port, index, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if self._kept is not None:
            self._kept.append((ref, self._tensors.get(ref), tensor))
        self._tensors[ref] = tensor
        return ref

    def fresh(self, tensor: Any) -> Any:
        """The tensor, or a copy of it that begins where a new one would and has no gaps."""
        if not self.batch_invariant or not hasattr(tensor, "data_ptr"):
            return tensor
        return tensor if tensor.is_contiguous() and tensor.data_ptr() % ALIGNED == 0 else tensor.clone().contiguous()

    def read(self, ref: TensorRef) -> Any:
        """The tensor behind a name.

        Raises:
            KeyError: it was released, or never made here, and was not brought with the batch that runs.
        """
        found = self._tensors.get(ref)
        return self._brought[ref] if found is None else found

    def release(self, refs: tuple[TensorRef, ...]) -> None:
        for ref in refs:
            self._tensors.pop(ref, None)

    @property
    def counts(self) -> tuple[int, int]:
        """Live (states, tensors): both zero when no request is alive."""
        return len(self._state), len(self._tensors)
