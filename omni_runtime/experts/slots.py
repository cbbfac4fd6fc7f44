"""What an executor keeps: the state of loops by (run, loop), and tensors by name."""

from __future__ import annotations

from collections.abc import Callable
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
        self._tensors[ref] = tensor
        return ref

    def read(self, ref: TensorRef) -> Any:
        """The tensor behind a name.

        Raises:
            KeyError: it was released, or never made here.
        """
        return self._tensors[ref]

    def release(self, refs: tuple[TensorRef, ...]) -> None:
        for ref in refs:
            self._tensors.pop(ref, None)

    @property
    def counts(self) -> tuple[int, int]:
        """Live (states, tensors): both zero when no request is alive."""
        return len(self._state), len(self._tensors)
