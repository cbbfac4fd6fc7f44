"""Rotary embedding, SiLU-mul and the KV store in the interpreter. Not collected by name: `test_triton_forms.py` runs it."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from against import DTYPES, caught, draws, inside_nan, planted, poisoned, same
from omni_runtime.kernels import kv, kv_triton, rope, rope_triton, swiglu, swiglu_triton

# tokens, heads, features, frequencies, axes, interleaved, pairs
ROPES = [
    (3, 5, 16, 8, None, False),
    (2, 3, 10, 3, None, True),
    (3, 2, 12, 6, (3, 2, 1), False),
    (2, 2, 14, 7, (3, 2, 2), True),
    (0, 2, 4, 2, None, False),
]


def check_rope(module: ModuleType, dtype: torch.dtype, case: tuple) -> None:
    tokens, heads, features, frequencies, sections, pairs = case
    draw = draws(tokens + features, dtype)
    x = inside_nan(draw(tokens, heads, features))
    table = 40
    angle = draws(1, torch.float32)(table, frequencies)
    cos, sin = inside_nan(angle.cos()).contiguous(), angle.sin()
    positions = torch.randint(0, table, (len(sections or "1"), tokens), generator=torch.Generator().manual_seed(2))
    axis = None if sections is None else rope.axes(sections, interleaved=pairs)
    positions = positions if sections else positions[0].int()
    expected = rope.rotary(x, positions, cos, sin, axis, pairs)
    with poisoned():
        same(module.rotary(x, positions, cos, sin, axis, pairs), expected)
    memory = x.untyped_storage().size()
    assert module.rotary(x, positions, cos, sin, axis, pairs, in_place=True) is x and x.untyped_storage().size() == memory
    same(x, expected)
    around = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    assert int(around.isnan().sum()) == around.numel() - x.numel()  # nothing beside it was touched
    q_weight, k_weight = 1 + draw(features) / 4, 1 + draw(features) / 4
    twice, once = x.clone(), x.clone()
    rope.norm_rotary(twice, heads // 2, q_weight, k_weight, 0.1, positions, cos, sin, axis, pairs)
    module.norm_rotary(once, heads // 2, q_weight, k_weight, 0.1, positions, cos, sin, axis, pairs)
    same(once, twice)


def check_swiglu(module: ModuleType, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = inside_nan(2 * draws(sum(shape), dtype)(*shape))
    with poisoned():
        out = module.silu_mul(x)
    same(out, swiglu.silu_mul(x))


def check_kv(module: ModuleType, dtype: torch.dtype, tokens: int) -> None:
    draw = draws(tokens, dtype)
    both = inside_nan(draw(tokens, 6, 10))
    k, v = both[:, :3], both[:, 3:]
    caches = [torch.full((9, 2, 4, 3, 10), torch.nan, dtype=torch.bfloat16) for _ in range(2)]
    slots = torch.tensor([7, -1, 0, 19, 20, 12, -8])[:tokens]
    kv.store_kv(k, v, caches[0][2:7, 0], caches[0][2:7, 1], slots)
    module.store_kv(k, v, caches[1][2:7, 0], caches[1][2:7, 1], slots)
    torch.testing.assert_close(*caches, rtol=0, atol=0, equal_nan=True)


SWIGLUS = [(3, 2, 1024 + 2 * 31), (2, 2), (0, 64), (5, 14), (3, 2 * 1500)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_equals_its_definition(dtype: torch.dtype) -> None:
    for case in ROPES:
        check_rope(rope_triton, dtype, case)
    for shape in SWIGLUS:
        check_swiglu(swiglu_triton, dtype, shape)
    for tokens in (7, 0, 1):
        check_kv(kv_triton, dtype, tokens)


def test_a_position_beyond_the_table_is_nan_and_not_memory() -> None:
    x, table = torch.ones(2, 1, 4), torch.ones(3, 2)
    out = rope_triton.rotary(x, torch.tensor([3, 2]), table, table)
    assert out[0].isnan().all() and not out[1].isnan().any()


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, table, at = torch.ones(2, 1, 4), torch.ones(3, 2), torch.tensor([0, 1])
    for module in (rope, rope_triton):
        with pytest.raises(ValueError, match="do not fit"):
            module.rotary(x, at[:1], table, table)
        with pytest.raises(ValueError, match="do not fit"):
            module.rotary(x, at, torch.ones(3, 3), torch.ones(3, 3))
        with pytest.raises(ValueError, match="do not fit"):
            module.norm_rotary(x, 2, torch.ones(4), torch.ones(4), 0.1, at, table, table)
    with pytest.raises(ValueError, match="contiguous features"):
        rope_triton.rotary(x.expand(2, 4, 4).transpose(1, 2), at, table, table, in_place=True)
    for module in (swiglu, swiglu_triton):
        with pytest.raises(ValueError, match="gate and up"):
            module.silu_mul(torch.ones(2, 3))
    for module in (kv, kv_triton):
        with pytest.raises(ValueError, match="do not fit"):
            module.store_kv(x, x, torch.ones(2, 2, 1, 3), torch.ones(2, 2, 1, 3), at)
        with pytest.raises(ValueError, match="contiguous is needed"):
            module.store_kv(x, x, torch.ones(2, 2, 1, 8)[..., ::2], torch.ones(2, 2, 1, 4), at)


BUGS = {
    "rope: sign": (rope_triton, "x2 * c + x1 * s", "x2 * c - x1 * s"),
    "rope: pairs as halves": (rope_triton, "if PAIRS:", "if PAIRS and AXES:"),
    "rope: time only": (rope_triton, ".to(tl.int64) * tokens", ".to(tl.int64) * 0"),
    "rope: no head mask": (
        rope_triton,
        "inside = (head < heads)[:, None] & turned",
        "inside = (head < BLOCK_H)[:, None] & turned",
    ),
    "rope: rest of the features lost": (rope_triton, "if norm or not in_place else 0", "if norm else 0"),
    "rope: norm over the block": (rope_triton, "total / features", "total / (2 * BLOCK_F)"),
    "rope: keys with the weight of queries": (rope_triton, "head < queries", "head < heads"),
    "rope: norm not rounded": (rope_triton, ".to(x.dtype.element_ty).to(tl.float32)", ""),
    "swiglu: gate and up exchanged": (swiglu_triton, "gate * tl.sigmoid(gate) * up", "up * tl.sigmoid(up) * gate"),
    "swiglu: load without mask": (
        swiglu_triton,
        "tl.load(x + row * stride + features + column, mask=inside, other=0.0)",
        "tl.load(x + row * features + features + column, mask=inside, other=0.0)",
    ),
    "swiglu: store without mask": (swiglu_triton, ", mask=inside)\n\n\ndef", ")\n\n\ndef"),
    "kv: slots below 0": (kv_triton, "(slot >= 0) & (block", "(block"),
    "kv: slots behind the end": (kv_triton, " & (block < blocks)", ""),
    "kv: place": (kv_triton, "slot % places", "slot % (places - 1)"),
    "kv: value of the first head": (kv_triton, "v_token + head * v_head", "v_token + 0 * v_head"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, tmp_path: Path) -> None:
    module, before, after = BUGS[bug]
    broken = planted(module, before, after, tmp_path)
    checks = {"rope": (check_rope, ROPES), "swiglu": (check_swiglu, SWIGLUS), "kv": (check_kv, (7,))}

    def everything() -> None:
        check, cases = checks[bug.split(":")[0]]
        for dtype in (torch.float32, torch.float16):
            for case in cases:
                check(broken, dtype, case)

    caught(everything)
