"""The repair of the interpreter itself, first of all in the process that runs the kernels.

Fails when triton's private parts move.
"""

import os

import bf16_repair
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from bf16_repair import narrow, widen

assert os.environ["TRITON_INTERPRET"] == "1"
bf16_repair.install()


@triton.jit
def _two(x, y, plus, times, most, total, product, cut, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    a, b = tl.load(x + lane), tl.load(y + lane)
    tl.store(plus + lane, a + b)
    tl.store(times + lane, a * b)
    tl.store(most, tl.max(a, 0))
    tl.store(total, tl.sum(a, 0))
    square = lane[:, None] * SIZE + lane[None, :]
    matrix = tl.load(x + lane)[:, None] * tl.load(y + lane)[None, :]
    tl.store(product + square, tl.dot(matrix, matrix, input_precision="ieee"))
    tl.store(cut + lane, (a.to(tl.float32) * 1.001).to(tl.bfloat16))


def test_bfloat16_is_computed_as_torch_does() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(16, generator=generator).bfloat16() for _ in range(2))
    plus, times, most, total, cut = (torch.zeros(16, dtype=torch.bfloat16) for _ in range(5))
    product = torch.zeros(16, 16)
    _two[(1,)](x, y, plus, times, most, total, product, cut, SIZE=16)
    matrix = x[:, None] * y[None, :]
    assert torch.equal(plus, x + y) and torch.equal(times, x * y) and most[0] == x.max()
    assert torch.equal(cut, (x.float() * 1.001).bfloat16())
    torch.testing.assert_close(total[0], x.float().sum().bfloat16(), rtol=2**-7, atol=0)
    torch.testing.assert_close(product, matrix.float() @ matrix.float(), rtol=1e-5, atol=1e-5)


@triton.jit
def _guarded(x, out, count, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    some = tl.load(x)
    tl.store(out + lane, tl.load(x + lane, mask=(lane < count) & ((some > 0.5) & (some < 2.5)), other=-1.0))


def test_a_comparison_of_scalars_is_part_of_a_mask() -> None:
    out = torch.zeros(4, dtype=torch.float64)
    _guarded[(1,)](torch.arange(1, 5).double(), out, 3, SIZE=4)
    assert out.tolist() == [1, 2, 3, -1]


@pytest.mark.parametrize("value", [1.0, 1.00390625, 1.01171875, -3.3e38, 1e-40, float("inf"), float("nan"), 0.0])
def test_rounding_is_that_of_torch(value: float) -> None:
    there = narrow(np.array([value], np.float32))
    expected = torch.tensor([value]).bfloat16()
    assert torch.equal(torch.from_numpy(there.view(np.int16)).view(torch.bfloat16), expected) or (expected.isnan().all())
    np.testing.assert_array_equal(widen(there), expected.float().numpy())


def test_a_planted_truncation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16_repair, "narrow", lambda values: (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))
    with pytest.raises(AssertionError):
        test_bfloat16_is_computed_as_torch_does()
