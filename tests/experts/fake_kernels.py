"""Triton kernels on a fake GPU: their wrappers run, launches are checked and counted, and numbers come from the definitions.

So all Python that stands between an expert and a launch is what runs on a GPU, and an expert's answers can still be held against
the CPU's. That kernels compute what definitions say is the business of `tests/kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch
from fake_gpu import FakeGpu
from fake_tensor import inner, is_fake
from omni_runtime.kernels import Plan
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten

KERNELS = Path(__file__).parents[2] / "kernels"


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def _told(x: Any) -> Any:
    """A plan as the kernel reads it: by its tensors, which a graph replays with others, and not by what the host knows of it."""
    if not isinstance(x, Plan):
        return x
    counts, lengths = tuple(x.starts_R.diff().tolist()), tuple(x.lengths_R.tolist())
    return x._replace(counts=counts, lengths=lengths, held=(x.blocks_RB.shape[1],) * len(counts), least=0)


def checked(gpu: FakeGpu, name: str, wrapper: Callable[..., Any], definition: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper whose results are filled in by the definition."""

    def call(*args: Any, **kwargs: Any) -> Any:
        before = [(x.numbers, x.numbers.clone()) for x in _tensors((args, kwargs)) if is_fake(x)]
        recording, gpu.recording = gpu.recording, None if gpu.recording is None else []
        try:
            made = wrapper(*args, **kwargs)
        finally:
            gpu.recording = recording
        plain = inner((args, kwargs))

        def fill() -> None:
            right = definition(*map(_told, plain[0]), **plain[1])
            found, needed = _tensors(made), _tensors(right)
            assert len(found) == len(needed), f"{name}: {len(found)} results, the definition gives {len(needed)}"
            for ours, theirs in zip(found, needed, strict=True):
                assert is_fake(ours), f"{name}: a result on {ours.device}"
                told = (ours.dtype, tuple(ours.shape))
                assert told == (theirs.dtype, tuple(theirs.shape)), f"{name}: {told}, the definition has {theirs.shape}"
                ours.numbers.copy_(theirs)

        with _disable_current_modes(), torch.inference_mode():
            for x, was in before:  # what the wrapper itself has changed, as in place of a kernel
                if x.numel():
                    x.copy_(was)
            fill()
        if gpu.recording is not None:
            gpu.recording.append(fill)
        return made

    return call


def _pairs() -> Iterator[tuple[Any, Any]]:
    """Modules of wrappers, and of their definitions."""
    for path in sorted(KERNELS.glob("*_triton.py")):
        yield (
            import_module(f"omni_runtime.kernels.{path.stem}"),
            import_module(f"omni_runtime.kernels.{path.stem.removesuffix('_triton')}"),
        )


@contextmanager
def launched(gpu: FakeGpu) -> Iterator[None]:
    """Within it every launch of a kernel is counted in `gpu.launched`, and refused where a GPU would refuse it."""
    from triton.runtime.jit import JITFunction

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> None:
        for x in args:
            if isinstance(x, torch.Tensor) and not is_fake(x):
                raise ValueError(f"{self.__name__}: Pointer argument cannot be accessed from Triton (cpu tensor?)")
        size = grid(options) if callable(grid) else grid
        assert all(type(n) is int and 0 < n < 2**31 for n in size), f"{self.__name__}: grid {size}"
        gpu.launched[f"{self.fn.__module__.rpartition(chr(46))[2]}.{self.__name__.lstrip(chr(95))}"] += 1

    with ExitStack() as stack:
        stack.enter_context(patch.object(JITFunction, "run", run))
        for wrappers, definitions in _pairs():
            for name, wrapper in vars(wrappers).items():
                definition = vars(definitions).get(name)
                ours = isinstance(wrapper, FunctionType) and wrapper.__module__ == wrappers.__name__
                if ours and isinstance(definition, FunctionType) and definition.__module__ == definitions.__name__:
                    stack.enter_context(patch.object(wrappers, name, checked(gpu, name, wrapper, definition)))
        yield
