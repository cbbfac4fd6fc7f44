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
import torch.nn.functional as F
from omni_runtime.kernels import cpu, cpu_build
from omni_runtime.kernels.sound import Bend, Stretch, half_band, snake_of

GROUP = 8  # outputs whose weights lie side by side
SMALL = 200_000  # multiplications, of which an activation counts as 30: waking a second thread costs as much
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


class Conv(ctypes.Structure):
    """As `Conv` of cpu_sound.c."""

    _fields_ = [(name, _POINTER) for name in ("w", "bias", "filter", "often", "much")] + [
        (name, _INT) for name in ("inputs", "outputs", "taps", "dilation", "rate", "cut")
    ]


class Given(ctypes.Structure):
    """As `Given` of cpu_sound.c."""

    _fields_ = [(name, _POINTER) for name in ("x", "kept", "add", "y")] + [
        (f"{name}_{of}", _LONG) for name in ("x", "kept", "add", "y") for of in ("row", "channel")
    ]
    _fields_ += [(name, _LONG) for name in ("rows", "count", "past", "low", "high")]


@lru_cache(maxsize=1)
def functions() -> Any:
    """The library with these signatures."""
    found = cpu.functions()
    found.omni_conv.argtypes = [_POINTER, _POINTER, _INT]
    found.omni_depthwise.argtypes = [*[_POINTER] * 4, *[_LONG] * 4, _INT]
    return found


def usable(device: torch.device) -> bool:
    """Whether these run there, and nobody asks for another form."""
    return device.type == "cpu" and cpu_build.wanted() and cpu_build.library() is not None


def conv(weight_OCK: torch.Tensor, bias_O: torch.Tensor | None = None, dilation: int = 1, smooth: Bend | None = None) -> Stretch:
    """See `sound.conv`."""
    cut = (weight_OCK.shape[2] - 1) // 2 * dilation
    return _stretch(_Sums(weight_OCK.transpose(0, 1).flip(2), bias_O, dilation, 1, cut, smooth, half_band()))


def grow(weight_COK: torch.Tensor, bias_O: torch.Tensor, rate: int) -> Stretch:
    """See `sound.grow`."""
    return _stretch(_Sums(weight_COK, bias_O, 1, rate, (weight_COK.shape[2] - rate) // 2))


def causal(weight_OCK: torch.Tensor, bias_O: torch.Tensor, dilation: int = 1, snake: Bend | None = None) -> _Sums:
    """y(t) = Σ_k w(k) f(x(t - (K - 1 - k) · dilation)) + b, where f(x) = x or x + sin²(e^α x) / (e^β + 1e-9)."""
    return _Sums(weight_OCK.transpose(0, 1).flip(2), bias_O, dilation, 1, 0, snake)


def causal_grow(weight_COK: torch.Tensor, bias_O: torch.Tensor, rate: int, snake: Bend | None = None) -> _Sums:
    """A transposed convolution of f(x), of which nothing is cut before, and after the last input's first `rate` all."""
    return _Sums(weight_COK, bias_O, 1, rate, 0, snake)


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
        if not y_RCT.numel():
            return y_RCT
        threads = _threads(taps * y_RCT.numel())
        run_depthwise(*at, x_RCT.data_ptr(), y_RCT.data_ptr(), len(x_RCT), channels, count, taps, threads)
        return y_RCT

    return run


class _Sums:
    """`omni_conv` with its weights."""

    def __init__(
        self,
        weight_COK: torch.Tensor,
        bias_O: torch.Tensor | None,
        dilation: int,
        rate: int,
        cut: int,
        bend: Bend | None = None,
        filter_K: torch.Tensor | None = None,
    ) -> None:
        self.inputs, self.outputs, taps = weight_COK.shape
        assert cut >= 0 and taps >= rate, f"a kernel of {taps} for a stride of {rate}"
        short = -self.outputs % GROUP
        padded_COK = F.pad(weight_COK.detach().float(), (0, 0, 0, short))
        by_remainder = [padded_COK[:, :, r::rate].flip(2).unflatten(1, (-1, GROUP)).permute(1, 0, 3, 2) for r in range(rate)]
        bias_O = self._bias_O = torch.zeros(self.outputs) if bias_O is None else bias_O.detach().float()
        kept: list[torch.Tensor | None] = [torch.cat([part.flatten() for part in by_remainder]), F.pad(bias_O, (0, short))]
        if bend is None:
            kept += [None] * 3
        else:
            kept += [filter_K, *(part.detach().float().flatten().contiguous() for part in snake_of(*bend))]
        at = [None if part is None else part.data_ptr() for part in kept]
        self._conv, self._kept = Conv(*at, self.inputs, self.outputs, taps, dilation, rate, cut), kept  # tensors live as long
        self._at, self._run, self._rate = ctypes.addressof(self._conv), functions().omni_conv, rate
        self._work = self.inputs * (self.outputs * taps // rate + (0 if bend is None else 30))

    def __call__(
        self, x_RCT: torch.Tensor, low: int, high: int, into: torch.Tensor | None = None, kept: torch.Tensor | None = None
    ) -> torch.Tensor:
        """y_ROT, positions `low` .. `high`.

        Args:
            into: y is added to it in place, and it is what is returned; no part of x.
            kept: the positions before the first one, [R, C, P]; zeros where they are not given.
        """
        x_RCT, (rows, _, count), size = _rows(x_RCT, self.inputs), x_RCT.shape, high - low
        assert 0 <= low <= high <= count * self._rate, f"positions {low} to {high} of {count * self._rate}"
        y_ROT = torch.empty(rows, self.outputs, size) if into is None else into
        kept = None if kept is None or not kept.shape[2] else _rows(kept, self.inputs)
        assert y_ROT.shape == (rows, self.outputs, size) and (not size or y_ROT.stride(2) == 1), f"into: {tuple(y_ROT.shape)}"
        assert kept is None or len(kept) == rows, "what was kept is of other rows"
        parts = x_RCT, kept, into, y_ROT
        at = [None if part is None else part.data_ptr() for part in parts]
        strides = [step for part in parts for step in ((0, 0) if part is None else part.stride()[:2])]
        if not y_ROT.numel():
            return y_ROT
        if not self.inputs:  # the C function divides by how many there are
            bias_O1 = self._bias_O[:, None]
            return y_ROT.copy_(bias_O1.expand_as(y_ROT)) if into is None else y_ROT.add_(bias_O1)
        given = Given(*at, *strides, rows, count, 0 if kept is None else kept.shape[2], low, high)
        self._run(self._at, ctypes.addressof(given), _threads(self._work * size * rows))
        return y_ROT


def _stretch(sums: _Sums) -> Stretch:
    """Of one row."""

    def run(x_CT: torch.Tensor, low: int, high: int, into: torch.Tensor | None = None) -> torch.Tensor:
        return sums(x_CT[None], low, high, None if into is None else into[None])[0]

    return run


def _rows(x_RCT: torch.Tensor, channels: int) -> torch.Tensor:
    """Rows whose positions lie side by side."""
    if x_RCT.dtype != torch.float32 or x_RCT.ndim != 3 or x_RCT.shape[1] != channels:
        raise ValueError(f"sound: x {tuple(x_RCT.shape)} of {x_RCT.dtype} for {channels} channels of float32")
    return x_RCT if x_RCT.stride(2) == 1 else x_RCT.contiguous()


def _threads(work: int) -> int:
    return torch.get_num_threads() if work > SMALL else 1
