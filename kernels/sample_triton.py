"""Sampling in Triton: a program per row walks the vocabulary in tiles. Definition: `sample.py`.

Nothing is sorted. One walk finds the largest logit, one collects the tokens that may still win, in the order of their ids;
usually these are few, and the exact thresholds of `top_k` and `top_p` are found among them by halving the range of a float's
bits: 63 steps, since floats that are not negative are ordered as their bits are. Equals at a threshold are counted off by id.

What makes the collection small: the k-th largest of BLOCK columns' maxima is not above the k-th largest of all; tokens lighter
than (1 - top_p) / V of everything cannot be needed (as on the CPU); and no Gumbel number is above HIGHEST.

A key is an int64 that is larger for likelier tokens, -1 for one that is out: the bits of infinity less those of the cost, which
is how far a token's score lies below the best; or the bits of its weight, which is exp(-cost).

Suffixes: R rows, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from omni_runtime.kernels.sample import Changes, Draws, check

HIGHEST = 36.8  # no Gumbel number is larger: -log(-log(1 - 2^-53)) = 36.74
BANNED, SEEN = 2**30, 2**29  # flags beside a count in one word
INFINITE = 0x7FF0000000000000  # the bits of infinity in float64


@triton.jit
def _mark(
    values, flags, bias_start, bias_ids, bias, starts, answers, ids, ban_start, ban_ids, size, BANNED: tl.constexpr,
    SEEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds biases, and writes beside each token how often the answer has it, whether it was seen, and whether it is banned."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    values, flags = values + row * size, flags + row * size
    low, high = tl.load(bias_start + row), tl.load(bias_start + row + 1)
    for start in range(low, high, BLOCK):
        at = start + lane
        token = tl.load(bias_ids + at, mask=at < high, other=-1)
        inside = (token >= 0) & (token < size)
        much = tl.load(bias + at, mask=inside, other=0.0)
        tl.store(values + token, tl.load(values + token, mask=inside, other=0.0) + much, mask=inside)
    low, high, answer = tl.load(starts + row), tl.load(starts + row + 1), tl.load(answers + row)
    for start in range(low, high, BLOCK):
        at = start + lane
        token = tl.load(ids + at, mask=at < high, other=-1)
        inside = (token >= 0) & (token < size)
        tl.atomic_or(flags + token, tl.full([BLOCK], SEEN, tl.int32), mask=inside)
        tl.atomic_add(flags + token, tl.full([BLOCK], 1, tl.int32), mask=inside & (at >= answer))
    low, high = tl.load(ban_start + row), tl.load(ban_start + row + 1)
    for start in range(low, high, BLOCK):
        at = start + lane
        token = tl.load(ban_ids + at, mask=at < high, other=-1)
        tl.atomic_or(flags + token, tl.full([BLOCK], BANNED, tl.int32), mask=(token >= 0) & (token < size))


@triton.jit
def _edited(
    values, flags, repetition, presence, frequency, at, inside, CHANGED: tl.constexpr, BANNED: tl.constexpr, SEEN: tl.constexpr
):
    """A tile of logits as the draw sees them, float64."""
    x = tl.load(values + at, mask=inside, other=float("-inf")).to(tl.float64)
    if CHANGED:
        flag = tl.load(flags + at, mask=inside, other=0)
        count = (flag & (SEEN - 1)).to(tl.float64)
        huge = tl.full(x.shape, 1e300, tl.float64)
        penalised = tl.where(x > 0, tl.minimum(x / repetition, huge), x * repetition)
        x = tl.where(((flag & SEEN) > 0) & (repetition != 1.0), penalised, x)
        x = tl.where(count > 0, x - (presence + frequency * count), x)
        x = tl.where((flag & BANNED) > 0, float("-inf"), x)
    return x


@triton.jit
def _gumbel(seed, token, index, node):
    zero = tl.zeros(token.shape, tl.uint32)
    first, second, _, _ = tl.philox(seed, token.to(tl.uint32), zero + index.to(tl.uint32), zero + node.to(tl.uint32), zero)
    u = (first.to(tl.float64) * 1048576.0 + (second >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
    return -tl.log(-tl.log(u))


@triton.jit
def _threshold(keys, goal, count, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key such that keys of at least that are `goal` or more, in number or in weight; 0 where there is none."""
    lane = tl.arange(0, BLOCK)
    low = tl.full([], 0, tl.int64)
    step = tl.full([], 1 << 62, tl.int64)
    for _ in range(63):
        total = tl.zeros([BLOCK], tl.float64)
        for start in range(0, count, BLOCK):
            key = tl.load(keys + start + lane, mask=start + lane < count, other=-1)
            if COUNTED:
                total += (key >= low + step).to(tl.float64)
            else:
                total += tl.where(key >= low + step, key.to(tl.float64, bitcast=True), 0.0)
        low = tl.where(tl.sum(total, 0) >= goal, low + step, low)
        step = step >> 1
    return low


