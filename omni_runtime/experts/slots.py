"""What an executor keeps: the state of loops by (run, loop), and tensors by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from omni_runtime.work import Row, TensorRef

T = TypeVar("T")
ALIGNED = 64  # bytes: where torch lets a tensor of its own begin on a CPU


class Slots:
    """The state of one executor. An op reaches its own loops' state through `state`, others' tensors through `read`.

    The state of a loop belongs to one expert, so one table serves all experts of an executor.

    With `batch_invariant` a result must be the same to the bit in any company: ops choose their kernels by it. Tensors are
    contiguous and aligned then, wherever they came from, or a product could depend on that. And a batch that raised leaves the
    states of loops as they were, since its first rows may have run before another was looked at.
    """

    def __init__(self, home: str, batch_invariant: bool = False) -> None:
        self.home, self.batch_invariant = home, batch_invariant
        self._state: dict[tuple[int, str], Any] = {}
        self._tensors: dict[TensorRef, Any] = {}
        self._brought: dict[TensorRef, Any] = {}
        self._kept: list[tuple[TensorRef, Any]] | None = None  # by the batch that runs: names, and what was there before
        self._before: dict[tuple[int, str], Any] = {}  # states before the batch that runs, shallow copies

    @contextmanager
    def batch(self, brought: Iterable[tuple[TensorRef, Any]] = ()) -> Iterator[None]:
        """Around the op of one batch: what it was brought can be read until it is over.

        What an op kept before it raised is let go again: nobody will ever hear of those names. A state that the op made stays,
        and is dropped with its loop.
        """
        kept = self._kept = []
        try:
            self._brought = {ref: self._fresh(tensor) for ref, tensor in brought}
            yield
        except BaseException:
            for ref, before in reversed(kept):
                if before is None:
                    self._tensors.pop(ref, None)
                else:
                    self._tensors[ref] = before
            self._state |= self._before
            raise
        finally:
            self._brought, self._kept, self._before = {}, None, {}

    def state(self, row: Row, make: Callable[[], T]) -> T:
        """State of the row's loop, made on first use."""
        key = (row.run, row.loop)
        found = self._state.get(key)
        if found is None:
            found = self._state[key] = make()
        if self.batch_invariant and self._kept is not None and key not in self._before:
            self._before[key] = copy.copy(found)
        return found

    def other(self, run: int, loop: str) -> Any:
        """State of another loop, to copy from.

        Raises:
            KeyError: it was dropped, or never made here.
        """
        return self._state[run, loop]

    def drop(self, run: int, loop: str) -> None:
        self._state.pop((run, loop), None)

    def keep(self, row: Row, port: str, index: int, tensor: Any) -> TensorRef:
        """Keeps a tensor until nobody reads it, and names it."""
        tensor = self._fresh(tensor)
        ref = TensorRef(self.home, row.run, row.loop, port, index, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if self._kept is not None:
            self._kept.append((ref, self._tensors.get(ref)))
        self._tensors[ref] = tensor
        return ref

    def _fresh(self, tensor: Any) -> Any:
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
