"""Rows of logits with everything that may be asked of a draw, made from one seed, and what the CPU path draws of them."""

from __future__ import annotations

import random
from typing import NamedTuple

import torch

from omni_runtime.draw import Draw, Edits
from omni_runtime.errors import RequestError
from omni_runtime.experts import sampling
from omni_runtime.experts.edits import History


class Rows(NamedTuple):
    logits_RV: torch.Tensor
    hows: list[Draw]
    indices: list[int]
    known: list[list[int]]

    def part(self, start: int, stop: int) -> Rows:
        mine = slice(start, stop)
        return Rows(self.logits_RV[mine], self.hows[mine], self.indices[mine], self.known[mine])


def edits(draw: random.Random, size: int) -> Edits | None:
    if draw.random() < 0.4:
        return None
    ids = sorted(draw.sample(range(size), min(size, draw.randrange(5))))
    return Edits(
        bias_ids=tuple(ids), bias=tuple(draw.choice([-100.0, 0.3, 7.5]) for _ in ids), repetition=draw.choice([1.0, 1.3, 0.7]),
        presence=draw.choice([0.0, 0.6, -2.0]), frequency=draw.choice([0.0, 0.11]),
        stop_ids=tuple(sorted(draw.sample(range(size), min(size - 1, 2)))), least=draw.choice([0, 0, 9]),
    )  # fmt: skip


def make(seed: int, rows: int, size: int, dtype: torch.dtype, edited: bool = True) -> Rows:
    """Half of the rows have few different logits, so that ties are everywhere; some tokens are impossible."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, size, generator=generator)
    coarse = torch.arange(rows) % 2 == 0
    logits[coarse] = logits[coarse].div(2, rounding_mode="floor")
    logits[:, 1:][torch.rand(rows, size - 1, generator=generator) < 0.1] = -torch.inf
    hows, indices, known = [], [], []
    for row in range(rows):
        hows.append(
            Draw(
                seed=draw.choice([draw.randrange(2**64), 5]),
                node=draw.randrange(4),
                temperature=draw.choice([0.0, 0.3, 1.0, 1.0, 2.5]),
                top_p=draw.choice([1.0, 0.0, 0.5, 0.9]),
                top_k=draw.choice([0, 0, 1, 7, size // 2 + 1, size + 3]),
                min_p=draw.choice([0.0, 0.0, 0.05, 1.0]),
                edits=edits(draw, size) if edited else None,
            )
        )
        known.append([draw.randrange(size) for _ in range(draw.randrange(12 + row % 2 * 20))])
        indices.append(draw.randrange(len(known[-1]) + 1))
    return Rows(logits.to(dtype), hows, indices, known)


def on_the_cpu(rows: Rows) -> list[int]:
    """-1 where the row is refused."""
    tokens = []
    for logits_V, how, index, known in zip(rows.logits_RV.float(), rows.hows, rows.indices, rows.known, strict=True):
        history = History()
        history.write(0, known)
        try:
            tokens.append(sampling.draw(logits_V, how, index, history))
        except (FloatingPointError, RequestError):
            tokens.append(-1)
    return tokens
