"""Case 30: sizes that are no multiple of a tile, in every dimension of every kernel. Not collected by name: see
`test_triton_forms.py`.

Each size of SIZES is taken in each dimension at least once: in turn, with other sizes in the others (`turn`), or beside small
odd ones (`star`) where two large ones would be many programs. Inputs lie in NaN, across in every second case; every third has a
row of -inf. Where nothing comes out, nothing may be launched. A dimension that is a number of programs and no tile ends at GRID,
experts at 129, taps and strides of a convolution at 33, rows of a draw at 2: a program costs 1 ms here and more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from against import DTYPES, RMS, caught, draws, inside_nan, planted, poisoned
from omni_runtime.kernels import (
    adaln,
    adaln_triton,
    attention,
    attention_triton,
    conv,
    conv_triton,
    convnext,
    convnext_triton,
    euler,
    euler_triton,
    joint,
    joint_triton,
    kv,
    kv_triton,
    matrix,
    matrix_triton,
    moe,
    moe_triton,
    norm,
    norm_triton,
    rope,
    rope_triton,
    sample,
    sample_triton,
    snake,
    snake_triton,
    swiglu,
    swiglu_triton,
)
from triton.runtime.interpreter import GridExecutor

from omni_runtime.draw import Draw, Edits

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of -inf
SIZES = (0, 1, 2, 15, 16, 17, 31, 33, 127, 129, 1000, 1001)
Case = tuple[int, ...]
Call = Callable[[ModuleType], object]


class Make:
    """Inputs of one case, the same for the same case: called twice where an op writes into what it is given."""

    def __init__(self, case: Case, number: int, wide: bool = False) -> None:
        self.dtype, self.number, self._wide = DTYPES[number % 3], number, wide
        self._draw = draws(sum(case), torch.float32)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None, across: bool = True) -> torch.Tensor:
        x = self._round(self._draw(*shape)) if dtype is None else self._draw(*shape).to(dtype)
        if self.number % 3 == 1 and len(shape) > 1 and x.numel():
            x.view(shape[0], -1)[0] = -torch.inf
        if len(shape) < 2 or self.number % 2 or not across:
            return inside_nan(x)
        return inside_nan(x.transpose(-1, -2)).transpose(-1, -2)

    def plain(self, *shape: int) -> torch.Tensor:
        """Without the -inf: weights, or what is finite for another reason."""
        return inside_nan(self._round(self._draw(*shape)))

    def _round(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype).float() if self._wide else x.to(self.dtype)


def turn(*shifts: int) -> list[Case]:
    return [tuple(SIZES[(i + shift) % 12] for shift in shifts) for i in range(12)]


def star(*base: int, most: Case = (), last: int = 0) -> list[Case]:
    """`last`: the least size of the last dimension."""
    most = most or (1001,) * len(base)
    cases = [(*base[:i], size, *base[i + 1 :]) for i in range(len(base)) for size in SIZES if size <= most[i]]
    return [case for case in cases if case[-1] >= last]


class Op(NamedTuple):
    name: str
    definition: ModuleType
    kernel: ModuleType
    cases: list[Case]
    call: Callable[..., object]  # (module, make, *case)
    wide: bool = False  # whether the definition rounds on the way: it is asked in float32


def rotated(m: ModuleType, make: Make, tokens: int, heads: int, features: int) -> torch.Tensor:
    frequencies = features // 2 - (features > 20)
    tables = make(9, max(frequencies, 0), dtype=torch.float32).nan_to_num(0, 0, 0), make.plain(9, max(frequencies, 0)).float()
    return m.rotary(make(tokens, heads, features), torch.arange(tokens) % 9, *tables, pairs=bool(make.number % 2))


def normed(m: ModuleType, make: Make, tokens: int, heads: int, features: int) -> torch.Tensor:
    frequencies = features // 2 - (features > 20)
    x, tables = make(tokens, heads, features, across=False), [make.plain(9, frequencies).float() for _ in range(2)]
    return m.norm_rotary(x, heads // 2, make.plain(features), make.plain(features), 0.1, torch.arange(tokens) % 9, *tables)


def stored(m: ModuleType, make: Make, tokens: int, heads: int, features: int) -> torch.Tensor:
    cache = torch.full((tokens // 3 + 2, 2, 3, heads, features), 7.0)
    m.store_kv(make(tokens, heads, features), make(tokens, heads, features), cache[:, 0], cache[:, 1], torch.arange(tokens) + 2)
    return cache if tokens else cache[:0]


def paged(m: ModuleType, make: Make, queries: int, earlier: int, features: int, groups: int = 1, group: int = 2) -> torch.Tensor:
    counts, lengths = [queries, 1], [queries + earlier, 7]
    needed = [-(-length // 5) for length in lengths]
    blocks = [list(range(needed[0])), list(range(needed[0], sum(needed)))]
    cache = make.plain(2, sum(needed), 5, groups, features).abs().contiguous()
    q = make(queries + 1, groups * group, features)
    return m.paged_attention(q, *cache, attention.plan(counts, lengths, blocks, group), 0.3)


def joined(m: ModuleType, make: Make, first: int, second: int, features: int, heads: int = 1) -> object:
    streams = [
        (make(n, heads, features), make.plain(n, heads, features).abs(), make.plain(n, heads, features)) for n in (first, second)
    ]
    return m.joint_attention(*streams, joint.joint_plan([(first, second)]), 0.3)


def experts(m: ModuleType, make: Make, tokens: int, width: int, features: int, count: int = 3, chosen: int = 2) -> torch.Tensor:
    x, expert = make(tokens, width), torch.arange(tokens * chosen).view(tokens, chosen) % (count + 1)
    up = make.plain(count * 2 * features, width).view(count, 2 * features, width) / max(width, 1) ** 0.5
    down = make.plain(count * width, features).view(count, width, features) / max(features, 1) ** 0.5
    return m.fused_moe(x, up, down, expert, 1.0 / (expert + 1))


def drawn(m: ModuleType, make: Make, rows: int, vocabulary: int) -> object:
    how = [Draw(row, 0, row % 3 / 2, top_k=row % 5, top_p=1 - row % 2 / 9, edits=Edits(presence=0.3)) for row in range(rows)]
    draws, changes = sample.collect(how, [row % 7 for row in range(rows)], [[1, 3]] * rows)
    return m.draw_tokens(make(rows, vocabulary), draws, changes if make.number % 2 else None, True)


def convolved(m: ModuleType, make: Make, n: int, inputs: int, outputs: int, length: int, taps: int) -> object:
    weight, state = make.plain(taps, outputs, inputs) / max(inputs * taps, 1) ** 0.5, make.plain(n, inputs, 2 * (taps - 1))
    act = (make.plain(inputs) / 3, make.plain(inputs) / 3) if make.number % 2 else None
    return m.causal_conv(make(n, inputs, length), state, weight, make.plain(outputs), 2, act)


def grown(m: ModuleType, make: Make, inputs: int, outputs: int, length: int, stride: int) -> object:
    weight = make.plain(2, outputs * stride, inputs) / max(inputs, 1) ** 0.5
    return m.causal_transposed_conv(make(1, inputs, length), make.plain(1, inputs, 1), weight, stride, make.plain(outputs))


def depthwise(m: ModuleType, make: Make, n: int, channels: int, length: int, taps: int) -> object:
    vectors = [make.plain(channels) for _ in range(3)]
    weights = convnext.ConvNeXt(make.plain(channels, taps), *vectors, *[vectors[0]] * 5, 0.01)
    return m.depthwise_norm(make(n, channels, length), make.plain(n, channels, taps - 1), weights)


def stepped(m: ModuleType, make: Make, rows: int, elements: int) -> object:
    branch, vectors = torch.arange(rows), [make.plain(rows).float() for _ in range(3)]
    return m.guided_euler(
        make(rows, elements, dtype=torch.float32), make.plain(2 * rows, elements), branch, branch + rows, *vectors
    )


GRID = 33  # most of a dimension that is a number of programs and nothing else
NO = -1  # the dimension keeps its base
OPS = [
    Op("rms_norm", norm, norm_triton, star(2, 33, most=(129, 1001)), lambda m, x, r, d: m.rms_norm(x(r, d), x.plain(d), 0.1)),
    Op("add_rms_norm", norm, norm_triton, star(2, 33, most=(GRID, 1001)),
       lambda m, x, r, d: m.add_rms_norm(x(r, d), x(r, d), x.plain(d), 0.1)),
    Op("product", matrix, matrix_triton, turn(0, 4, 8) + turn(0, 7, 3),
       lambda m, x, t, n, k: m.product(x(t, k), x.plain(n, k), x.plain(n))),
    Op("silu_mul", swiglu, swiglu_triton, star(2, 33, most=(GRID, 1001)), lambda m, x, r, f: m.silu_mul(x(r, 2 * f))),
    Op("rotary", rope, rope_triton, star(2, 3, 17, most=(GRID, 1001, 1001)), rotated),
    Op("norm_rotary", rope, rope_triton, star(2, 3, 17, most=(GRID, 1001, 1001)), normed),
    Op("store_kv", kv, kv_triton, star(2, 3, 17, most=(GRID, 1001, 1001)), stored),
    Op("paged_attention", attention, attention_triton, turn(0, 4, 8), paged),
    Op("paged_attention, heads", attention, attention_triton, star(2, 3, 17, 2, 3, most=(NO, NO, NO, 16, 1001), last=1), paged),
    Op("joint_attention", joint, joint_triton, turn(0, 4, 8), joined),
    Op("joint_attention, heads", joint, joint_triton, star(2, 3, 17, 2, most=(NO, NO, NO, 16)), joined),
    Op("fused_moe", moe, moe_triton, star(5, 17, 15, 3, 2, most=(GRID, 1001, 1001, 129, 17)), experts),
    Op("draw_tokens", sample, sample_triton, star(2, 33, most=(2, 1001)), drawn),
    Op("modulate", adaln, adaln_triton, star(2, 3, 17, most=(GRID, GRID, 1001)),
       lambda m, x, b, n, d: m.modulate(x(b, n, d), x.plain(b, d), x.plain(b, d)), True),
    Op("gate", adaln, adaln_triton, star(2, 3, 17, most=(GRID, GRID, 1001)),
       lambda m, x, b, n, d: m.gate(x(b, n, d), x(b, n, d), x.plain(b, d)), True),
    Op("guided_euler", euler, euler_triton, star(2, 33, most=(GRID, 1001)), stepped),
    Op("snake_beta", snake, snake_triton, star(2, 3, 17, most=(GRID, GRID, 1001)),
       lambda m, x, n, c, length: m.snake_beta(x(n, c, length), x.plain(c) / 3, x.plain(c) / 3)),
    Op("causal_conv", conv, conv_triton, star(1, 17, 15, 33, 3, most=(16, 1001, 1001, 1001, 33), last=1), convolved),
    Op("causal_transposed_conv", conv, conv_triton, star(17, 15, 33, 3, most=(1001, 1001, 1001, 33), last=1), grown),
    Op("depthwise_norm", convnext, convnext_triton, star(1, 17, 15, 3, most=(16, 1001, 1001, 33), last=1), depthwise),
]  # fmt: skip


@contextmanager
def launches() -> Iterator[list[object]]:
    """Within it every launch is put down."""
    found: list[object] = []
    real = GridExecutor.__call__

    def call(self: GridExecutor, *arguments: object, **options: object) -> None:
        found.append(self.fn)
        real(self, *arguments, **options)

    GridExecutor.__call__ = call
    try:
        yield found
    finally:
        GridExecutor.__call__ = real


def close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """As `near`, and what is no number is so in both."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    if not actual.is_floating_point():
        assert torch.equal(actual, expected)
        return
    finite = expected.isfinite()
    torch.testing.assert_close(actual.where(~finite, 0), expected.where(~finite, 0), rtol=0, atol=0, equal_nan=True)
    wrong, right = (actual.double() - expected.double())[finite].abs(), expected[finite].double()
    if len(right):
        limit, size = 2 * RMS[dtype], float(right.square().mean().sqrt())
        assert float(wrong.square().mean().sqrt()) <= limit * size + 1e-9
        assert bool((wrong <= 8 * limit * (size + right.abs()) + 1e-9).all())


