"""A driver of token2wav as a loop would be one: one velocity a unit, chunk by chunk, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from omni_runtime.experts.bigvgan import BigVGAN
from omni_runtime.experts.flow_window import Window
from omni_runtime.experts.philox_noise import frame_noise
from omni_runtime.experts.qwen25_flow import Flow
from omni_runtime.experts.runge_kutta import Trajectory
from omni_runtime.loops.flow_chunks import STAGES, Chunk, FlowChunks, sway_times


def noise(flow: Flow, seed: int, low: int, high: int, node: int = 1) -> torch.Tensor:
    return torch.from_numpy(frame_noise(seed, node, low, high - low, flow.config.mels).copy())


Kept = list[torch.Tensor | None]
"""What a block leaves to the one after it, call by call."""


def integrate(
    flow: Flow,
    x_TM: torch.Tensor,
    codes: Sequence[int],
    voice_2D: torch.Tensor,
    points: int = 10,
    guidance: float = 0.5,
    first: int = 0,
    past: Kept | None = None,
    keep: int = 0,
) -> tuple[torch.Tensor, Kept]:
    """Mel frames of codes, from noise, and what block `keep` of them leaves."""
    state, kept = Trajectory(x_TM), Kept()
    for start, stop in pairwise(sway_times(points)):
        width = stop - start
        for stage in STAGES:
            before = past[len(kept)] if past else None
            window = Window(state.point(width), start + stage * width, codes, voice_2D, guidance, first, before, keep)
            ((velocity, left),) = flow.velocity([window])
            kept.append(left)
            state = state.after(velocity, width)
    return state.x_TM, kept


def made(
    flow: Flow,
    chunk: Chunk,
    codes: Sequence[int],
    voice_2D: torch.Tensor,
    seed: int,
    points: int = 10,
    past: Kept | None = None,
    guidance: float = 0.5,
    node: int = 1,
) -> tuple[torch.Tensor, Kept]:
    """The frames of a chunk, and what it leaves to the next."""
    c = flow.config
    own = codes[chunk.low // c.repeats : chunk.high // c.repeats]
    noise_TM, keep = noise(flow, seed, chunk.low, chunk.high, node), (chunk.stop - chunk.low) // c.block
    mel_TM, kept = integrate(flow, noise_TM, own, voice_2D, points, guidance, chunk.low, past, keep)
    return mel_TM[chunk.start - chunk.low : chunk.stop - chunk.low], kept


def streamed(
    flow: Flow,
    plan: FlowChunks,
    codes: Sequence[int],
    voice_2D: torch.Tensor,
    seed: int,
    points: int = 10,
    carry: bool = True,
    guidance: float = 0.5,
    node: int = 1,
) -> torch.Tensor:
    """Mel frames of a whole stream, chunk by chunk. Without `carry`, each chunk by itself."""
    parts, past = [], None
    for chunk in plan.chunks(len(codes) * flow.config.repeats):
        mel_TM, kept = made(flow, chunk, codes, voice_2D, seed, points, past, guidance, node)
        past = kept if carry else None
        parts.append(mel_TM)
    return torch.cat(parts)


def pieces(bigvgan: BigVGAN, mel_TM: torch.Tensor, stops: Sequence[int]) -> list[torch.Tensor]:
    """Sound as it becomes certain when frames up to each of `stops` are there; the last is the end."""
    found, done = [], 0
    for stop in stops:
        ready = stop if stop == len(mel_TM) else stop - bigvgan.ahead
        if ready > done:
            found.append(bigvgan.piece(0, mel_TM[:stop], done, ready))
            done = ready
    return found


def log_spectral_distance(one_S: torch.Tensor, other_S: torch.Tensor) -> float:
    """dB: over frames of 1024 samples, the mean of the root mean square over frequencies of the difference of levels."""
    window = torch.hann_window(1024)
    levels = [
        20 * torch.stft(x, 1024, 256, window=window, return_complex=True).abs().clamp(min=1e-4).log10() for x in (one_S, other_S)
    ]
    return float(((levels[0] - levels[1]) ** 2).mean(0).sqrt().mean())
