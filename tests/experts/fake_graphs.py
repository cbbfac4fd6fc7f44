"""CUDA graphs without CUDA: a call that is captured is checked for what a capture forbids, and a replay calls it again.

A replay runs the *first* function of a key on the static inputs, so numbers that were not in the key are old ones; and outputs
hold poison until a graph has run, and again from one replay to the end of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from omni_runtime.experts import graphs

# Operators whose result's shape or value the host must learn from the device.
WAITS = {"_local_scalar_dense", "item", "nonzero", "nonzero_static", "masked_select", "equal", "is_nonzero", "bincount", "histc"}
WAITS |= {"_unique2", "unique_dim", "unique_consecutive", "repeat_interleave", "linalg_eigvals", "_linalg_check_errors"}
# Functions that read a tensor on the host, or make one of what lies there.
READS = {"cpu", "numpy", "tolist", "item", "__bool__", "__float__", "__int__", "__index__", "__array__", "tensor", "as_tensor"}
READS |= {"from_numpy", "frombuffer", "pin_memory", "cuda"}


class SyncError(RuntimeError):
    """What a capture would not have allowed."""


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITS and not (name == "repeat_interleave" and (kwargs or {}).get("output_size") is not None):
            raise SyncError(f"operation not permitted when stream is capturing: {name}")
        masks = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        if any(at is not None and at.dtype in (torch.bool, torch.uint8) for at in masks):  # how many are chosen is not known
            raise SyncError(f"operation not permitted when stream is capturing: {name} with a mask")
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS:
            raise SyncError(f"operation not permitted when stream is capturing: {name}")
        return func(*args, **(kwargs or {}))


def poison(tensor: torch.Tensor) -> None:
    """What a reader must notice: NaN, or the largest whole number."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)


class FakeRecorder:
    """See above. `replays` counts them."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def record(self, call: Callable[[], graphs.Outputs]) -> tuple[graphs.Outputs, Callable[[], None]]:
        with _Functions(), _Operators():
            outputs = tuple(made.clone() for made in call())
        self.captures += 1
        for made in outputs:
            poison(made)

        def replay() -> None:
            self.replays += 1
            for made in outputs:
                poison(made)
            with _Functions(), _Operators():
                again = call()
            for made, new in zip(outputs, again, strict=True):
                made.copy_(new)

        return outputs, replay


@contextmanager
def faked() -> Iterator[FakeRecorder]:
    """Every `Graphs` that is made meanwhile, on whatever device, captures and replays by one recorder."""
    recorder = FakeRecorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "recorder_of", lambda device: recorder)
        yield recorder
