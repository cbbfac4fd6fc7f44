"""Elementwise functions of torch whose value depends on the element alone.

On a CPU torch computes SiLU, GELU and products of complex numbers with vector instructions, and the last elements of each
thread's part with others, which differ in the last bit: of 200,003 random numbers SiLU gave another value at one place in
30 when the end lay elsewhere. (cos, sin, exp, tanh and erf did not; `tests/experts/test_steady.py` looks at all that are used.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from omni_runtime.experts.one_thread import one_thread

LANES = 64  # elements that one turn of a vector loop takes at most
GRAIN = 32_768  # elements from which torch shares a call among threads


def steady(run: Callable[..., torch.Tensor], *xs: torch.Tensor) -> torch.Tensor:
    """run(*xs) of tensors of one shape, with every element in the body of a vector loop."""
    first = xs[0]
    if first.device.type != "cpu":
        return run(*xs)
    count, threads = first.numel(), torch.get_num_threads()
    tasks = min(threads, max(1, -(-count // GRAIN)))
    if count % (LANES * threads) == count % (LANES * tasks) == 0 and all(x.is_contiguous() for x in xs):
        return run(*xs)  # wherever the parts of threads end, no element is left over
    flat = [F.pad(x.reshape(-1), (0, -count % LANES)) for x in xs]
    with one_thread(True):
        return run(*flat)[:count].view(first.shape)


def silu(x: torch.Tensor) -> torch.Tensor:
    """x / (1 + e^-x)."""
    return steady(F.silu, x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """x Φ(x), Φ by erf."""
    return steady(F.gelu, x)