def check(op: Op, module: ModuleType, cases: list[Case]) -> None:
    for number, case in enumerate(cases):
        with poisoned(), launches() as launched:
            outs = op.call(module, Make(case, number), *case)
        expected = op.call(op.definition, Make(case, number, op.wide), *case)
        pairs = list(zip(*((x if isinstance(x, tuple) else (x,)) for x in (outs, expected)), strict=True))
        for ours, right in pairs:
            close(ours, right.to(ours.dtype), DTYPES[number % 3])
        assert any(ours.numel() for ours, _ in pairs) or not launched, (op.name, case)


@pytest.mark.parametrize("op", OPS, ids=[op.name for op in OPS])
def test_sizes_that_are_no_multiple_of_a_tile(op: Op) -> None:
    check(op, op.kernel, op.cases)


BUGS = {
    "rms_norm": ("inside = column < features", "inside = column < features + 1"),
    "product": ("mask=inner[:, None] & kept[None, :]", "mask=kept[None, :]"),
    "silu_mul": ("inside = column < features", "inside = column < features + 1"),
    "rotary": ("inside = (head < heads)[:, None] & turned[None, :]", "inside = (head >= 0)[:, None] & turned[None, :]"),
    "norm_rotary": ("(column < features)[None, :]", "(column <= features)[None, :]"),
    "store_kv": ("inside = column < width", "inside = column < width // 16 * 16"),
    "paged_attention": ("other=0.0)\n        seen =", "other=0.0) + tl.where(there, 0.0, float('nan'))[:, None]\n        seen ="),
    "paged_attention, heads": ("& (line < BLOCK_M // GROUP * GROUP)", ""),
    "joint_attention": ("there = token < end", "there = token <= end"),
    "fused_moe": ("inner = k < features", "inner = k < features // 16 * 16"),
    "draw_tokens": ("tl.exp(tl.load(logits + at, mask=at < size,", "tl.exp(tl.load(logits + at, mask=at < size - 1,"),
    "modulate": ("tl.where(inside, value - mean, 0.0)", "value - mean"),
    "gate": ("inside = column < features", "inside = column < features - 1"),
    "guided_euler": ("inside = column < elements", "inside = column <= elements"),
    "snake_beta": ("inside = column < length", "inside = column <= length"),
    "causal_conv": ("there = channel < channels", "there = channel <= channels"),
    "causal_transposed_conv": ("now, kept = time < length,", "now, kept = time <= length,"),
    "depthwise_norm": ("centred = tl.where(there[:, None], total - mean[None, :], 0.0)", "centred = total - mean[None, :]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUGS)
def test_a_wrong_tail_is_caught(name: str, tmp_path: Path) -> None:
    op = next(op for op in OPS if op.name == name)
    broken = planted(op.kernel, *BUGS[name], tmp_path)
    caught(lambda: check(op, broken, [case for case in op.cases if 0 not in case and prod(case) < 70_000]))


def test_a_launch_for_nothing_is_caught(tmp_path: Path) -> None:
    op = OPS[0]
    broken = planted(op.kernel, "if x_RD.numel() == 0:", "if x_RD.numel() < 0:", tmp_path)
    caught(lambda: check(op, broken, [(0, 2)]))
