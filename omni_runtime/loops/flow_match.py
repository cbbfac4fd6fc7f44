"""Noise levels of flow-match Euler sampling: Esser et al. 2024 (https://arxiv.org/abs/2403.03206), in pure Python.

A latent at level s is (1 - s) clean + s noise; the network tells the velocity noise - clean, and a step from s to s' adds
(s' - s) velocity. Which levels are visited follows from a `FlowMatch`:

    levels      n of them, evenly spaced from the first to the last level of training: 1 .. 1/T with T = num_train_timesteps
    static      s -> k s / (1 + (k - 1) s) with k = shift (equation 23), the two ends twice: training shifts them already
    dynamic     s -> w / (w + 1/s - 1), w = exp(mu) or mu by time_shift_type; mu is a line through (base_image_seq_len,
                base_shift) and (max_image_seq_len, max_shift), taken at the number of image tokens
    terminal    1 - s is stretched so that the last level is shift_terminal
    0           comes last, so n levels make n steps

Levels are rounded to float32 where checkpoints' own schedulers do it, since a network sees 1000 s through sines and cosines.
"""

from __future__ import annotations

from math import exp
from struct import pack, unpack

from omni_runtime.card import FlowMatch


def float32(x: float) -> float:
    """The nearest float32."""
    rounded: float = unpack("<f", pack("<f", x))[0]
    return rounded


def mu(schedule: FlowMatch, tokens: int) -> float:
    """Where the dynamic shift lies for a number of image tokens."""
    slope = (schedule.max_shift - schedule.base_shift) / (schedule.max_image_seq_len - schedule.base_image_seq_len)
    return tokens * slope + (schedule.base_shift - slope * schedule.base_image_seq_len)


def levels(schedule: FlowMatch, steps: int, tokens: int) -> list[float]:
    """The `steps` + 1 noise levels of a trajectory, falling, the last one 0; each is a float32 value.

    Args:
        steps: at least 1.
        tokens: image tokens, which dynamic shifting looks at.
    """
    trained = schedule.num_train_timesteps
    first, last = 1.0, float32(1 / trained)
    if not schedule.use_dynamic_shifting:
        first, last = (_static(schedule.shift, end, single=True) for end in (first, last))
    # In units of training timesteps, as the even spacing is defined.
    high, low = first * trained, last * trained
    stride = (low - high) / (steps - 1) if steps > 1 else 0.0
    points = [(high + i * stride) / trained for i in range(steps)]
    if steps > 1:
        points[-1] = low / trained
    if schedule.use_dynamic_shifting:
        where = mu(schedule, tokens)
        weight = exp(where) if schedule.time_shift_type == "exponential" else where
        points = [weight / (weight + (1 / s - 1)) for s in points]
    else:
        points = [_static(schedule.shift, s) for s in points]
    # One step: its level is 1, there is nothing to stretch (0/0 in the formula).
    if schedule.shift_terminal and points[-1] < 1.0:
        scale = (1 - points[-1]) / (1 - schedule.shift_terminal)
        points = [1 - (1 - s) / scale for s in points]
    return [*map(float32, points), 0.0]


def timestep(schedule: FlowMatch, sigma: float) -> float:
    """A noise level as the network is told it: 0 .. num_train_timesteps."""
    return float32(sigma * schedule.num_train_timesteps)


def _static(shift: float, s: float, single: bool = False) -> float:
    """Equation 23; `single` rounds every operation to float32."""
    fit = float32 if single else float
    return fit(fit(fit(shift) * s) / fit(1 + fit(fit(shift - 1) * s)))
