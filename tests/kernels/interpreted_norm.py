"""The Triton norm in the interpreter. Not collected by name: `test_triton_forms.py` runs it in a process with TRITON_INTERPRET=1.

The interpreter proves the arithmetic and the masks; it says nothing about races or speed.
"""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from against import DTYPES, caught, draws, inside_nan, planted, poisoned, same
from omni_runtime.kernels import norm, norm_triton

from omni_runtime import kernels

SHAPES = [(1, 1), (1, 576), (3, 577), (2, 3, 64), (0, 576), (4, 31), (2, 0)]


def check(module: ModuleType, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """All that a norm promises, against the definition; AssertionError where it fails."""
    draw = draws(sum(shape), dtype)
    x, residual, weight = draw(*shape), draw(*shape), 1 + draw(shape[-1]) / 2
    rows = inside_nan(x)
    with poisoned():
        plain = module.rms_norm(x, weight, 0.1)
        normed, total = module.add_rms_norm(x, residual, weight, 0.1)
        strided = module.rms_norm(rows, weight, 0.1)
    same(plain, norm.rms_norm(x, weight, 0.1))
    same(total, norm.add_rms_norm(x, residual, weight, 0.1)[1])
    same(normed, norm.rms_norm(total, weight, 0.1))  # of the sum as it was rounded
    torch.testing.assert_close(strided, plain, rtol=0, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_definition(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check(norm_triton, dtype, shape)


def test_weights_may_be_float32_and_features_strided() -> None:
    x, weight = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)), torch.full((64,), 2.0)
    expected = norm.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(norm_triton.rms_norm(x.t().contiguous().t(), weight, 1e-5), expected, rtol=2e-6, atol=2e-6)
    half = norm_triton.rms_norm(x.half(), weight, 1e-5)
    torch.testing.assert_close(half, norm.rms_norm(x.half(), weight, 1e-5), rtol=2**-10, atol=2**-10)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        norm_triton.rms_norm(torch.zeros(2, 8), torch.zeros(7), 1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        norm_triton.add_rms_norm(torch.zeros(2, 8), torch.zeros(3, 8), torch.zeros(8), 1e-5)
    with pytest.raises(ValueError, match="at most 16384"):
        norm_triton.rms_norm(torch.zeros(1, 40000), torch.zeros(40000), 1e-5)


def test_the_public_op_runs_the_kernel_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real: Callable[..., Any] = norm_triton._launch
    monkeypatch.setattr(norm_triton, "_launch", lambda *arguments: calls.append(1) or real(*arguments))
    x, weight = torch.ones(2, 8), torch.ones(8)
    kernels.rms_norm(x, weight, 1e-5, form="triton")
    kernels.add_rms_norm(x, x, weight, 1e-5, form="triton")
    kernels.rms_norm(x, weight, 1e-5)  # on a CPU nobody asked for it
    assert len(calls) == 2


BUGS = {
    "load without mask": ("tl.load(x + row * stride + column, mask=inside, other=0.0)", "tl.load(x + row * stride + column)"),
    "store without mask": ("result.to(out.dtype.element_ty), mask=inside", "result.to(out.dtype.element_ty)"),
    "mean over the block": ("axis=0) / features", "axis=0) / BLOCK"),
    "no epsilon": ("tl.rsqrt(mean + eps)", "tl.rsqrt(mean)"),
    "stride ignored": ("x + row * stride", "x + row * features"),
    "residual subtracted": ("value += tl.load(residual", "value -= tl.load(residual"),
    "residual of the first row": ("residual + row * features", "residual"),
    "sum not stored": ("rounded, mask=inside", "rounded, mask=inside & (column < 0)"),
    "no weight": ("* scale", "* 1.0"),
    "nothing upcast": (".to(tl.float32)", ""),
}


@pytest.mark.filterwarnings("ignore")  # numpy warns of NaN: the numbers have to give a bug away, not the warning
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, tmp_path: Path) -> None:
    broken = planted(norm_triton, *BUGS[bug], tmp_path)
    caught(lambda: [check(broken, dtype, shape) for dtype in DTYPES for shape in SHAPES])
