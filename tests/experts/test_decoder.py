"""A decoder gives the same whatever the batch and however a prompt is cut, and its caches bear reruns and failures."""

import random
from dataclasses import replace

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from tiny import CONFIGS, USUAL, prefill, random_tokens, random_weights  # noqa: E402

from omni_runtime.errors import CardError, CheckpointError, RequestError  # noqa: E402
from omni_runtime.experts.decoder import DecoderLM, Span  # noqa: E402
from omni_runtime.experts.linear import can_pack, linear  # noqa: E402
from omni_runtime.weights.decoder_config import DecoderConfig  # noqa: E402

torch.set_num_threads(1)
ROUNDING = {"rtol": 2e-5, "atol": 5e-5}  # logits of these models are of size 1 to 10


@pytest.fixture(params=[(name, layout) for name in CONFIGS for layout in ("plain", "native")], ids=" ".join)
def model(request: pytest.FixtureRequest) -> DecoderLM:
    name, layout = request.param
    return DecoderLM(CONFIGS[name], random_weights(CONFIGS[name]), layout=layout)


def same(model: DecoderLM, found: torch.Tensor, expected: torch.Tensor) -> None:
    """To the bit by our own kernels, which compute each row by itself; up to rounding by torch."""
    if model._native is not None:
        assert torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, **ROUNDING)


@pytest.mark.parametrize("sizes", [[1] * 40, [7, 33], [33, 7], [1, 38, 1], [20, 20], [13, 1, 1, 25]])
def test_the_cut_of_a_prompt_changes_nothing(model: DecoderLM, sizes: list[int]) -> None:
    tokens = random_tokens(40, seed=1)
    whole = prefill(model, model.cache(), tokens, [40])
    assert whole.abs().max() > 1
    same(model, prefill(model, model.cache(), tokens, sizes), whole)


def test_neighbours_change_nothing(model: DecoderLM) -> None:
    """Random batches of prompts, chunks and single tokens against each sequence alone."""
    rng = random.Random(5)
    sequences = [random_tokens(rng.randrange(3, 60), seed=i) for i in range(7)]
    alone = [prefill(model, model.cache(), tokens, [len(tokens)]) for tokens in sequences]
    caches, found = [model.cache() for _ in sequences], {}
    while len(found) < len(sequences):
        waiting = [i for i in range(len(sequences)) if i not in found]
        spans = []
        members = rng.sample(waiting, rng.randrange(1, len(waiting) + 1))
        for i in members:
            left = len(sequences[i]) - caches[i].length
            size = rng.choice([1, left, rng.randrange(1, left + 1)])
            part = sequences[i][caches[i].length : caches[i].length + size]
            spans.append(Span(caches[i], caches[i].length, part, draw=size == left))
        logits = iter(model.forward(spans)[0])
        found |= {i: next(logits) for i, span in zip(members, spans, strict=True) if span.draw}
    for i, expected in enumerate(alone):
        same(model, found[i], expected)


def test_only_rows_that_draw_reach_the_head_and_hidden_states_come_for_all(model: DecoderLM) -> None:
    spans = [Span(model.cache(), 0, random_tokens(n, seed=n), draw=n % 2 == 1) for n in (3, 4, 5)]
    logits_RV, hidden_TD = model.forward(spans)
    assert logits_RV.shape == (2, model.config.vocab)
    assert hidden_TD.shape == (12, model.config.width)
    torch.testing.assert_close(model._head(hidden_TD[[2, 11]]), logits_RV, **ROUNDING)
    assert model.forward([Span(model.cache(), 0, [1])])[0].shape == (0, model.config.vocab)


def test_a_span_may_run_again_and_may_go_back(model: DecoderLM) -> None:
    tokens, cache = random_tokens(30, seed=2), model.cache()
    first = prefill(model, cache, tokens, [20, 10])
    again, _ = model.forward([Span(cache, 20, tokens[20:], draw=True)])
    assert torch.equal(again[0], first)
    other, _ = model.forward([Span(cache, 5, [7, 8], draw=True)])
    assert cache.length == 7
    torch.testing.assert_close(other[0], prefill(model, model.cache(), [*tokens[:5], 7, 8], [7]), **ROUNDING)


def test_a_cache_survives_a_batch_that_raised(model: DecoderLM, monkeypatch: pytest.MonkeyPatch) -> None:
    model = DecoderLM(model.config, random_weights(model.config), layout="plain")  # our own kernels do not raise
    tokens, cache = random_tokens(30, seed=3), model.cache()
    expected = prefill(model, model.cache(), tokens, [30])
    prefill(model, cache, tokens, [30])
    healthy = model._layers

    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("injected")

    monkeypatch.setattr(model, "_layers", [*healthy[:-1], replace(healthy[-1], mlp=broken)])
    with pytest.raises(RuntimeError, match="injected"):
        model.forward([Span(cache, 12, [1, 2, 3])])
    assert cache.length == 12  # what lay behind is partly overwritten, so it is forgotten
    monkeypatch.setattr(model, "_layers", healthy)
    logits, _ = model.forward([Span(cache, 12, tokens[12:], draw=True)])
    torch.testing.assert_close(logits[0], expected, **ROUNDING)


