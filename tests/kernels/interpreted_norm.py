"""The Triton norm in the interpreter. Not collected by name: `test_norm.py` runs it in a process with TRITON_INTERPRET=1.

The interpreter proves the arithmetic and the masks; it says nothing about races or speed.
"""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

assert os.environ["TRITON_INTERPRET"] == "1"

from omni_runtime.kernels import norm, norm_triton  # noqa: E402

from omni_runtime import kernels  # noqa: E402

# One unit in the last place of the result; bfloat16 twice that, as the interpreter truncates where a GPU rounds.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
SHAPES = [(1, 1), (1, 576), (3, 577), (2, 3, 64), (0, 576), (4, 31), (2, 0)]
SENTINEL = 4096


class Poison:
    """Stands in for `torch.empty`: memory full of NaN with a tail that nobody may touch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tails: list[torch.Tensor] = []
        self.empty = torch.empty
        monkeypatch.setattr(torch, "empty", self)

    def __call__(self, shape: Any, **options: Any) -> torch.Tensor:
        count = int(torch.Size(shape).numel())
        memory = self.empty(count + SENTINEL, **options).fill_(torch.nan)
        self.tails.append(memory[count:])
        return memory[:count].view(shape)

    def untouched(self) -> bool:
        return all(bool(tail.isnan().all()) for tail in self.tails)


def inside_nan(x: torch.Tensor, stride: int) -> torch.Tensor:
    """The same values as a strided view into memory that is NaN everywhere else."""
    rows, features = x.reshape(-1, x.shape[-1]).shape if x.numel() else (0, x.shape[-1])
    memory = torch.full((rows + 2, stride), torch.nan, dtype=x.dtype)
    view = memory[1 : rows + 1, 3 : 3 + features]
    view.copy_(x.reshape(rows, features))
    return view


def check(module: ModuleType, dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a norm promises, against the definition; AssertionError where it fails."""
    generator = torch.Generator().manual_seed(sum(shape))
    x, residual = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    weight = (1 + 0.5 * torch.randn(shape[-1], generator=generator)).to(dtype)
    tight = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    with monkeypatch.context() as context:
        poison = Poison(context)
        plain = module.rms_norm(x, weight, 0.1)
        normed, total = module.add_rms_norm(x, residual, weight, 0.1)
        rows = inside_nan(x, shape[-1] + 7)
        strided = module.rms_norm(rows, weight, 0.1)
        assert poison.untouched(), "memory behind an output was written"
    torch.testing.assert_close(plain, norm.rms_norm(x, weight, 0.1), **tight)
    torch.testing.assert_close(total, norm.add_rms_norm(x, residual, weight, 0.1)[1], **tight)
    torch.testing.assert_close(normed, norm.rms_norm(total, weight, 0.1), **tight)  # of the sum as it was rounded
    torch.testing.assert_close(strided, plain.reshape(rows.shape), rtol=0, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_equals_the_definition(dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    check(norm_triton, dtype, shape, monkeypatch)


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
def test_a_planted_bug_is_caught(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite that stays green over a broken kernel proves nothing."""
    before, after = BUGS[bug]
    source = Path(norm_triton.__file__).read_text()
    assert before in source
    path = tmp_path / "broken.py"
    path.write_text(source.replace(before, after))
    spec = importlib.util.spec_from_file_location("broken", path)
    assert spec is not None
    assert spec.loader is not None
    broken = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(broken)

    def whole_suite() -> None:
        for dtype in TOLERANCE:
            for shape in SHAPES:
                check(broken, dtype, shape, monkeypatch)

    with pytest.raises(AssertionError):
        whole_suite()
