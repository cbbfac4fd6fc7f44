"""The operations of `sound.py` in C (`cpu_sound.c`), float32 on a CPU: what they are is told there.

A value depends on the positions that it sums over alone, to the bit: not on the stretch that was asked for, nor on where the given
positions begin, nor on the number of threads. So pieces of a stream are its one call exactly.
"""

from __future__ import annotations

import ctypes
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


@lru_cache(maxsize=1)
def functions() -> Any:
    """The library with these signatures."""
    found = cpu.functions()
    found.omni_conv.argtypes = [_POINTER, _POINTER, *[_LONG] * 2, _POINTER, *[_LONG] * 3, _POINTER, _LONG, _INT]
    found.omni_smooth.argtypes = [*[_POINTER] * 4, *[_LONG] * 2, _POINTER, *[_LONG] * 4, _INT]
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
        x_CT, count = _rows(x_CT, channels), x_CT.shape[1]
        assert 0 <= low <= high <= count, f"positions {low} to {high} of {count}"
        y_CT = torch.empty(channels, high - low)
        threads = _threads(30 * y_CT.numel())
        run_smooth(*at, x_CT.data_ptr(), x_CT.stride(0), count, y_CT.data_ptr(), high - low, low, high, channels, threads)
        return y_CT if add is None else y_CT + add

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

    def run(x_CT: torch.Tensor, low: int, high: int, add: torch.Tensor | None = None) -> torch.Tensor:
        _ = kept  # as long as this function
        x_CT, count = _rows(x_CT, inputs), x_CT.shape[1]
        assert 0 <= low <= high <= count * rate, f"positions {low} to {high} of {count * rate}"
        y_OT = torch.empty(outputs, high - low)
        adds = (None, 0)
        if add is not None:
            add = _rows(add, outputs)
            assert add.shape == y_OT.shape, f"{tuple(add.shape)} added to {tuple(y_OT.shape)}"
            adds = add.data_ptr(), add.stride(0)
        threads = _threads(work * (high - low))
        run_conv(at, x_CT.data_ptr(), x_CT.stride(0), count, y_OT.data_ptr(), high - low, low, high, *adds, threads)
        return y_OT

    return run


def _rows(x_CT: torch.Tensor, channels: int) -> torch.Tensor:
    """Rows whose positions lie side by side."""
    if x_CT.dtype != torch.float32 or x_CT.ndim != 2 or len(x_CT) != channels:
        raise ValueError(f"sound: x {tuple(x_CT.shape)} of {x_CT.dtype} for {channels} channels of float32")
    return x_CT if x_CT.stride(1) == 1 else x_CT.contiguous()


def _threads(work: int) -> int:
    return torch.get_num_threads() if work > SMALL else 1