def test_a_cache_grows_by_doubling_and_keeps_what_it_holds() -> None:
    config = replace(CONFIGS["llama"], positions=4096)
    model = DecoderLM(config, random_weights(config))
    tokens, cache, sizes = random_tokens(1500, seed=4), model.cache(), set()
    for at in range(0, 1500, 30):
        logits, _ = model.forward([Span(cache, at, tokens[at : at + 30], draw=True)])
        sizes.add(cache.nbytes)
    assert len(sizes) == 6  # 64, 128, ... 2048: and past the 1024 positions that the rotary tables begin with
    torch.testing.assert_close(logits[0], prefill(model, model.cache(), tokens, [1500]), rtol=1e-4, atol=2e-4)


def test_a_cache_never_takes_more_than_the_model_can_use() -> None:
    config = replace(CONFIGS["llama"], positions=100)
    model, cache = DecoderLM(config, random_weights(config)), None
    cache = model.cache()
    prefill(model, cache, random_tokens(100, seed=1), [70, 30])
    assert cache.nbytes == 2 * 3 * 2 * 100 * 8 * 4


@pytest.mark.parametrize(
    ("tokens", "clause"),
    [([], "at least one"), ([97], "97 is not in the vocabulary of 97"), ([3, -1], "-1 is not"), ([1] * 257, "257 positions")],
)
def test_a_wrong_span_is_refused_before_anything_is_written(model: DecoderLM, tokens: list[int], clause: str) -> None:
    good, bad = model.cache(), model.cache()
    prefill(model, good, [1, 2, 3], [3])
    with pytest.raises(RequestError, match=clause):
        model.forward([Span(good, 1, [5]), Span(bad, 0, tokens)])
    assert good.length == 3


def test_a_gap_is_a_bug_of_the_caller(model: DecoderLM) -> None:
    cache = model.cache()
    with pytest.raises(AssertionError, match="span starts at 1, its cache holds 0"):
        model.forward([Span(cache, 1, [5])])
    with pytest.raises(AssertionError, match="two spans of one sequence"):
        model.forward([Span(cache, 0, [5]), Span(cache, 0, [5])])


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_layouts_differ_in_rounding_only(name: str) -> None:
    config = replace(CONFIGS[name], width=512, ffn=1024)  # large enough to be packed
    weights, tokens = random_weights(config), random_tokens(40, seed=6)
    found = {}
    for layout in ("plain", "native", "packed"):
        model = DecoderLM(config, weights, layout=layout)
        cache = model.cache()
        prefill(model, cache, tokens, [39, 1])
        found[layout], _ = model.forward([Span(model.cache(), 0, tokens, True), Span(cache, 20, tokens[20:21], True)])
    for layout in ("native", "packed"):  # logits are of size 20 to 60 here
        torch.testing.assert_close(found[layout], found["plain"], rtol=2e-5, atol=4e-4)


@pytest.mark.parametrize("rows", [1, 2, 17, 255, 256, 300])
@pytest.mark.parametrize("biased", [False, True])
def test_a_linear_layer_is_one_in_every_layout(rows: int, biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(700, 640, generator=generator), torch.randn(rows, 640, generator=generator)
    bias = torch.randn(700, generator=generator) if biased else None
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double()).float()
    for layout in ("plain", "auto", "native", "packed"):
        torch.testing.assert_close(linear(weight, bias, layout)(x), expected, rtol=1e-5, atol=1e-4)


def test_a_layout_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(CardError, match="one of auto, native, bfloat16, int8, packed, plain"):
        linear(torch.zeros(2, 2), layout="fast")
    half = torch.zeros(2, 2, dtype=torch.float64)
    assert not can_pack(half)
    with pytest.raises(CardError, match=r"not torch\.float64 on cpu"):
        linear(half, layout="packed")


@pytest.mark.parametrize(
    ("change", "clause"),
    [({"layers": 0}, "layers=0"), ({"kv_heads": 4}, "kv_heads=4"), ({"head_dim": 7}, "head_dim=7"), ({"eps": -1.0}, "eps=-1.0")],
)
def test_a_configuration_that_contradicts_itself_is_refused(change: dict[str, float], clause: str) -> None:
    with pytest.raises(CardError, match=clause):
        DecoderConfig(**USUAL | change)


def test_weights_are_accounted_for() -> None:
    config = CONFIGS["llama"]
    weights = random_weights(config)
    missing = {name: weight for name, weight in weights.items() if name != "model.layers.1.mlp.up_proj.weight"}
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight' is missing"):
        DecoderLM(config, missing)
    with pytest.raises(CheckpointError, match="'extra' is not part of this decoder"):
        DecoderLM(config, weights | {"extra": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"has shape \(97, 47\)"):
        DecoderLM(config, weights | {"lm_head.weight": torch.zeros(97, 47)})


def test_a_cache_that_was_used_begins_again_as_another() -> None:
    """As when a batch with a copied beginning is run again after it broke: the first run has grown the cache inside a pass."""
    model = DecoderLM(CONFIGS["llama"], random_weights(CONFIGS["llama"]))
    one, two = model.cache(), model.cache()
    prefill(model, one, random_tokens(70, 1), [70])
    expected = prefill(model, one, random_tokens(70, 1), [70])
    prefill(model, two, random_tokens(9, 2), [9])
    two.begin_as(one, 60)
    logits_RV, _ = model.forward([Span(two, 60, random_tokens(70, 1)[60:], draw=True)])
    torch.testing.assert_close(logits_RV[0], expected, rtol=1e-4, atol=1e-4)
