"""What an executor keeps: the state of loops by (run, loop), and tensors by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from omni_runtime.work import Row, TensorRef

T = TypeVar("T")


class Slots:
    """The state of one executor. An op reaches its own loops' state through `state`, others' tensors through `read`.

    The state of a loop belongs to one expert, so one table serves all experts of an executor.
    """

    def __init__(self, home: str) -> None:
        self.home = home
        self._state: dict[tuple[int, str], Any] = {}
        self._tensors: dict[TensorRef, Any] = {}
        self._brought: dict[TensorRef, Any] = {}
        self._kept: list[tuple[TensorRef, Any]] | None = None  # by the batch that runs: names, and what was there before

    @contextmanager
    def batch(self, brought: Iterable[tuple[TensorRef, Any]] = ()) -> Iterator[None]:
        """Around the op of one batch: what it was brought can be read until it is over.

        What an op kept before it raised is let go again: nobody will ever hear of those names. A state that the op made stays,
        and is dropped with its loop.
        """
        kept = self._kept = []
        try:
            self._brought = dict(brought)
            yield
        except BaseException:
            for ref, before in reversed(kept):
                if before is None:
                    self._tensors.pop(ref, None)
                else:
                    self._tensors[ref] = before
            raise
        finally:
            self._brought, self._kept = {}, None

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

    def drop(self, run: int, loop: str) -> None:
        self._state.pop((run, loop), None)

    def keep(self, row: Row, port: str, index: int, tensor: Any) -> TensorRef:
        """Keeps a tensor until nobody reads it, and names it."""
        ref = TensorRef(self.home, row.run, row.loop, port, index, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if self._kept is not None:
            self._kept.append((ref, self._tensors.get(ref)))
        self._tensors[ref] = tensor
        return ref

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
