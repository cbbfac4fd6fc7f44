"""The operations of `sound.py` in C (`cpu_sound.c`), float32 on a CPU: what they are is told there.

A value depends on the positions that it sums over alone, to the bit: not on the stretch that was asked for, nor on where the
given positions begin, nor on the number of threads. So pieces of a stream are its one call exactly.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from omni_runtime.kernels import cpu, cpu_build
from omni_runtime.kernels.sound import Stretch, half_band, snake_of

GROUP = 8  # outputs whose weights lie side by side
SMALL = 200_000  # multiplications, or 30 times as many values of an activation: waking a second thread costs as much
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


class Conv(ctypes.Structure):
    """As `Conv` of cpu_sound.c."""

    _fields_ = [("w", _POINTER), ("bias", _POINTER)] + [
        (name, _INT) for name in ("in_", "out", "taps", "dilation", "rate", "cut")
    ]


class Given(ctypes.Structure):
    """As `Given` of cpu_sound.c."""

    _fields_ = [(name, _POINTER) for name in ("x", "add", "y")] + [
        (name, _LONG)
        for name in (
            *("x_row", "x_channel", "y_row", "y_channel", "add_row", "add_channel"),
            *("rows", "count", "low", "high"),
        )
    ]


@lru_cache(maxsize=1)
def functions() -> Any:
    """The library with these signatures."""
    found = cpu.functions()
    found.omni_conv.argtypes = [_POINTER, _POINTER, _INT]
    found.omni_smooth.argtypes = [*[_POINTER] * 4, *[_LONG] * 2, _POINTER, *[_LONG] * 4, _INT]
    found.omni_snake.argtypes = [*[_POINTER] * 4, *[_LONG] * 3, _INT]
    found.omni_depthwise.argtypes = [*[_POINTER] * 4, *[_LONG] * 4, _INT]
    return found


def usable(device: torch.device) -> bool:
    """Whether these run there, and nobody asks for another form."""
    return device.type == "cpu" and cpu_build.wanted() and cpu_build.library() is not None


def conv(weight_OCK: torch.Tensor, bias_O: torch.Tensor | None = None, dilation: int = 1) -> Stretch:
    """See `sound.conv`."""
    return _summed(weight_OCK.transpose(0, 1).flip(2), bias_O, dilation, 1, (weight_OCK.shape[2] - 1) // 2 * dilation)


def grow(weight_COK: torch.Tensor, bias_O: torch.Tensor, rate: int) -> Stretch:
    """See `sound.grow`."""
    return _summed(weight_COK, bias_O, 1, rate, (weight_COK.shape[2] - rate) // 2)


def smooth(alpha_C: torch.Tensor, beta_C: torch.Tensor) -> Stretch:
    """See `sound.smooth`."""
    rate_C, share_C = (part.float().flatten().contiguous() for part in snake_of(alpha_C, beta_C))
    filter_K, channels = half_band(), len(rate_C)
    at = [part.data_ptr() for part in (filter_K, rate_C, share_C)]
    run_smooth, kept = functions().omni_smooth, (filter_K, rate_C, share_C)

    def run(x_CT: torch.Tensor, low: int, high: int, add: torch.Tensor | None = None) -> torch.Tensor:
        _ = kept  # as long as this function
        x_CT, count = _rows(x_CT[None], channels)[0], x_CT.shape[1]
        assert 0 <= low <= high <= count, f"positions {low} to {high} of {count}"
        y_CT = torch.empty(channels, high - low)
        threads = _threads(30 * y_CT.numel())
        run_smooth(*at, x_CT.data_ptr(), x_CT.stride(0), count, y_CT.data_ptr(), high - low, low, high, channels, threads)
        return y_CT if add is None else y_CT + add

    return run


def causal(weight_OCK: torch.Tensor, bias_O: torch.Tensor, dilation: int = 1) -> Stretch:
    """y(t) = Σ_k w(k) x(t - (K - 1 - k) · dilation) + b, x = 0 before the beginning; of x_CT or x_RCT."""
    return _summed(weight_OCK.transpose(0, 1).flip(2), bias_O, dilation, 1, 0)


def causal_grow(weight_COK: torch.Tensor, bias_O: torch.Tensor, rate: int) -> Stretch:
    """A transposed convolution of which nothing is cut before, and all after the last input's first `rate`; of x_CT or x_RCT."""
    return _summed(weight_COK, bias_O, 1, rate, 0)


