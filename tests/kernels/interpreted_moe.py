"""The mixture of experts in the interpreter. Not collected by name: `test_triton_forms.py` runs it."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from against import DTYPES, caught, draws, inside_nan, near, planted, poisoned
from omni_runtime.kernels import moe, moe_triton

# tokens, width, features, experts, chosen
CASES = [(5, 20, 24, 6, 3), (70, 70, 65, 2, 1), (0, 8, 8, 2, 2), (3, 16, 8, 1, 0)]


def inputs(dtype: torch.dtype, case: tuple[int, int, int, int, int]) -> tuple[torch.Tensor, ...]:
    tokens, width, features, experts, chosen = case
    draw = draws(tokens + width, dtype)
    x = inside_nan(draw(tokens, width))
    up = inside_nan(draw(experts * 2 * features * width + 1) / 4)[:-1].view(experts, 2 * features, width)
    down = inside_nan(draw(experts * width * features + 1) / 4)[:-1].view(experts, width, features)
    generator = torch.Generator().manual_seed(1)
    # One expert more than there are, one fewer than there may be: nobody is sent to 1.
    expert = torch.randint(-1, experts + 1, (tokens, chosen), generator=generator)
    expert = torch.where(expert == 1, 0, expert) if experts > 2 else expert
    return x, up, down, expert, torch.rand(tokens, chosen, generator=generator)


def check(module: ModuleType, dtype: torch.dtype, case: tuple[int, int, int, int, int]) -> None:
    given = inputs(dtype, case)
    with poisoned():
        out = module.fused_moe(*given)
    near(out, moe.fused_moe(*given))


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_definition(dtype: torch.dtype) -> None:
    for case in CASES:
        check(moe_triton, dtype, case)


def test_a_run_repeats_and_a_token_does_not_see_its_neighbours() -> None:
    x, up, down, expert, weight = inputs(torch.bfloat16, CASES[0])
    crowd = moe_triton.fused_moe(x, up, down, expert, weight)
    assert torch.equal(crowd, moe_triton.fused_moe(x, up, down, expert, weight))
    alone = [moe_triton.fused_moe(x[i : i + 1], up, down, expert[i : i + 1], weight[i : i + 1]) for i in range(len(x))]
    assert torch.equal(torch.cat(alone), crowd)


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_tiles_cover_each_pair_once(rows: int) -> None:
    expert = torch.tensor([[3, 0], [3, 3], [-1, 0], [7, 3], [3, 2]])
    order, tiles = moe_triton.sort(expert, 5, rows)
    covered = []
    for which, first, end in tiles.tolist():
        if which >= 0:
            pairs = order[first : min(first + rows, end)].tolist()
            assert pairs and all(expert.flatten()[pair] == which for pair in pairs)
            covered += pairs
    assert sorted(covered) == [0, 1, 2, 3, 5, 7, 8, 9]


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, up, down, expert, weight = inputs(torch.float32, CASES[0])
    for module in (moe, moe_triton):
        for wrong in (
            (x[1:], up, down, expert, weight),
            (x, up[:, 1:], down, expert, weight),
            (x.half(), up, down, expert, weight),
        ):
            with pytest.raises(ValueError, match="do not fit"):
                module.fused_moe(*wrong)


BUGS = {
    "up is gate": ("at += features * width", "at += 0"),
    "no gate": ("gate * tl.sigmoid(gate) * up", "gate * up"),
    "token is pair": ("mask=mine, other=0).to(tl.int64) // choices", "mask=mine, other=0).to(tl.int64) % choices"),
    "no weight": ("total * weight[:, None]", "total"),
    "weight of the sorted pair": ("tl.load(weights + pair", "tl.load(weights + place"),
    "pair not scattered back": ("parts + pair[:, None]", "parts + place.to(tl.int64)[:, None]"),
    # One pair too many would not be seen: the interpreter runs programs in turn, and the next one puts it right.
    "an expert's last pair": ("mine = place < tl.load(tile + 2)", "mine = place < tl.load(tile + 2) - 1"),
    "tail of the width": ("inner = k < width", "inner = k < width + 1"),
    "tail of the features": ("inner = k < features", "inner = k < features + 1"),
    "only one choice": ("for choice in range(choices)", "for choice in range(1)"),
    "parts that nobody wrote": ("if (expert >= 0) & (expert < count):", "if count > 0:"),
    "first expert": ("2 * expert * features", "0 * expert * features"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, tmp_path: Path) -> None:
    broken = planted(moe_triton, *BUGS[bug], tmp_path)
    caught(lambda: [check(broken, torch.float16, case) for case in CASES])
