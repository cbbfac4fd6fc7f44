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
from torch.utils._pytree import tree_leaves

from omni_runtime.errors import OmniError
from omni_runtime.experts import graphs

# Operators whose result's shape or value the host must learn from the device.
WAITS = {"_local_scalar_dense", "item", "nonzero", "nonzero_static", "masked_select", "equal", "is_nonzero", "bincount", "histc"}
WAITS |= {"_unique2", "unique_dim", "unique_consecutive", "repeat_interleave", "linalg_eigvals", "_linalg_check_errors"}
# Functions that read a tensor on the host, or make one of what lies there.
READS = {"cpu", "numpy", "tolist", "item", "__bool__", "__float__", "__int__", "__index__", "__array__", "tensor", "as_tensor"}
READS |= {"from_numpy", "frombuffer", "pin_memory", "cuda"}


class SyncError(RuntimeError):
    """What a capture would not have allowed."""


MAKES = {"tensor", "as_tensor", "from_numpy", "frombuffer", "pin_memory", "cuda"}  # of READS: those that only send


class _Operators(TorchDispatchMode):
    """Refuses what waits; with `tape`, writes down every operator, what it was given and what it gave."""

    def __init__(self, tape: list[_Operator] | None = None) -> None:
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, dict(kwargs or {})
        if name in WAITS and not (name == "repeat_interleave" and kwargs.get("output_size") is not None):
            raise SyncError(f"operation not permitted when stream is capturing: {name}")
        masks = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        if any(at is not None and at.dtype in (torch.bool, torch.uint8) for at in masks):  # how many are chosen is not known
            raise SyncError(f"operation not permitted when stream is capturing: {name} with a mask")
        found = func(*args, **kwargs)
        if self.tape is not None:
            self.tape.append(_Operator(func, args, kwargs, found))
        return found


class _Operator:
    """One operator of a graph: always on the same memory."""

    def __init__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.outs = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        self.writes = func._schema.is_mutable
        self.view = not self.writes and all(x.untyped_storage()._cdata in given for x in self.outs)

    def __call__(self) -> None:
        if self.view:  # of memory that stays where it is
            return
        again = self.func(*self.args, **self.kwargs)
        if not self.writes:
            for out, new in zip(self.outs, (x for x in tree_leaves(again) if isinstance(x, torch.Tensor)), strict=True):
                out.copy_(new)


class _Functions(TorchFunctionMode):
    def __init__(self, refused: set[str]) -> None:
        super().__init__()
        self.refused = refused

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.refused:
            raise SyncError(f"operation not permitted when stream is capturing: {name}")
        return func(*args, **(kwargs or {}))


@contextmanager
def capturing(tape: list[_Operator]) -> Iterator[None]:
    """A capture: what runs inside is written down."""
    with _Functions(READS), _Operators(tape):
        yield


@contextmanager
def launching() -> Iterator[None]:
    """What an op may do in its call: send to the device, and never wait for it."""
    with _Functions(READS - MAKES), _Operators():
        yield


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
        tape: list[_Operator] = []
        with capturing(tape):
            outputs = tuple(made.clone() for made in call())
        self.captures += 1
        for made in outputs:
            poison(made)

        @torch.inference_mode()
        def replay() -> None:
            self.replays += 1
            for made in outputs:
                poison(made)
            for operator in tape:
                operator()

        return outputs, replay


@contextmanager
def noticed() -> Iterator[None]:
    """A planted bug is: by a comparison, or by what may not be done in a call or a capture; not by an accident of the test."""
    try:
        yield
    except (AssertionError, SyncError):
        return
    except OmniError as error:
        if "cannot be captured as a CUDA graph: operation not permitted" not in str(error):
            raise
        return
    pytest.fail("nobody noticed")


@contextmanager
def faked() -> Iterator[FakeRecorder]:
    """Every `Graphs` that is made meanwhile, on whatever device, captures and replays by one recorder."""
    recorder = FakeRecorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "recorder_of", lambda device: recorder)
        yield recorder
