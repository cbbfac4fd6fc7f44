"""The definitions against other people's words for the same: torch's own ops, formulas in float64, and the experts on a CPU."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from omni_runtime.kernels import attention, conv, convnext, joint, kv, moe, rope, sample, snake, swiglu  # noqa: E402
from omni_runtime.kernels.attention import bucket  # noqa: E402
from sampling_rows import make, on_the_cpu  # noqa: E402

from omni_runtime import kernels  # noqa: E402
from omni_runtime.draw import Draw  # noqa: E402
from omni_runtime.experts import sampling  # noqa: E402
from omni_runtime.experts.moe import gated, mixture, route  # noqa: E402


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(actual: torch.Tensor, expected: torch.Tensor, limit: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=limit, atol=limit)


@pytest.mark.parametrize("pairs", [False, True])
def test_rotary_turns_complex_numbers(pairs: bool) -> None:
    x, angle = normal(5, 3, 10), normal(7, 4, seed=1)
    positions = torch.tensor([6, 0, 3, 3, 1])
    turn = torch.polar(torch.ones(5, 1, 4), angle[positions][:, None])
    z = torch.complex(x[..., :8:2], x[..., 1:8:2]) if pairs else torch.complex(x[..., :4], x[..., 4:8])
    z = z * turn
    expected = torch.stack([z.real, z.imag], -1).flatten(2) if pairs else torch.cat([z.real, z.imag], -1)
    out = rope.rotary(x, positions, angle.cos(), angle.sin(), pairs=pairs)
    close(out, torch.cat([expected, x[..., 8:]], -1))
    assert rope.rotary(x, positions, angle.cos(), angle.sin(), pairs=pairs, in_place=True) is x
    assert torch.equal(x, out)


def test_axes_by_hand() -> None:
    assert rope.axes([2, 3, 1]).tolist() == [0, 0, 1, 1, 1, 2]
    assert rope.axes([4, 2, 2], interleaved=True).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]


@pytest.mark.oracle
def test_axes_are_those_of_qwen3_omni() -> None:
    module = pytest.importorskip("transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe")
    frequencies = torch.arange(3.0)[:, None, None, None].expand(3, 1, 1, 64).clone()  # tells which axis it came from
    sections = SimpleNamespace(mrope_section=[24, 20, 20])
    mixed = module.Qwen3OmniMoeThinkerTextRotaryEmbedding.recomposition_frequencies(sections, frequencies)
    assert 2 * rope.axes([24, 20, 20], interleaved=True).tolist() == mixed.flatten().int().tolist()


def test_rotary_by_rows_and_columns() -> None:
    """2-D positions are two axes: half of the frequencies turn by the row, half by the column."""
    x, angle = normal(6, 2, 8), torch.arange(4.0)[:, None] * torch.tensor([1.0, 0.1])
    table = torch.cat([angle, angle], 1)
    positions = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]])
    out = rope.rotary(x, positions, table.cos(), table.sin(), rope.axes([2, 2]), pairs=True)
    for half, axis in ((slice(0, 4), 0), (slice(4, 8), 1)):
        close(out[..., half], rope.rotary(x[..., half], positions[axis], angle.cos(), angle.sin(), pairs=True))


def test_silu_mul_in_float64() -> None:
    x = 4 * normal(3, 10)
    gate, up = x.double().chunk(2, -1)
    close(swiglu.silu_mul(x), gate / (1 + (-gate).exp()) * up)


def test_store_and_attention_are_attention() -> None:
    """Keys stored by slots and read through blocks, against scaled dot product attention on the sequences themselves."""
    counts, lengths = [1, 7, 4], [9, 7, 13]
    cache = torch.full((2, 12, 4, 2, 8), torch.nan)
    blocks, queries, expected, free = [], [], [], list(range(11, -1, -1))
    for seed, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        q, k, v = normal(length, 6, 8, seed=seed), normal(length, 2, 8, seed=10 + seed), normal(length, 2, 8, seed=20 + seed)
        mine = [free.pop() for _ in range(-(-length // 4))]
        slots = torch.tensor([mine[p // 4] * 4 + p % 4 for p in range(length)])
        kv.store_kv(k, v, cache[0], cache[1], slots)
        kv.store_kv(k[:1], v[:1], cache[0], cache[1], torch.tensor([-1]))
        whole = F.scaled_dot_product_attention(
            q.transpose(0, 1),
            k.repeat_interleave(3, 1).transpose(0, 1),
            v.repeat_interleave(3, 1).transpose(0, 1),
            is_causal=True,
        )
        blocks.append(mine)
        queries.append(q[-count:])
        expected.append(whole.transpose(0, 1)[-count:])
    batch = attention.plan(counts, lengths, blocks, 3)
    close(attention.paged_attention(torch.cat(queries), cache[0], cache[1], batch, 8**-0.5), torch.cat(expected))


def test_a_window_is_so_many_keys() -> None:
    q, cache = normal(12, 1, 4), normal(2, 3, 4, 1, 4, seed=1)
    k, v = cache.flatten(1, 2)
    at = torch.arange(12)
    seen = (at[None] <= at[:, None]) & (at[None] > at[:, None] - 5)
    assert int(seen[11].sum()) == 5
    expected = F.scaled_dot_product_attention(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), seen)
    batch = attention.plan([12], [12], [[0, 1, 2]], 1, window=5)
    close(attention.paged_attention(q, cache[0], cache[1], batch, 0.5), expected.transpose(0, 1))


@pytest.mark.parametrize("window", [0, 700])
def test_a_plan_covers_each_query_and_key_once(window: int) -> None:
    counts, lengths, group = [1, 300, 5, 0, 2], [3000, 300, 2049, 7, 513], 3
    batch = attention.plan(counts, lengths, [[0]] * 5, group, window, sizes=attention.Sizes(400, 5, 1, 32, 9, 24))
    small, large = attention.tile_rows(group)
    covered: dict[tuple[int, int], list[tuple[int, int]]] = {}
    slots = []
    assert len(batch.tiles_W5) == 32
    for row, first, low, high, slot in batch.tiles_W5.tolist():
        if row < 0:
            continue
        left = counts[row] - first
        for query in range(first, first + min(left, (small if left * group <= small else large) // group)):
            covered.setdefault((row, query), []).append((low, high))
        slots += [slot] if slot >= 0 else []
        assert slot < 0 or high - low <= attention.PIECE
    assert sorted(slots) == list(range(len(slots))) == [s for _, _, at, n in batch.merges_M4.tolist() for s in range(at, at + n)]
    for row, count in enumerate(counts):
        for query in range(count):
            ranges = sorted(covered[row, query])
            position = lengths[row] - count + query
            assert all(a[1] == b[0] for a, b in pairwise(ranges))
            assert ranges[0][0] <= max(position - window + 1, 0 if window else -1) or ranges[0][0] == 0
            assert ranges[-1][1] > position


def test_joint_attention_is_attention_of_both_streams() -> None:
    counts = [(5, 2), (1, 4)]
    first, second = normal(3, 6, 2, 8), normal(3, 6, 2, 8, seed=1)
    outs = joint.joint_attention(list(first), list(second), joint.joint_plan(counts), 8**-0.5)
    for (a, b), (c, d) in (((0, 5), (0, 2)), ((5, 6), (2, 6))):
        q, k, v = (torch.cat([x[a:b], y[c:d]]).transpose(0, 1) for x, y in zip(first, second, strict=True))
        expected = F.scaled_dot_product_attention(q, k, v).transpose(0, 1)
        close(torch.cat([outs[0][a:b], outs[1][c:d]]), expected)


def test_fused_moe_is_the_mixture_of_the_experts() -> None:
    x, router, up, down = normal(9, 8), normal(8, 4, seed=1), normal(4, 12, 8, seed=2), normal(4, 8, 6, seed=3)

    def times(weight: torch.Tensor):  # type: ignore[no-untyped-def]
        return lambda h: h @ weight.t()

    mlps = [gated(times(up[i]), times(down[i])) for i in range(4)]
    routed = route(x @ router, 2, True)
    close(moe.fused_moe(x, up, down, *routed), mixture(lambda h: h @ router, mlps, 2, True)(x))
    assert not moe.fused_moe(x, up, down, torch.full((9, 2), -1), routed[1]).any()


@pytest.mark.parametrize("edited", [False, True])
def test_tokens_are_those_that_the_cpu_draws(edited: bool) -> None:
    rows = make(5, 60, 90, torch.float32, edited)
    draws, changes = sample.collect(rows.hows, rows.indices, rows.known)
    assert (changes is not None) == edited
    tokens, told = sample.draw_tokens(rows.logits_RV, draws, changes, logprobs=True)
    assert tokens.tolist() == on_the_cpu(rows)
    for row, token in enumerate(tokens.tolist()):
        if token >= 0:
            assert abs(float(told[row]) - sampling.logprob(rows.logits_RV[row], token, 0).logprob) < 1e-5


def test_gumbel_numbers_are_those_of_the_cpu() -> None:
    draws, _ = sample.collect([Draw(2**63 + 12345, 3, 1.0)], [2**32 + 9], [[]])
    ids = torch.arange(500).numpy()
    expected = -torch.from_numpy(sampling.uniform(ids, Draw(2**63 + 12345, 3), 2**32 + 9)).log()
    torch.testing.assert_close(sample.gumbel(500, draws, 0), -expected.log(), rtol=1e-14, atol=1e-14)


def test_snake_in_float64() -> None:
    x, alpha, beta = 3 * normal(2, 3, 50), normal(3, seed=1), normal(3, seed=2)
    expected = x.double() + torch.sin(x.double() * alpha.double().exp()[:, None]) ** 2 / beta.double().exp()[:, None]
    close(snake.snake_beta(x, alpha, beta), expected)


@pytest.mark.parametrize("taps", [1, 3, 7])
@pytest.mark.parametrize("dilation", [1, 4])
def test_causal_convolution_in_chunks(taps: int, dilation: int) -> None:
    x, weight, bias = normal(2, 3, 40), normal(5, 3, taps, seed=1), normal(5, seed=2)
    act = (normal(3, seed=3) / 3, normal(3, seed=4) / 3)
    past = (taps - 1) * dilation
    whole = F.conv1d(F.pad(snake.snake_beta(x, *act), (past, 0)), weight, bias, dilation=dilation)
    state, parts = torch.zeros(2, 3, past), []
    for chunk in x.split([1, 0, 19, 20], 2):
        y, state = conv.causal_conv(chunk, state, conv.pack(weight), bias, dilation, act)
        parts.append(y)
    close(torch.cat(parts, 2), whole)


@pytest.mark.parametrize(("taps", "stride"), [(8, 4), (5, 2), (3, 5), (16, 8)])
def test_causal_transposed_convolution_in_chunks(taps: int, stride: int) -> None:
    x, weight, bias = normal(2, 3, 12), normal(3, 5, taps, seed=1), normal(5, seed=2)
    whole = F.conv_transpose1d(x, weight, bias, stride=stride)
    whole = F.pad(whole, (0, max(stride - taps, 0)))[..., : 12 * stride]
    if taps < stride:  # behind the last tap there is the bias alone
        whole[..., 11 * stride + taps :] = bias[:, None]
    packed = conv.pack_transposed(weight, stride)
    state, parts = torch.zeros(2, 3, len(packed) - 1), []
    for chunk in x.split([1, 0, 4, 7], 2):
        y, state = conv.causal_transposed_conv(chunk, state, packed, stride, bias)
        parts.append(y)
    close(torch.cat(parts, 2), whole)


def test_convnext_block_is_its_layers() -> None:
    x, wide = normal(2, 6, 30), normal(12, 6, seed=1)
    taps, vectors = normal(6, 7, seed=2), normal(5, 6, seed=3)
    weights = convnext.ConvNeXt(taps, *vectors[:3], wide, normal(12, seed=4), normal(6, 12, seed=5), *vectors[3:])
    h = F.conv1d(F.pad(x, (6, 0)), taps[:, None], vectors[0], groups=6).transpose(1, 2)
    h = F.layer_norm(h, (6,), vectors[1], vectors[2], 1e-6)
    h = F.linear(F.gelu(F.linear(h, wide, weights.up_bias_F)), weights.down_CF, vectors[3]) * vectors[4]
    state, parts = torch.zeros(2, 6, 6), []
    for chunk in x.split([3, 0, 27], 2):
        y, state = convnext.convnext_block(chunk, state, weights)
        parts.append(y)
    close(torch.cat(parts, 2), x + h.transpose(1, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int8, torch.complex64, torch.bool])
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    """Whole numbers wrapped, complex ones lost their imaginary part, and float64 was float32 in disguise."""
    x = torch.ones(2, 4).to(dtype)
    for op in (lambda: kernels.product(x, x), lambda: kernels.silu_mul(x), lambda: kernels.rms_norm(x, x[0], 1e-6)):
        with pytest.raises(ValueError, match=f"not {dtype}: convert it first"):
            op()


def test_a_product_across_devices_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(4, 8\) torch.float32 on meta do not fit"):
        kernels.product(torch.ones(3, 8), torch.ones(4, 8, device="meta"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (((1,), (1,), ((0,),), 0), "group=0"),
        (((1,), (1,), ((0,),), 1, -1), "window=-1"),
        (((1,), (1,), ((-1,),), 1), "block -1"),
        (((1, 1), (1,), ((0,),), 1), "2 counts, 1 lengths, 1 tables"),
    ],
)
def test_a_plan_of_nonsense_is_refused(given: tuple[object, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        kernels.plan(*given)  # type: ignore[arg-type]


def test_a_bucket_of_nonsense_is_refused() -> None:
    for given in ((-1, 1, 1, 16, 1), (1, 1, 1, 16, 0), (1, 1, 1, 0, 1)):
        with pytest.raises(ValueError, match="none below 0, places and group at least 1"):
            bucket(*given)
