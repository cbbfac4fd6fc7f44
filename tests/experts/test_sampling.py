"""Draws are those of Philox with the request's own key, follow the softmax, and depend on nothing else."""

import math

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from omni_runtime.experts.sampling import draw, nucleus, philox, uniform  # noqa: E402
from omni_runtime.work import Draw  # noqa: E402

# Known answers of Random123 (kat_vectors, philox4x32 10): counter, key, result.
KNOWN = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    first = np.array([1, counter[0], 2], np.uint32)
    words = philox((first, counter[1], counter[2], counter[3]), key)
    assert tuple(int(word[1]) for word in words) == expected
    assert all(word.shape == (3,) and word.dtype == np.uint32 for word in words)


def test_uniform_lies_strictly_inside_and_is_as_documented() -> None:
    how = Draw(seed=0x299F31D0A4093822, node=0x13198A2E)
    assert uniform(np.array([0x243F6A88]), how, 0x85A308D3)[0] != 0
    words = philox((np.array([5], np.uint32), 9, 3, 0), (1, 2))
    found = uniform(np.array([5]), Draw(seed=2 << 32 | 1, node=3), 9)[0]
    assert found == (int(words[0][0]) * 2**20 + (int(words[1][0]) >> 12) + 0.5) / 2**52
    assert (0xFFFFFFFF * 2.0**20 + 0xFFFFF + 0.5) * 2.0**-52 < 1
    many = uniform(np.arange(100_000), Draw(seed=1, node=0), 0)
    assert 0 < many.min() < 1e-4 < 0.5 - 0.005 < many.mean() < 0.5 + 0.005 < 1 - 1e-4 < many.max() < 1


def test_a_uniform_depends_on_its_token_only() -> None:
    """So a draw needs numbers for its candidates only, whichever they are."""
    how = Draw(seed=11, node=2)
    ids = np.array([3, 77, 40_000])
    assert np.array_equal(uniform(np.arange(49_152), how, 4)[ids], uniform(ids, how, 4))


@pytest.mark.parametrize("change", [{"seed": 2**63}, {"seed": 5 + 2**32}, {"node": 1}])
def test_seed_node_and_index_all_matter(change: dict[str, int]) -> None:
    ids, how = np.arange(100), {"seed": 5, "node": 0}
    assert not np.isin(uniform(ids, Draw(**how | change), 0), uniform(ids, Draw(**how), 0)).any()
    assert not np.isin(uniform(ids, Draw(**how), 1), uniform(ids, Draw(**how), 0)).any()


def test_temperature_0_takes_the_largest_and_the_lowest_of_equals() -> None:
    assert draw(torch.tensor([1.0, 3.0, 3.0, -math.inf]), Draw(seed=9, node=0), 0) == 1


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
def test_any_seed_draws_and_draws_again(seed: int) -> None:
    logits = torch.linspace(-1, 1, 50)
    how = Draw(seed, 0, 1.0, 0.9)
    tokens = [draw(logits, how, index) for index in range(40)]
    assert tokens == [draw(logits, how, index) for index in range(40)]
    assert len(set(tokens)) > 8


LOGITS = torch.tensor([2.0, 1.5, 1.0, 0.0, -1.0, -math.inf, 1.5, -3.0])


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (3.0, 1.0), (1.0, 0.8), (2.0, 0.5)])
def test_draws_follow_the_softmax(temperature: float, top_p: float) -> None:
    count = 4000
    found = np.bincount([draw(LOGITS, Draw(seed, 1, temperature, top_p), seed % 7) for seed in range(count)], minlength=8)
    weight = torch.softmax(LOGITS.double() / temperature, 0).numpy()
    kept = np.zeros(8)
    mass = 0.0
    for token in sorted(range(8), key=lambda t: (-weight[t], t)):
        if mass >= top_p:
            break
        kept[token] = weight[token]
        mass += weight[token]
    expected = kept / kept.sum() * count
    assert found[expected == 0].sum() == 0
    live = expected > 0
    chi2 = float(((found[live] - expected[live]) ** 2 / expected[live]).sum())
    freedom = live.sum() - 1
    assert chi2 < freedom + 4 * math.sqrt(2 * freedom) + 4  # by chance one in a thousand; the seeds are fixed


def test_neighbouring_indices_are_independent() -> None:
    """Pairs of successive draws fall on the four combinations alike."""
    flat = torch.zeros(2)
    pairs = [2 * draw(flat, Draw(s, 0, 1.0), 0) + draw(flat, Draw(s, 0, 1.0), 1) for s in range(4000)]
    assert ((np.bincount(pairs) - 1000) ** 2 / 1000).sum() < 16.3  # chi-square, 3 degrees of freedom, 0.001


@pytest.mark.parametrize(
    ("weights", "top_p", "expected"),
    [
        ([0.5, 0.3, 0.2], 0.5, [0]),
        ([0.5, 0.3, 0.2], 0.51, [0, 1]),
        ([0.2, 0.3, 0.5], 0.0, [2]),
        ([0.25, 0.25, 0.25, 0.25], 0.5, [0, 1]),
        ([0.1, 0.25, 0.25, 0.4], 0.6, [1, 3]),
        ([0.2, 0.3, 0.5], 0.9999999, [0, 1, 2]),
        ([5.0, 3.0, 2.0], 0.8, [0, 1]),
    ],
)
def test_nucleus_is_the_smallest_set(weights: list[float], top_p: float, expected: list[int]) -> None:
    assert nucleus(np.array(weights), top_p).tolist() == expected


def test_nucleus_equals_the_plain_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        weights = rng.integers(0, 6, rng.integers(1, 40)).astype(float)  # many equals, many zeros; sums are exact
        weights[rng.integers(len(weights))] = 6
        top_p = float(rng.integers(1, 8)) / 8
        order = sorted(range(len(weights)), key=lambda t: (-weights[t], t))
        mass = np.cumsum(weights[order])
        count = int(np.argmax(mass >= top_p * weights.sum())) + 1
        assert nucleus(weights, top_p).tolist() == sorted(order[:count])


@pytest.mark.parametrize("temperature", [1e-300, 1e-3, 1e6])
def test_extreme_temperatures(temperature: float) -> None:
    tokens = {draw(torch.tensor([0.0, 5.0, 1.0]), Draw(seed, 0, temperature, 0.999), 0) for seed in range(60)}
    assert tokens == ({1} if temperature < 1 else {0, 1, 2})


@pytest.mark.parametrize("bad", [[0.0, math.nan, 1.0], [0.0, math.inf], [-math.inf, -math.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error(bad: list[float], temperature: float) -> None:
    with pytest.raises(FloatingPointError, match="nothing can be drawn"):
        draw(torch.tensor(bad), Draw(0, 0, temperature), 0)


def test_global_generators_stay_where_they_are() -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    draw(LOGITS, Draw(3, 0, 1.0, 0.9), 0)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
