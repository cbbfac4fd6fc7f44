"""A tensor of the fake GPU: it says that it is there, and what is done with it is done by `FakeGpu`.

Methods that are defined here are those whose C++ asks for a guard of the device, which a build of torch without CUDA lacks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

CUDA = torch.device("cuda", 0)


class Fake(torch.Tensor):
    """A tensor of the device; `numbers` are on the host."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Fake:
        assert inner.device.type == "cpu" and not isinstance(inner, Fake)
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype, device=CUDA
        )
        made.numbers = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _gpu().run(func, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory"
            )
        return self.detach().cpu().numpy()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __getitem__(self, index: Any) -> Any:
        return _gpu().taken(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        _gpu().put(self, index, value)

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> Any:
        return _gpu().run(torch.ops.aten.copy_.default, (self, source, non_blocking), {})

    def item(self) -> Any:
        return _gpu().run(torch.ops.aten._local_scalar_dense.default, (self,), {})

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __invert__(self) -> Any:
        return _gpu().run(torch.ops.aten.bitwise_not.default, (self,), {})

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
        return _gpu().run(torch.ops.aten.contiguous.default, (self,), {"memory_format": memory_format})

    def nonzero(self) -> Any:  # type: ignore[override]
        return _gpu().run(torch.ops.aten.nonzero.default, (self,), {})

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Fake({self.numbers!r})"


def _gpu() -> Any:
    from fake_gpu import FakeGpu

    assert FakeGpu.now is not None, "a tensor of a fake GPU that is gone"
    return FakeGpu.now


def is_fake(x: Any) -> bool:
    """Whether it is a tensor of the device. A parameter of a module may be one of another class."""
    return isinstance(x, torch.Tensor) and hasattr(x, "numbers")


def inner(tree: Any) -> Any:
    """The same with tensors of the host in place of the device's."""
    return tree_map(lambda x: x.numbers if is_fake(x) else x, tree)


def fake(tree: Any) -> Any:
    """The same with tensors of the device in place of the host's."""
    return tree_map(lambda x: Fake(x) if isinstance(x, torch.Tensor) and not is_fake(x) else x, tree)
