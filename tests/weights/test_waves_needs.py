"""What a piece of BigVGAN's sound needs of every operation, against sums written out index by index."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from omni_runtime.weights.qwen2_5_omni_parts import Span, WavesConfig

CONFIGS = [
    WavesConfig(4, 8, (3, 2), (7, 4), (3, 5), ((1, 3), (2,))),
    WavesConfig(4, 8, (5,), (11,), (3, 7), ((1,), (1, 2))),
    WavesConfig(4, 8, (2, 3), (2, 5), (1,), ((4,),)),
]
PUBLISHED = WavesConfig(80, 1536, (5, 3, 2, 2, 2, 2), (11, 7, 4, 4, 4, 4), (3, 7, 11), ((1, 3, 5),) * 3)


def convolved(wanted: Iterable[int], size: int, dilation: int = 1) -> set[int]:
    return {t + (k - (size - 1) // 2) * dilation for t in wanted for k in range(size)}


def smoothed(wanted: Iterable[int]) -> set[int]:
    """Output t is of 12 values at twice the rate, of which value n is of the 12 that it would see with zeros between inputs."""
    twice = {2 * t - 5 + k for t in wanted for k in range(12)}
    return {(n - 6 + k) // 2 for n in twice for k in range(12) if (n - 6 + k) % 2 == 0}


def grown(wanted: Iterable[int], size: int, rate: int) -> set[int]:
    cut = (size - rate) // 2
    return {j for n in wanted for j in range(n // rate - size, n // rate + size) if 0 <= n + cut - j * rate < size}


def span(wanted: set[int]) -> Span:
    return Span(min(wanted), max(wanted) + 1)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (3, 5), (7, 20)])
def test_needs_are_what_sums_reach(config: WavesConfig, start: int, stop: int) -> None:
    needs = config.needs(start, stop)
    assert needs.sound == (start * config.hop, stop * config.hop)
    wanted = smoothed(convolved(range(*needs.sound), 7))
    for rate, kernel, need in list(zip(config.rates, config.kernels, needs.rates, strict=True))[::-1]:
        below: set[int] = set()
        for size, dilations, units in zip(config.block_kernels, config.dilations, need.blocks, strict=True):
            y = wanted
            for dilation, unit in list(zip(dilations, units, strict=True))[::-1]:
                dilated = smoothed(convolved(y, size))
                assert unit == (span(dilated), span(y))
                y = y | smoothed(convolved(dilated, size, dilation))
            below |= y
        assert need.grown == span(below)
        wanted = grown(below, kernel, rate)
    assert needs.first == span(wanted)
    assert needs.mels == span(convolved(wanted, 7))
    assert config.reach == (-config.needs(0, 1).mels.low, config.needs(0, 1).mels.high - 1)


def test_a_piece_of_the_published_shape() -> None:
    needs = PUBLISHED.needs(100, 114)
    assert needs.mels == (66, 148) and PUBLISHED.reach == (34, 34)
    made = [rate.blocks[0][-1].out for rate in needs.rates]
    assert [rate.grown.high - rate.grown.low for rate in needs.rates] == [370, 562, 762, 1162, 1960, 3556]
    assert [out.high - out.low for out in made] == [190, 382, 582, 982, 1780, 3376]


def test_within() -> None:
    assert Span(-3, 9).within(7) == (0, 7) and Span(2, 5).within(7) == (2, 5) and Span(2, 5).wider(3) == (-1, 8)