@triton.jit
def _above(keys, threshold, count, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """How many keys are larger than the threshold, or their weight."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, count, BLOCK):
        key = tl.load(keys + start + lane, mask=start + lane < count, other=-1)
        if COUNTED:
            total += (key > threshold).to(tl.float64)
        else:
            total += tl.where(key > threshold, key.to(tl.float64, bitcast=True), 0.0)
    return tl.sum(total, 0)


@triton.jit
def _keep_k(keys, top_k, count, INFINITE: tl.constexpr, BLOCK: tl.constexpr):
    """Turns keys by cost into keys by weight, -1 for all but the first `top_k`, and gives the weight that is left."""
    lane = tl.arange(0, BLOCK)
    threshold = _threshold(keys, top_k, count, True, BLOCK)
    need = top_k - _above(keys, threshold, count, True, BLOCK)
    equals = tl.full([], 0, tl.int32)
    total = tl.zeros([BLOCK], tl.float64)
    tl.debug_barrier()
    for start in range(0, count, BLOCK):
        key = tl.load(keys + start + lane, mask=start + lane < count, other=-1)
        equal = key == threshold
        rank = equals + tl.cumsum(equal.to(tl.int32), 0)
        kept = (key > threshold) | (equal & (rank <= need))
        weight = tl.exp(-(INFINITE - tl.maximum(key, 0)).to(tl.float64, bitcast=True))
        total += tl.where(kept, weight, 0.0)
        tl.store(keys + start + lane, tl.where(kept, weight.to(tl.int64, bitcast=True), -1), mask=start + lane < count)
        equals += tl.sum(equal.to(tl.int32), 0)
    tl.debug_barrier()
    return tl.sum(total, 0)


@triton.jit
def _keep_p(keys, goal, count, BLOCK: tl.constexpr):
    """Leaves of keys by weight the fewest whose weight reaches `goal`, at least the first; the others become -1."""
    lane = tl.arange(0, BLOCK)
    one = tl.full([], 1.0, tl.float64)  # weight of the likeliest
    threshold = tl.minimum(_threshold(keys, goal, count, False, BLOCK), one.to(tl.int64, bitcast=True))
    above = _above(keys, threshold, count, False, BLOCK)
    each = threshold.to(tl.float64, bitcast=True)
    equals = tl.full([], 0, tl.int32)
    tl.debug_barrier()
    for start in range(0, count, BLOCK):
        key = tl.load(keys + start + lane, mask=start + lane < count, other=-1)
        equal = key == threshold
        before = (equals + tl.cumsum(equal.to(tl.int32), 0) - 1).to(tl.float64)
        kept = (key > threshold) | (equal & ((before == 0.0) | (above + before * each < goal)))
        tl.store(keys + start + lane, tl.where(kept, key, -1), mask=start + lane < count)
        equals += tl.sum(equal.to(tl.int32), 0)
    tl.debug_barrier()


@triton.jit
def _first(tops, ids):
    """The largest of the columns' values, and the lowest id that has it."""
    top = tl.max(tops, 0)
    return top, tl.min(tl.where(tops == top, ids, 2147483647), 0)


@triton.jit
def _kernel(
    logits, values, flags, seeds, nodes, indices, temperatures, top_ks, top_ps, min_ps, repetitions, presences, frequencies, keys,
    found, tokens, told, size, logits_row, values_row, CHANGED: tl.constexpr, TOLD: tl.constexpr, HIGHEST: tl.constexpr,
    BANNED: tl.constexpr, SEEN: tl.constexpr, INFINITE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    logits, values, flags = logits + row * logits_row, values + row * values_row, flags + row * size
    keys, found = keys + row * size, found + row * size
    repetition, presence, frequency = tl.load(repetitions + row), tl.load(presences + row), tl.load(frequencies + row)
    tops = tl.full([BLOCK], float("-inf"), tl.float64)
    own = tl.full([BLOCK], float("-inf"), tl.float64)  # of the logits before any change
    ids = tl.zeros([BLOCK], tl.int32)
    broken = tl.zeros([BLOCK], tl.int32)
    for start in range(0, size, BLOCK):
        at = start + lane
        raw = tl.load(logits + at, mask=at < size, other=float("-inf")).to(tl.float64)
        x = _edited(values, flags, repetition, presence, frequency, at, at < size, CHANGED, BANNED, SEEN)
        broken += (raw != raw).to(tl.int32)  # a maximum passes over NaN
        own = tl.maximum(own, raw)
        ids = tl.where(x > tops, at, ids)
        tops = tl.maximum(tops, x)
    best, token = _first(tops, ids)
    highest = tl.max(own, 0)
    infinite = (highest == float("inf")) | (highest == float("-inf")) | (best == float("inf")) | (best == float("-inf"))
    fine = (tl.sum(broken, 0) == 0) & (infinite == 0)
    temperature = tl.load(temperatures + row)
    if fine & (temperature > 0.0):
        seed, node, index = tl.load(seeds + row), tl.load(nodes + row), tl.load(indices + row)
        top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
        by_count = (top_k > 0) & (top_k < size)
        total = tl.full([], 0.0, tl.float64)
        low = tl.full([], 0, tl.int64)  # the least key that is collected
        if by_count:
            if top_k <= BLOCK:
                column = INFINITE - ((best - tops) / temperature).to(tl.int64, bitcast=True)
                step = tl.full([], 1 << 62, tl.int64)
                for _ in range(24):  # a bound need not be exact: to 1 in 4096 it is after so many
                    enough = tl.sum((column >= low + step).to(tl.int32), 0) >= top_k
                    low = tl.where(enough, low + step, low)
                    step = step >> 1
        else:
            least = tl.full([], 0.0, tl.float64)
            if (top_p < 1.0) | (min_p > 0.0):
                if top_p < 1.0:
                    sums = tl.zeros([BLOCK], tl.float64)
                    for start in range(0, size, BLOCK):
                        at = start + lane
                        x = _edited(values, flags, repetition, presence, frequency, at, at < size, CHANGED, BANNED, SEEN)
                        sums += tl.exp((x - best) / temperature)
                    total = tl.sum(sums, 0)
                    least = (1.0 - top_p) * total / size
                least = tl.maximum(least, min_p)
            else:
                mine = tl.max(_gumbel(seed, token + tl.zeros([1], tl.int32), index, node), 0)
                least = tl.exp(tl.minimum(mine - HIGHEST, 0.0))
            low = least.to(tl.int64, bitcast=True)
        count = tl.full([], 0, tl.int32)
        for start in range(0, size, BLOCK):
            at = start + lane
            x = _edited(values, flags, repetition, presence, frequency, at, at < size, CHANGED, BANNED, SEEN)
            cost = (best - x) / temperature
            weight = tl.exp(-cost).to(tl.int64, bitcast=True)
            key = tl.where(by_count, INFINITE - cost.to(tl.int64, bitcast=True), weight)
            wanted = (key >= low) & (at < size)
            place = count + tl.cumsum(wanted.to(tl.int32), 0) - 1
            tl.store(keys + place, key, mask=wanted)
            tl.store(found + place, at, mask=wanted)
            count += tl.sum(wanted.to(tl.int32), 0)
        tl.debug_barrier()  # others read what was stored here
        if by_count:
            total = _keep_k(keys, top_k.to(tl.float64), count, INFINITE, BLOCK)
        if top_p < 1.0:
            _keep_p(keys, top_p * total, count, BLOCK)
        tops = tl.full([BLOCK], float("-inf"), tl.float64)
        ids = tl.zeros([BLOCK], tl.int32)
        for start in range(0, count, BLOCK):
            inside = start + lane < count
            key = tl.load(keys + start + lane, mask=inside, other=-1)
            at = tl.load(found + start + lane, mask=inside, other=0)
            x = _edited(values, flags, repetition, presence, frequency, at, inside, CHANGED, BANNED, SEEN)
            value = (x - best) / temperature + _gumbel(seed, at, index, node)
            value = tl.where((key >= 0) & (key.to(tl.float64, bitcast=True) >= min_p), value, float("-inf"))
            ids = tl.where(value > tops, at, ids)
            tops = tl.maximum(tops, value)
        _, token = _first(tops, ids)
    tl.store(tokens + row, tl.where(fine, token, -1).to(tl.int64))
    if TOLD:
        chosen = tl.full([], float("nan"), tl.float64)
        if fine:
            sums = tl.zeros([BLOCK], tl.float64)
            for start in range(0, size, BLOCK):
                at = start + lane
                sums += tl.exp(tl.load(logits + at, mask=at < size, other=float("-inf")).to(tl.float64) - highest)
            chosen = tl.load(logits + token).to(tl.float64) - highest - tl.log(tl.sum(sums, 0))
        tl.store(told + row, chosen.to(tl.float32))


def draw_tokens(
    logits_RV: torch.Tensor, draws: Draws, changes: Changes | None = None, logprobs: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `sample.draw_tokens`: the same token, unless two values of a draw are closer than a device's logarithm is exact."""
    check(logits_RV, draws, changes)
    rows, size = logits_RV.shape
    device = logits_RV.device
    tokens_R = torch.empty((rows,), dtype=torch.int64, device=device)
    told_R = torch.zeros(rows, dtype=torch.float32, device=device)
    if rows == 0 or size == 0:
        return tokens_R.fill_(-1), told_R
    logits_RV = logits_RV if logits_RV.stride(1) == 1 else logits_RV.contiguous()
    launch = settings(size)
    order = [d.contiguous() for d in draws]
    values_RV, flags_RV, penalties = logits_RV, tokens_R, (order[3],) * 3
    if changes is not None:
        values_RV = logits_RV.double().contiguous()
        flags_RV = torch.zeros((rows, size), dtype=torch.int32, device=device)
        marks = [t.contiguous() for t in changes]
        penalties = (changes.repetition_R.contiguous(), changes.presence_R.contiguous(), changes.frequency_R.contiguous())
        few = {"BLOCK": 256, "num_warps": 4, "enable_fp_fusion": False}
        _mark[(rows,)](values_RV, flags_RV, *marks[:6], *marks[9:], size, BANNED=BANNED, SEEN=SEEN, **few)
    keys_RV = torch.empty((rows, size), dtype=torch.int64, device=device)
    found_RV = torch.empty((rows, size), dtype=torch.int32, device=device)
    scratch = (keys_RV, found_RV, tokens_R, told_R)
    strides = (logits_RV.stride(0), values_RV.stride(0))
    kinds = {"CHANGED": changes is not None, "TOLD": logprobs, "BANNED": BANNED, "SEEN": SEEN, "INFINITE": INFINITE}
    _kernel[(rows,)](
        logits_RV, values_RV, flags_RV, *order, *penalties, *scratch, size, *strides, **kinds, HIGHEST=HIGHEST, **launch
    )  # fmt: skip
    return tokens_R, told_R


def settings(size: int) -> dict[str, int]:
    """Launch settings: tiles of 2048 tokens, 4 a thread; with 8 a thread sm_80 spilled."""
    return {"BLOCK": min(triton.next_power_of_2(size), 2048), "num_warps": 16, "num_stages": 1, "enable_fp_fusion": False}
