"""The matrix product in the interpreter. Not collected by name: `test_triton_forms.py` runs it."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from against import DTYPES, caught, draws, inside_nan, near, planted, poisoned
from omni_runtime.kernels import matrix, matrix_triton

CASES = [(5, 70, 200), (70, 20, 64), (17, 9, 129), (1, 1, 1)]  # rows, outputs, inputs


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_triton, "PIECE", 64)


def inputs(dtype: torch.dtype, case: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, columns, depth = case
    draw = draws(sum(case), dtype)
    return inside_nan(draw(rows, depth)), inside_nan(draw(columns, depth) / max(depth, 1) ** 0.5), inside_nan(draw(columns))


def check(module: ModuleType, dtype: torch.dtype) -> None:
    """With each piece in a program of its own, and with all in one."""
    module.PIECE = 64
    for case in CASES:
        x, weight, bias = inputs(dtype, case)
        for busy in (0, 128):
            module.BUSY = busy
            with poisoned():
                out = module.product(x, weight, bias if busy else None)
            near(out, matrix.product(x, weight, bias if busy else None))


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_definition(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_triton, "BUSY", 128)
    check(matrix_triton, dtype)


def check_company(module: ModuleType, dtype: torch.dtype) -> None:
    """A row alone, in a few and in many, to the bit; the few have a program a piece, the many have not."""
    module.PIECE, module.BUSY = 64, 2
    x, weight, bias = inputs(dtype, (70, 20, 200))
    many = module.product(x, weight, bias)
    for rows in (slice(0, 1), slice(66, 67), slice(3, 20), slice(5, 70)):
        assert torch.equal(module.product(x[rows], weight, bias), many[rows]), rows
    assert not torch.equal(many[:1], many[1:2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_company_changes_nothing(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_triton, "BUSY", 2)
    check_company(matrix_triton, dtype)


def test_rows_on_any_axes_and_sizes_of_nothing() -> None:
    x, weight, bias = inputs(torch.float32, (12, 5, 40))
    right = matrix_triton.product(x, weight, bias)
    assert torch.equal(matrix_triton.product(x.reshape(3, 4, 40), weight, bias), right.view(3, 4, 5))
    assert torch.equal(matrix_triton.product(x[0], weight, bias), right[0])
    assert torch.equal(matrix_triton.product(x.t().contiguous().t(), weight.t().contiguous().t(), bias), right)
    nothing = torch.ones(3, 0)
    assert torch.equal(matrix_triton.product(nothing, torch.ones(5, 0), bias), bias.expand(3, 5))
    assert not matrix_triton.product(nothing, torch.ones(5, 0)).any()


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, weight, bias = inputs(torch.float32, (5, 4, 3))
    for module in (matrix, matrix_triton):
        for wrong in ((x[:, 1:], weight), (x.half(), weight), (x, weight, bias[1:]), (x, weight, bias.half()), (x, bias)):
            with pytest.raises(ValueError, match=r"product: .* do not fit"):
                module.product(*wrong)


BUGS = {
    "tail of the inputs": ("inner = k < high", "inner = k < high + 1"),
    "tail of the rows": ("token < tokens, column", "token <= tokens, column"),
    "tail of the columns": ("column < columns\n    inside", "column <= columns\n    inside"),
    "end of a piece": ("tl.minimum(low + PIECE, depth)", "depth"),
    "the last piece": ("for piece in range(pieces)", "for piece in range(pieces - 1)"),
    "pieces over each other": ("out += piece.to(tl.int64) * tokens * columns", "out += 0"),
    "no bias behind pieces": ("    if BIAS:\n        total += tl.load(bias + column, mask=kept, other=0.0).to(tl.float32)\n", ""),
    "no bias in one program": ("[None, :]\n    tl.store", "[None, :] * 0\n    tl.store"),
    "rows of the weight packed": ("weight_NK.stride(0))", "depth)"),
}  # fmt: skip

COMPANY = {
    "half precision between pieces": ("columns), dtype=torch.float32", "columns), dtype=x_TK.dtype"),
    "pieces by the number of rows": ("SPLIT=split, PIECE=PIECE", "SPLIT=split, PIECE=PIECE if split else 128"),
    "one sum in one program": ("range(0, depth, PIECE)", "range(0, depth, 2 * PIECE)"),
    "pieces added last to first": ("(piece * tokens.to(tl.int64)", "((pieces - 1 - piece) * tokens.to(tl.int64)"),
    "steps by the number of rows": ("split = pieces", "launch['BLOCK_K'] = 64 if tokens > 16 else 16\n    split = pieces"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, tmp_path: Path) -> None:
    broken = planted(matrix_triton, *BUGS[bug], tmp_path)
    caught(lambda: check(broken, torch.float16))


@pytest.mark.parametrize("bug", COMPANY)
def test_company_that_changes_something_is_caught(bug: str, tmp_path: Path) -> None:
    broken = planted(matrix_triton, *COMPANY[bug], tmp_path)
    caught(lambda: [check_company(broken, dtype) for dtype in (torch.float32, torch.float16)])
