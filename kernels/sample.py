"""Edits of logits, the filters, the seeded draw and the log-probability of what was drawn, for a batch of rows: the definition.

What every parameter means, and in which order they act, is told in `experts/sampling.py` and `experts/edits.py`, which draw on a
CPU; the same seed draws the same token here. For that the arithmetic is float64, as it is there: a logit has 24 bits, but the
share of a token and its Gumbel number must not depend on who adds them up.

Suffixes: R rows, V vocabulary, S tokens of a row, all rows' tokens one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from omni_runtime.draw import Draw, Edits

MASK = 0xFFFFFFFF


class Draws(NamedTuple):
    """How each row draws; fields as in `draw.Draw`."""

    seed_R: torch.Tensor  # int64, the bits of a seed below 2^64
    node_R: torch.Tensor  # int64
    index_R: torch.Tensor  # int64, number of the output token
    temperature_R: torch.Tensor  # float64; 0: the largest logit
    top_k_R: torch.Tensor  # int64; below 1: off
    top_p_R: torch.Tensor  # float64; 1: off
    min_p_R: torch.Tensor  # float64; 0: off


class Changes(NamedTuple):
    """What each row changes about its logits first; fields as in `draw.Edits`. Ids outside the vocabulary are skipped."""

    bias_start_R: torch.Tensor  # int32 [R + 1], where each row's biases begin
    bias_ids_S: torch.Tensor  # int32, no id twice in a row
    bias_S: torch.Tensor  # float64
    start_R: torch.Tensor  # int32 [R + 1], where each row's tokens begin
    answer_R: torch.Tensor  # int32, where its answer begins, counted as start_R
    ids_S: torch.Tensor  # int32, prompt and answer
    repetition_R: torch.Tensor  # float64; 1: off
    presence_R: torch.Tensor  # float64; 0: off
    frequency_R: torch.Tensor  # float64; 0: off
    ban_start_R: torch.Tensor  # int32 [R + 1]
    ban_ids_S: torch.Tensor  # int32, not to be drawn now


def collect(
    hows: Sequence[Draw], indices: Sequence[int], known: Sequence[Sequence[int]], device: torch.device | str = "cpu"
) -> tuple[Draws, Changes | None]:
    """The parameters of rows as `draw_tokens` takes them; changes are None where no row asks for any.

    Args:
        indices: number of the output token that each row draws, so also the length of its answer so far.
        known: tokens of each row's prompt and answer; read only where a row has penalties.
    """

    def reals(values: Iterable[float]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.float64).to(device)

    def ints(values: Iterable[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(list(values), dtype=dtype).to(device)

    seeds = ((how.seed + 2**63) % 2**64 - 2**63 for how in hows)
    filters = (ints(how.top_k for how in hows), reals(how.top_p for how in hows), reals(how.min_p for how in hows))
    keys = (ints(seeds), ints(how.node for how in hows), ints(indices))
    draws = Draws(*keys, reals(how.temperature for how in hows), *filters)
    if all(how.edits is None for how in hows):
        return draws, None
    every = [how.edits or Edits() for how in hows]
    penalised = [e.repetition != 1.0 or e.presence != 0.0 or e.frequency != 0.0 for e in every]
    tokens = [list(row) if asks else [] for row, asks in zip(known, penalised, strict=True)]
    bans = [e.stop_ids if index < e.least else () for e, index in zip(every, indices, strict=True)]

    def ragged(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        starts = accumulate((len(row) for row in rows), initial=0)
        return ints(starts, torch.int32), ints((x for row in rows for x in row), torch.int32)

    bias_start_R, bias_ids_S = ragged([e.bias_ids for e in every])
    start_R, ids_S = ragged(tokens)
    ends = accumulate(len(row) for row in tokens)
    answer_R = ints((end - min(index, len(row)) for end, index, row in zip(ends, indices, tokens, strict=True)), torch.int32)
    penalties = (reals(e.repetition for e in every), reals(e.presence for e in every), reals(e.frequency for e in every))
    bias = (bias_start_R, bias_ids_S, reals(x for e in every for x in e.bias))
    return draws, Changes(*bias, start_R, answer_R, ids_S, *penalties, *ragged(bans))


def draw_tokens(
    logits_RV: torch.Tensor, draws: Draws, changes: Changes | None = None, logprobs: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token of every row, and its log-probability by the model's own logits.

    Args:
        logits_RV: float32, bfloat16 or float16. One of -inf means never.
        changes: None where no row has any.
        logprobs: whether they are computed; else they are 0.

    Returns:
        int64 [R], -1 where the largest logit is NaN or infinite or nothing may be drawn, and float32 [R].

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    check(logits_RV, draws, changes)
    rows = [_row(logits_RV[r], draws, changes, r) for r in range(len(logits_RV))]
    tokens_R = torch.tensor(rows, dtype=torch.int64, device=logits_RV.device)
    if not logprobs or logits_RV.numel() == 0:
        return tokens_R, torch.zeros(len(rows), device=logits_RV.device)
    told_R = logits_RV.double().log_softmax(-1).gather(1, tokens_R.clamp(min=0)[:, None])[:, 0]
    return tokens_R, torch.where(tokens_R >= 0, told_R, torch.nan).float()


def _row(logit_V: torch.Tensor, draws: Draws, changes: Changes | None, r: int) -> int:
    if len(logit_V) == 0 or not logit_V.max().isfinite():  # the maximum of a row with a NaN is NaN
        return -1
    x_V = logit_V.double()
    if changes is not None:
        x_V = _edited(x_V, changes, r)
    best = x_V.max()
    if not best.isfinite():
        return -1
    if draws.temperature_R[r] == 0:
        return int(torch.where(x_V == best)[0][0])
    score_V = (x_V - best) / draws.temperature_R[r]
    kept_V = _kept(score_V, int(draws.top_k_R[r]), float(draws.top_p_R[r]), float(draws.min_p_R[r]))
    value_V = torch.where(kept_V, score_V + gumbel(len(x_V), draws, r), -torch.inf)
    return int(torch.where(value_V == value_V.max())[0][0])


def _edited(x_V: torch.Tensor, changes: Changes, r: int) -> torch.Tensor:
    size = len(x_V)

    def ids(starts_R: torch.Tensor, ids_S: torch.Tensor) -> torch.Tensor:
        found = ids_S[starts_R[r] : starts_R[r + 1]].long()
        return torch.where((found >= 0) & (found < size), found, size)  # the one behind the last is thrown away

    x = torch.nn.functional.pad(x_V, (0, 1))
    bias_S = changes.bias_S[changes.bias_start_R[r] : changes.bias_start_R[r + 1]]
    x[ids(changes.bias_start_R, changes.bias_ids_S)] += bias_S
    known_S = ids(changes.start_R, changes.ids_S)
    seen = known_S.bincount(minlength=size + 1) > 0
    count = known_S[int(changes.answer_R[r] - changes.start_R[r]) :].bincount(minlength=size + 1)
    divisor = changes.repetition_R[r]
    penalised = torch.where(x > 0, (x / divisor).clamp(max=1e300), x * divisor)
    x = torch.where(seen & (divisor != 1), penalised, x)
    x = torch.where(count > 0, x - (changes.presence_R[r] + changes.frequency_R[r] * count), x)
    x[ids(changes.ban_start_R, changes.ban_ids_S)] = -torch.inf
    return x[:-1]


def _kept(score_V: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Which tokens the filters leave. A stable sort puts the lower id first among equals: equal scores, then equal weights."""
    weight_V = score_V.exp()
    kept_V = torch.ones_like(score_V, dtype=torch.bool)
    if 0 < top_k < len(score_V):
        kept_V[score_V.sort(descending=True, stable=True)[1][top_k:]] = False
    if top_p < 1.0:
        falling_V, order_V = torch.where(kept_V, weight_V, 0.0).sort(descending=True, stable=True)
        reached_V = falling_V.cumsum(0) >= top_p * falling_V.sum()
        kept_V[order_V[1:][reached_V[:-1]]] = False
    return kept_V & (weight_V >= min_p)


