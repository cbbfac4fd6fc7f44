"""A whole decoder by its kernels in the interpreter: layers, pages and draws, against the definitions in torch.

Not collected by name: `test_triton_forms.py` runs it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest
import torch
from against import poisoned
from omni_runtime.kernels import attention

from omni_runtime import kernels
from omni_runtime.draw import Draw, Edits
from omni_runtime.experts.decoder import DecoderLM, Given, Span
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.text_lm import TextLM
from omni_runtime.weights.decoder_config import DecoderConfig, Sparse, parameter_shapes
from omni_runtime.work import ArStep, Row

CONFIG = DecoderConfig(
    vocab=40, width=24, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=32, positions=64, rope_theta=1e4, eps=1e-5, qk_norm=True,
    rope_sections=(2, 1, 1), sparse=Sparse(4, 2, 16, True, frozenset({1}), shared=16), qkv_bias=True, tied=False,
)  # fmt: skip


def weights(config: DecoderConfig) -> Mapping[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: 1 + 0.3 * noise if "norm" in name else noise / (1 if "embed" in name or noise.dim() == 1 else noise.shape[1] ** 0.5)
        for name, shape in parameter_shapes(config).items()
        for noise in [torch.randn(shape, generator=generator)]
    }


def steps(form: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], list[int]]:
    """A prompt, another with a copied beginning and vectors of a medium, a step of both; what was computed and drawn."""
    monkeypatch.setattr(kernels, "_ASKED", form)
    model = DecoderLM(CONFIG, weights(CONFIG), layout="paged", dtype=dtype)
    assert model.pages is not None
    model.pages.allot(9, 4)
    model.pages.kv_L2NPGE.fill_(torch.nan)
    one, two = model.cache(), model.cache()
    one.grant(0, [7, 2, 4])
    two.grant(0, [3, 8, 0])
    generator = torch.Generator().manual_seed(1)
    medium = torch.randn(3, CONFIG.width, generator=generator)
    given = Given(medium, torch.rand(3, 3, generator=generator) * 9, (0, 2), torch.randn(1, 2, CONFIG.width, generator=generator))
    found = []
    with poisoned():
        found += model.run([Span(one, 0, [5, 9, 11, 2, 3, 8], draw=True)], taps=(1,))[:2]
        two.begin_as(one, 4)
        ran = model.run([Span(two, 4, (), True, given), Span(one, 6, [7], draw=True)], taps=(1,))
        kv = model.rows(2, 3)
        both_RND = torch.stack([medium[:2], medium[1:]])
        states = [model.lockstep(both_RND, kv, 0), model.lockstep(both_RND[:, :1], kv, 2)]
    lm, slots = TextLM(model, [b"x"] * CONFIG.vocab), Slots("x#1")
    hows = [Draw(3, 1), Draw(4, 1, 0.9, top_k=9, edits=Edits(presence=0.5)), Draw(5, 1, 1.1, 0.8, logprobs=2)]
    rows = [Row(run, "think", 3, 0, (run,), ArStep(0, (run, 4, 6), 0, how)) for run, how in enumerate(hows)]
    launched = lm.forward(rows, slots)
    assert not isinstance(launched, list)
    results = launched.collect()
    assert results[2].logprobs is not None
    return [*found, ran.logits_RV, ran.hidden_TD, ran.taps[1], *states], [result.token for result in results]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_equal_their_definitions(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.environ.get("TRITON_INTERPRET") == "1"
    (found, tokens), (expected, told) = (steps(form, dtype, monkeypatch) for form in ("triton", "torch"))
    close = {"rtol": 2e-5, "atol": 2e-5} if dtype == "float32" else {"rtol": 0.05, "atol": 0.08}
    for one, two in zip(found, expected, strict=True):
        assert two.isfinite().all() and two.abs().max() > 0.5
        torch.testing.assert_close(one, two, **close)
    assert dtype == "bfloat16" or tokens == told


def chunked(model: DecoderLM, sizes: list[int], company: bool, base: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits after the last of 11 tokens, and what lies in the pages; beside others or not."""
    assert model.pages is not None
    cache, other = model.cache(), model.cache()
    cache.grant(0, list(range(base, base + 3)))
    other.grant(0, list(range(base + 3, base + 6)))
    tokens, at, logits_V = [5, 9, 11, 2, 3, 8, 30, 1, 2, 7, 21], 0, torch.empty(0)
    for size in sizes:
        spans = [Span(cache, at, tokens[at : at + size], draw=True)]
        if company:
            spans.insert(0, Span(other, other.length, [size, 4, 6][: 1 + size % 3], draw=True))
        logits_V = model.run(spans).logits_RV[-1]
        at += size
    return logits_V, model.pages.kv_L2NPGE[:, :, base : base + 3].flatten(2, 3)[:, :, :11]


def test_in_the_exact_mode_neither_chunks_nor_company_move_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_ASKED", "triton")
    monkeypatch.setattr(attention, "PIECE", 4)  # rows of few queries are cut
    model = DecoderLM(CONFIG, weights(CONFIG), layout="paged")
    assert model.exact and model.pages is not None and model.over_pages is not None
    model.pages.allot(24, 4)
    cuts = [([4, 5, 2], True), ([10, 1], False)]
    for invariant in (True, False):
        model.over_pages.invariant = invariant
        whole = chunked(model, [11], False, 0)
        others = [chunked(model, *cut, 6) for cut in cuts[: 1 + invariant]]
        equal = [torch.equal(one, two) for other in others for one, two in zip(other, whole, strict=True)]
        assert all(equal) if invariant else not any(equal)  # else the test could not fail
