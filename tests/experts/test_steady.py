"""Elementwise functions wherever an element lies, whatever stands beside it, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from omni_runtime.experts import steady  # noqa: E402

SIZES = [1, 3, 8, 13, 31, 33, 63, 100, 1001, 16_385, 32_769, 65_537, 100_001]
X = torch.randn(120_006, generator=torch.Generator().manual_seed(1))
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": steady.silu,
    "gelu": steady.gelu,
    "complex": lambda x: steady.steady(torch.mul, torch.complex(x, 2 * x), torch.complex(0.3 * x, 0.7 * x)),
    # Used as torch has them: these have no remainder of another kind, which this would notice.
    "cos": torch.cos,
    "sin": torch.sin,
    "exp": torch.exp,
    "tanh": torch.tanh,
    "addcmul": lambda x: torch.addcmul(x, x, 0.3 * x),
}


def strays(run: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """Elements that are another number in other company."""
    whole, found = run(X), 0
    for size in SIZES:
        found += int((run(X[:size].clone()) != whole[:size]).sum())
        found += int((run(X[7 : 7 + size]) != whole[7 : 7 + size]).sum())
        wide = X[: min(size, 20_000) * 6].view(-1, 6)[:, :3]  # with gaps
        found += int((run(wide) != whole[: len(wide) * 6].view(-1, 6)[:, :3]).sum())
    return found


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_element_does_not_tell_where_it_lies(name: str, threads: int) -> None:
    torch.set_num_threads(threads)
    try:
        assert strays(FUNCTIONS[name]) == 0
    finally:
        torch.set_num_threads(1)


def test_it_is_the_function() -> None:
    torch.set_num_threads(1)
    for name, run in {"silu": F.silu, "gelu": F.gelu}.items():
        torch.testing.assert_close(FUNCTIONS[name](X[:99].view(9, 11)), run(X[:99].view(9, 11)), rtol=1e-6, atol=1e-7)