def gumbel(size: int, draws: Draws, r: int) -> torch.Tensor:
    """-log(-log u), float64, one for every token of row r: see `experts/sampling.py`."""
    seed = int(draws.seed_R[r])
    words = philox(
        torch.arange(size), int(draws.index_R[r]) & MASK, int(draws.node_R[r]) & MASK, (seed & MASK, seed >> 32 & MASK)
    )
    u_V = (words[0].double() * 2.0**20 + (words[1] >> 12) + 0.5) * 2.0**-52
    return -(-u_V.log()).log()


def philox(first: torch.Tensor, second: int, third: int, key: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two words of the four that Philox4x32-10 (Salmon et al. 2011) makes of counters (first, second, third, 0), as int64."""
    x0, x1, x2, x3 = first, torch.full_like(first, second), torch.full_like(first, third), torch.zeros_like(first)
    for i in range(10):
        k0, k1 = (key[0] + i * 0x9E3779B9) & MASK, (key[1] + i * 0xBB67AE85) & MASK
        (h0, l0), (h1, l1) = _product(x0, 0xD2511F53), _product(x2, 0xCD9E8D57)
        x0, x1, x2, x3 = h1 ^ x1 ^ k0, l1, h0 ^ x3 ^ k1, l0
    return x0, x1


def _product(x: torch.Tensor, constant: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of a product of two 32-bit words; in halves, since int64 has no room for all 64 bits without a sign."""
    low, high = x * (constant & 0xFFFF), x * (constant >> 16)
    middle = high + (low >> 16)
    return middle >> 16, (middle & 0xFFFF) << 16 | low & 0xFFFF


def check(logits_RV: torch.Tensor, draws: Draws, changes: Changes | None) -> None:
    """Whether shapes and dtypes fit. ValueError if not."""
    rows = logits_RV.shape[:1]
    if logits_RV.dim() != 2 or any(field.shape != rows for field in draws):
        raise ValueError(
            f"draw_tokens: logits {tuple(logits_RV.shape)}, draws {[tuple(f.shape) for f in draws]} do not fit [R, V] and [R]"
        )
    reals = [draws.temperature_R, draws.top_p_R, draws.min_p_R]
    if changes is not None:
        starts = (changes.bias_start_R, changes.start_R, changes.ban_start_R)
        vectors = (changes.answer_R, changes.repetition_R, changes.presence_R, changes.frequency_R)
        fits = all(s.shape == (len(logits_RV) + 1,) for s in starts) and all(v.shape == rows for v in vectors)
        if not fits or changes.bias_S.shape != changes.bias_ids_S.shape:
            raise ValueError(f"draw_tokens: changes {[tuple(f.shape) for f in changes]} do not fit {len(logits_RV)} rows")
        reals += [changes.bias_S, *vectors[1:]]
    if any(real.dtype != torch.float64 for real in reals):
        raise ValueError(
            f"draw_tokens: parameters of {[str(real.dtype) for real in reals]}, float64 is needed to draw what a CPU draws"
        )
