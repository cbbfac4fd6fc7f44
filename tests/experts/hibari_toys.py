"""A vocoder with random weights, streams of random frames, and ways to decode them: no package is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from omni_runtime.experts.hibari_network import BINS, BLOCKS, CHANNELS, INNER, PARTS, TAPS, Block, Network
from omni_runtime.experts.hibari_vocoder import AHEAD, FRAME, HOP, MARK, PITCH, HibariVocoder, Noise
from omni_runtime.experts.philox_noise import complex_noise
from omni_runtime.experts.slots import Slots
from omni_runtime.weights.hibari import WIDTH
from omni_runtime.work import AudioStep, Draw, Row


def random_network(seed: int = 0) -> Network:
    draw = torch.Generator().manual_seed(seed)

    def weights(*shape: int, fan: int = 1) -> torch.Tensor:
        return torch.randn(shape, generator=draw) / fan**0.5

    def block() -> Block:
        return Block(
            weights(TAPS, CHANNELS, fan=TAPS),
            weights(CHANNELS),
            1 + 0.1 * weights(CHANNELS),
            weights(CHANNELS),
            weights(INNER, CHANNELS, fan=CHANNELS),
            weights(INNER),
            weights(CHANNELS, INNER, fan=INNER),
            weights(CHANNELS),
        )

    return Network(
        weights(CHANNELS, TAPS * WIDTH, fan=TAPS * WIDTH),
        weights(CHANNELS),
        tuple(block() for _ in range(BLOCKS)),
        1 + 0.1 * weights(CHANNELS),
        weights(CHANNELS),
        weights(PARTS * BINS, CHANNELS, fan=CHANNELS),
        weights(PARTS * BINS) - torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0]).repeat_interleave(BINS),
    )


def noise(draw: Draw, first: int, count: int) -> np.ndarray:
    return complex_noise(draw.seed, first, count, BINS)


def toy(noise: Noise = noise) -> HibariVocoder:
    return HibariVocoder(random_network(), noise)


def frames(*lengths: int, seed: int = 0) -> np.ndarray:
    """Segments of these lengths, float32 [n, 132]: pitch glides between 0 (unvoiced) and 400 Hz."""
    draw = np.random.default_rng(seed)
    table = draw.standard_normal((sum(lengths), FRAME)).astype(np.float32)
    voice = 200 + 200 * np.sin(np.arange(len(table)) / 9 + seed)
    table[:, PITCH] = np.where(voice > 90, voice, 0)
    table[:, MARK] = 0
    table[np.cumsum(lengths) - 1, MARK] = 1
    return table


def steps(table: np.ndarray, sizes: Sequence[int], ahead: int = AHEAD) -> Iterator[AudioStep]:
    """Steps over a stream in chunks of these sizes, over and over."""
    start = turn = 0
    while start < len(table):
        size = min(sizes[turn % len(sizes)], len(table) - start)
        seen = table[start : start + size + ahead]
        yield AudioStep(start, size, tuple(seen), start + len(seen) == len(table))
        start, turn = start + size, turn + 1


def row(step: AudioStep, run: int = 1) -> Row:
    return Row(run, "speak", step.size, 0, (), step)


def decode(vocoder: HibariVocoder, table: np.ndarray, sizes: Sequence[int] = (10**6,)) -> np.ndarray:
    slots = Slots("cpu0#1")
    parts = [vocoder.decode_audio([row(step)], slots)[0].items["samples"] for step in steps(table, sizes)]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def shifted(by: int) -> Noise:
    """Noise of a stream whose frame 0 is frame `by` of another."""
    return lambda draw, first, count: noise(draw, first + by, count)


__all__ = ["AHEAD", "HOP", "decode", "frames", "noise", "random_network", "row", "shifted", "steps", "toy"]
