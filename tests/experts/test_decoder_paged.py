"""The decoder over pages against the one in torch, on the same weights: the kernels' definitions stand for the kernels."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from paged import PLACES, PagedLM, paged_lm  # noqa: E402
from tiny import CONFIGS, USUAL, prefill, random_tokens, random_weights  # noqa: E402

from omni_runtime.errors import CardError, RequestError  # noqa: E402
from omni_runtime.experts.decoder import DecoderLM, Given, Span  # noqa: E402
from omni_runtime.experts.pages import PagedCache, Pages  # noqa: E402
from omni_runtime.weights.decoder_config import DecoderConfig, Sparse  # noqa: E402

torch.set_num_threads(1)
ROUNDING = {"rtol": 2e-5, "atol": 5e-5}

# Everything at once: three axes, norms of heads, one dense layer, mixtures with a shared expert, biases, no group of 2^n heads.
WHOLE = DecoderConfig(
    **USUAL | {"layers": 3, "heads": 6, "kv_heads": 2, "head_dim": 12},
    qk_norm=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    rope_sections=(2, 2, 2),
    sparse=Sparse(5, 2, 24, True, frozenset({0, 2}), shared=40),
    tied=False,
)
SHAPES = {**CONFIGS, "whole": WHOLE, "a section after the other": replace(WHOLE, rope_interleaved=False, qk_norm=False)}


def pair(name: str) -> tuple[PagedLM, DecoderLM]:
    config = SHAPES[name]
    return paged_lm(config), DecoderLM(config, random_weights(config), layout="plain")


def given(config: DecoderConfig, start: int, count: int, seed: int) -> Given:
    """Vectors for all tokens, fractions for positions, features for two of them after two layers."""
    generator = torch.Generator().manual_seed(seed)
    vectors_ND = torch.randn(count, config.width, generator=generator) / 3
    positions_3N = start + torch.rand(3, count, generator=generator) * 9 if config.rope_sections else None
    rows = tuple(sorted(random.Random(seed).sample(range(count), min(2, count))))
    return Given(vectors_ND, positions_3N, rows, torch.randn(2, len(rows), config.width, generator=generator))


@pytest.mark.parametrize("name", SHAPES)
def test_ragged_batches_equal_the_decoder_in_torch(name: str) -> None:
    """Prompts, chunks, single tokens, media and steps back, in one batch each; every number of a pass is compared."""
    ours, theirs = pair(name)
    rng = random.Random(7)
    caches = [(ours.cache(), theirs.cache()) for _ in range(5)]
    for turn in range(14):
        members = rng.sample(range(5), rng.randrange(1, 6))
        spans: tuple[list[Span], list[Span]] = [], []
        for i in members:
            have = caches[i][0].length
            start, count = rng.choice([have, have, rng.randrange(have + 1)]), rng.choice([1, 1, rng.randrange(1, 20)])
            tokens = random_tokens(count, seed=100 * turn + i)
            more = given(ours.config, start, count, turn) if rng.random() < 0.3 else None
            for part, cache in zip(spans, caches[i], strict=True):
                part.append(Span(cache, start, () if more else tokens, i % 2 == 0 or i == members[0], more))
        found, expected = (model.run(part, taps=(0, 1, 3)) for model, part in zip((ours, theirs), spans, strict=True))
        assert expected.logits_RV.abs().max() > 0.3
        torch.testing.assert_close(found.logits_RV, expected.logits_RV, **ROUNDING)
        torch.testing.assert_close(found.hidden_TD, expected.hidden_TD, **ROUNDING)
        assert set(found.taps) == {0, 1, 3}
        torch.testing.assert_close(found.taps, expected.taps, **ROUNDING)
        assert [pair[0].length for pair in caches] == [pair[1].length for pair in caches]


@pytest.mark.parametrize("name", ["qwen3", "whole"])
def test_steps_in_lockstep_equal_the_decoder_in_torch(name: str) -> None:
    models = pair(name)
    kept = [model.rows(3, 6) for model in models]
    x_RND = torch.randn(3, 2, models[0].config.width, generator=torch.Generator().manual_seed(1)) / 3
    for start, part_RND in ((0, x_RND), *((at, x_RND[:, :1] * at) for at in (2, 3, 4, 5))):
        found_RD, expected_RD = (model.lockstep(part_RND, kv, start) for model, kv in zip(models, kept, strict=True))
        torch.testing.assert_close(found_RD, expected_RD, **ROUNDING)


def test_a_copied_beginning_is_a_copy() -> None:
    ours, _ = pair("qwen3")
    tokens = random_tokens(37, seed=1)
    source, fork = ours.cache(), ours.cache()
    expected = prefill(ours, source, tokens, [37])
    ours.deal(fork, 19)
    fork.begin_as(source, 19)
    assert not set(fork.table) & set(source.table)
    prefill(ours, source, random_tokens(30, seed=2), [30])  # the source goes on, as another text
    logits_RV, _ = ours.forward([Span(fork, 19, tokens[19:], draw=True)])
    torch.testing.assert_close(logits_RV[0], expected, **ROUNDING)
    with pytest.raises(AssertionError, match="a copy of 31 positions from a cache of 30"):
        fork.begin_as(source, 31)


def test_nothing_outside_its_blocks_is_read_or_written() -> None:
    """Everything that was never granted is NaN before and after; what another one holds is what it was."""
    ours, _ = pair("whole")
    assert ours.pages is not None
    other, cache = ours.cache(), ours.cache()
    prefill(ours, other, random_tokens(30, seed=3), [30])
    before = ours.pages.kv_L2NPGE[:, :, other.table].clone()
    logits_RV = prefill(ours, cache, random_tokens(21, seed=4), [13, 7, 1])
    assert logits_RV.isfinite().all()
    torch.testing.assert_close(ours.pages.kv_L2NPGE[:, :, other.table], before, rtol=0, atol=0, equal_nan=True)
    written = ~ours.pages.kv_L2NPGE.isnan().flatten(3).any(3).all(0).all(0)
    whole = [*other.table[:3], *cache.table[:2]]
    assert set(torch.where(written)[0].tolist()) <= {*other.table.tolist(), *cache.table.tolist()}
    assert ours.pages.kv_L2NPGE[:, :, whole].isfinite().all()
    assert ours.pages.kv_L2NPGE[:, :, cache.table[2], 21 % PLACES :].isnan().all()


def test_a_row_beyond_its_blocks_is_a_bug_with_numbers() -> None:
    model = DecoderLM(CONFIGS["llama"], random_weights(CONFIGS["llama"]), layout="paged")
    assert model.pages is not None
    cache, good = model.cache(), model.cache()
    with pytest.raises(CardError, match="bytes_per_position: a decoder with pages needs a pool"):
        model.forward([Span(cache, 0, [1])])
    model.pages.allot(6, 4)
    with pytest.raises(AssertionError, match="6 blocks of 4 positions"):
        model.pages.allot(7, 4)
    good.grant(0, [5])
    model.forward([Span(good, 0, [1, 2, 3])])
    cache.grant(0, [2])
    with pytest.raises(AssertionError, match="5 positions, but 1 blocks of 4 were granted"):
        model.forward([Span(good, 2, [1]), Span(cache, 0, [1] * 5)])
    assert (good.length, cache.length) == (3, 0)
    with pytest.raises(AssertionError, match="blocks for place 3, 1 are known"):
        cache.grant(3, [1])
    with pytest.raises(AssertionError, match="blocks 0 to 6, the pool has 6"):
        cache.grant(1, [0, 6])
    cache.grant(1, [3, 4])
    cache.grant(1, [1])  # said again, with less: what came after is not its own
    assert isinstance(cache, PagedCache) and cache.table.tolist() == [2, 1]


def test_an_incarnation_that_was_given_up_touches_nothing_more() -> None:
    pages = Pages(CONFIGS["llama"], torch.device("cpu"), torch.float32)
    for home in ("cpu0#1", "cpu0#1", "cpu0#2"):
        with pages.turn(home):
            pass
    with pytest.raises(RuntimeError, match="'cpu0#1' was given up, and its KV pages are those of 'cpu0#2'"), pages.turn("cpu0#1"):
        pass


def test_a_pool_that_does_not_fit_is_an_error_of_the_card() -> None:
    pages = Pages(CONFIGS["llama"], torch.device("cpu"), torch.float32)
    with pytest.raises(CardError, match=r"kv_bytes: 1099511627776 KV blocks take \d+\.00 GiB on cpu"):
        pages.allot(1 << 40, 64)


def test_bfloat16_is_a_choice() -> None:
    config = CONFIGS["qwen3"]
    half, whole = paged_lm(config, dtype="bfloat16"), paged_lm(config)
    assert half.pages is not None and half.pages.kv_L2NPGE.dtype == torch.bfloat16
    tokens = random_tokens(20, seed=5)
    found, expected = (prefill(model, model.cache(), tokens, [19, 1]) for model in (half, whole))
    assert found.dtype == torch.float32 and (found.bfloat16() == found).all()
    error = (found - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert 1e-3 < error < 0.05, error
    with pytest.raises(CardError, match="dtype='float16': unknown dtype"):
        paged_lm(config, dtype="float16")
    with pytest.raises(CardError, match="dtype='bfloat16': layout 'plain' computes in float32"):
        DecoderLM(config, random_weights(config), layout="plain", dtype="bfloat16")


def test_wrong_spans_are_refused_as_ever() -> None:
    model = paged_lm(CONFIGS["llama"])
    cache = model.cache()
    prefill(model, cache, [1, 2, 3], [3])
    for tokens, clause in (([], "at least one"), ([97], "97 is not in the vocabulary"), ([1] * 257, "257 positions")):
        with pytest.raises(RequestError, match=clause):
            model.forward([Span(cache, 0, tokens)])
    with pytest.raises(AssertionError, match="span starts at 5, its cache holds 3"):
        model.forward([Span(cache, 5, [1])])
    other = DecoderLM(model.config, random_weights(model.config), layout="plain")
    with pytest.raises(AssertionError, match="a PagedCache for a decoder that keeps no pages"):
        other.run([Span(cache, 0, [1])])
    with pytest.raises(AssertionError, match="a copy of a PagedCache"):
        other.cache().begin_as(cache, 1)