def snake(alpha_C: torch.Tensor, beta_C: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """x_RCT ↦ x + sin²(e^α x) / (e^β + 1e-9)."""
    kept = [part.float().flatten().contiguous() for part in snake_of(alpha_C, beta_C)]
    run_snake, at, channels = functions().omni_snake, [part.data_ptr() for part in kept], len(kept[0])

    def run(x_RCT: torch.Tensor) -> torch.Tensor:
        _ = kept  # as long as this function
        x_RCT = _rows(x_RCT, channels).contiguous()
        y_RCT = torch.empty_like(x_RCT)
        run_snake(*at, x_RCT.data_ptr(), y_RCT.data_ptr(), len(x_RCT), channels, x_RCT.shape[2], _threads(10 * y_RCT.numel()))
        return y_RCT

    return run


def depthwise(weight_C1K: torch.Tensor, bias_C: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """y(t) = Σ_k w(k) x(t + k) + b of every channel by itself, where all x are there: K - 1 fewer than x_RCT has."""
    channels, taps = len(weight_C1K), weight_C1K.shape[2]
    kept = [part.detach().float().contiguous() for part in (weight_C1K, bias_C)]
    run_depthwise, at = functions().omni_depthwise, [part.data_ptr() for part in kept]

    def run(x_RCT: torch.Tensor) -> torch.Tensor:
        _ = kept  # as long as this function
        x_RCT = _rows(x_RCT, channels).contiguous()
        count = x_RCT.shape[2] - taps + 1
        assert count >= 0, f"{x_RCT.shape[2]} positions for {taps} taps"
        y_RCT = torch.empty(len(x_RCT), channels, count)
        threads = _threads(taps * y_RCT.numel())
        run_depthwise(*at, x_RCT.data_ptr(), y_RCT.data_ptr(), len(x_RCT), channels, count, taps, threads)
        return y_RCT

    return run


def _summed(weight_COK: torch.Tensor, bias_O: torch.Tensor | None, dilation: int, rate: int, cut: int) -> Stretch:
    """As told at `Conv` of cpu_sound.c."""
    inputs, outputs, taps = weight_COK.shape
    assert cut >= 0 and taps >= rate, f"a kernel of {taps} for a stride of {rate}"
    short = -outputs % GROUP
    padded_COK = torch.nn.functional.pad(weight_COK.detach().float(), (0, 0, 0, short))
    by_remainder = [padded_COK[:, :, r::rate].flip(2).unflatten(1, (-1, GROUP)).permute(1, 0, 3, 2) for r in range(rate)]
    packed = torch.cat([part.flatten() for part in by_remainder])
    bias_O = torch.zeros(outputs) if bias_O is None else bias_O.detach().float()
    bias_O = torch.nn.functional.pad(bias_O, (0, short))
    kept = Conv(packed.data_ptr(), bias_O.data_ptr(), inputs, outputs, taps, dilation, rate, cut), packed, bias_O
    at, run_conv, work = ctypes.addressof(kept[0]), functions().omni_conv, inputs * outputs * taps // rate

    def run(x: torch.Tensor, low: int, high: int, add: torch.Tensor | None = None) -> torch.Tensor:
        _ = kept  # as long as this function
        x_RCT = _rows(x if x.ndim == 3 else x[None], inputs)
        rows, _, count = x_RCT.shape
        assert 0 <= low <= high <= count * rate, f"positions {low} to {high} of {count * rate}"
        size, added = high - low, (None, 0, 0)
        y = torch.empty(*x.shape[:-2], outputs, size)
        if add is not None:
            assert add.shape == y.shape, f"{tuple(add.shape)} added to {tuple(y.shape)}"
            add = _rows(add if add.ndim == 3 else add[None], outputs)
            added = add.data_ptr(), add.stride(0), add.stride(1)
        strides = x_RCT.stride(0), x_RCT.stride(1), outputs * size, size
        given = Given(x_RCT.data_ptr(), added[0], y.data_ptr(), *strides, *added[1:], rows, count, low, high)
        run_conv(at, ctypes.addressof(given), _threads(work * size * rows))
        return y

    return run


def _rows(x_RCT: torch.Tensor, channels: int) -> torch.Tensor:
    """Rows whose positions lie side by side."""
    if x_RCT.dtype != torch.float32 or x_RCT.ndim != 3 or x_RCT.shape[1] != channels:
        raise ValueError(f"sound: x {tuple(x_RCT.shape)} of {x_RCT.dtype} for {channels} channels of float32")
    return x_RCT if x_RCT.stride(2) == 1 else x_RCT.contiguous()


def _threads(work: int) -> int:
    return torch.get_num_threads() if work > SMALL else 1
