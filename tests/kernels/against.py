"""What tests of Triton kernels share: poisoned memory, tolerances, and kernels with a bug planted."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") == "1":
    import bf16_repair

    bf16_repair.install()

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ULP = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}  # of one rounding, relative or absolute
RMS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}  # of a sum of products, relative to the whole
SENTINEL, TAIL = 4096, -1216
_number = itertools.count()


def draws(seed: int, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """A source of normals of a dtype, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator).to(dtype)


def inside_nan(x: torch.Tensor) -> torch.Tensor:
    """The same values as a view into memory that is NaN before, behind and, where there are two axes or more, between them."""
    if x.dim() < 2:
        memory = torch.full((x.numel() + 2 * SENTINEL,), torch.nan, dtype=x.dtype)
        return memory[SENTINEL : SENTINEL + x.numel()].view(x.shape).copy_(x)
    memory = torch.full((x.shape[0] + 2, *x.shape[1:-1], x.shape[-1] + 16), torch.nan, dtype=x.dtype)
    return memory[1:-1, ..., 3 : 3 + x.shape[-1]].copy_(x)


@contextmanager
def poisoned() -> Iterator[None]:
    """Within it `torch.empty` gives memory full of NaN (integers: of a wild number) with a tail of another number.

    AssertionError if a tail was written.
    """
    tails: list[torch.Tensor] = []
    empty = torch.empty

    def poison(*shape: Any, **options: Any) -> torch.Tensor:
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        count = int(torch.Size(shape).numel())
        memory = empty(count + SENTINEL, **options)
        memory[:count] = torch.nan if memory.dtype.is_floating_point else -(2**28) - 7
        tails.append(memory[count:].fill_(TAIL))
        return memory[:count].view(shape)

    torch.empty = poison
    try:
        yield
    finally:
        torch.empty = empty
    for tail in tails:
        assert bool((tail == TAIL).all()), "memory behind an output was written"


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal, up to one rounding of the dtype; and of 16 bits at most one in fifty may be rounded the other way.

    A kernel that computes in 16 bits is off by a unit here and there, which the first alone would let pass.
    """
    tight = ULP[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=tight, atol=tight)
    if expected.dtype != torch.float32:
        assert int((actual != expected).sum()) <= 1 + expected.numel() // 50


def near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Close as a whole (root of mean squares), and nowhere far: sums of products, with factors rounded on the way."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    if expected.numel():
        error, size = (actual.double() - expected.double()).abs(), float(expected.double().square().mean().sqrt())
        limit = RMS[expected.dtype]
        assert float(error.square().mean().sqrt()) <= limit * size and float(error.max()) <= 8 * limit * max(size, 1e-3)


def planted(module: ModuleType, before: str, after: str, folder: Path) -> ModuleType:
    """The module with a piece of its source replaced, everywhere."""
    source = Path(module.__file__ or "").read_text()
    assert before in source, before
    path = folder / f"planted_{next(_number)}.py"
    path.write_text(source.replace(before, after))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    broken = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(broken)
    return broken


def caught(check: Callable[[], None]) -> None:
    """A suite that stays green over a broken kernel proves nothing: `check` must fail, by an assertion and not by accident."""
    with pytest.raises(AssertionError):
        check()
