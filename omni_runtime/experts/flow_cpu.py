"""The transformer of a flow as one call into `kernels/cpu_flow.c`: what torch needs some forty calls a layer for.

What is the same in many calls is made once: all that layers are told by a time, which are the same few in every chunk of every
stream (a product of [6 D, D] a layer, more bytes than all else that a short window reads), and the turns of a window's positions.

Suffixes: T mel frames of a window, M mels, V codes, D width, Y layers that look back, F = E/2 frequencies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch

from omni_runtime.experts.flow_window import Moved, Window
from omni_runtime.kernels import cpu
from omni_runtime.kernels.adaln import EPS
from omni_runtime.weights.qwen2_5_omni_parts import FlowConfig

Told = Callable[[float], torch.Tensor]
"""What layers are told by a time: by layer shift, scale and gate of attention, and the same of the MLP; last scale and shift."""

LANES = 16  # floats of a register, of which a head is made
TIMES, WINDOWS = 128, 256  # that are remembered: 36 calls of an ODE have 28 times; a window is asked for 36 times
_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class _Layer(ctypes.Structure):
    _fields_ = [*((name, cpu.Mat) for name in ("qkv", "out", "wide", "narrow")), ("back", _INT), ("ahead", _INT)]


class _Model(ctypes.Structure):
    _fields_ = [
        ("layers", _POINTER),
        *((name, cpu.Mat) for name in ("into", "out")),
        ("codes", _POINTER),
        *((name, _INT) for name in ("count", "width", "heads", "head_dim", "hidden", "mels", "block", "repeats")),
        ("eps", _FLOAT),
        ("scale", _FLOAT),
    ]


class _Window(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("x", "velocity", "code", "voice", "turns", "told", "past", "kept")),
        *((name, _INT) for name in ("frames", "branches", "past_branches", "keep")),
        ("guidance", _FLOAT),
        ("first", _INT),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("windows", _POINTER),
        ("rows", _LONG),
        ("count", _INT),
        ("threads", _INT),
        *((name, _POINTER) for name in ("x", "h", "qkv", "act")),
    ]


class CpuFlow:
    """Resident weights of the layers, which are those of `packs` and are not copied.

    Args:
        packs: by layer, of queries, keys and values; of their output; of the MLP's two products.
        into_DM, code_VD: of mel frames and of codes, as they become the first layer's input.
        out: of the last product.

    Raises:
        OmniError: the kernels cannot be had.
    """

    def __init__(
        self,
        config: FlowConfig,
        packs: Sequence[Sequence[cpu.Packed]],
        into_DM: torch.Tensor,
        code_VD: torch.Tensor,
        out: cpu.Packed,
        told: Told,
        frequency_F: torch.Tensor,
    ) -> None:
        c = self.config = config
        self._run = cpu.functions().omni_flow
        self._told = lru_cache(TIMES)(told)
        self._turns = lru_cache(WINDOWS)(lambda first, frames: _turns(first, frames, frequency_F))
        back, into, code_VD = sorted(c.back), cpu.pack(into_DM), code_VD.contiguous()
        places = [(back.index(i) if i in c.back else -1, int(i in c.ahead)) for i in range(c.layers)]
        layers = (_Layer * c.layers)(*(_Layer(*(one.mat for one in own), *at) for own, at in zip(packs, places, strict=True)))
        self._alive = packs, into, code_VD, out, layers
        sizes = c.layers, c.width, c.heads, c.head_dim, c.ffn, c.mels, c.block, c.repeats
        at = ctypes.addressof(layers), into.mat, out.mat, code_VD.data_ptr()
        self._model = _Model(*at, *sizes, EPS, c.head_dim**-0.5)
        self._work = c.width * (4 * c.heads * c.head_dim + 2 * c.ffn)  # multiplications of a row in a layer

    def velocity(self, windows: Sequence[Window]) -> list[Moved]:
        """As `Flow.velocity`. Codes are known to be codes."""
        c, rows = self.config, 0
        given, moved = (_Window * len(windows))(), []
        alive: list[object] = []  # until the call is over
        for window, to in zip(windows, given, strict=True):
            frames, branches = len(window.x_TM), window.branches
            x_TM, voice_2D, past = _plain(window.x_TM), _plain(window.voice_2D), window.past
            assert x_TM.shape[1] == c.mels and voice_2D.shape == (2, c.width), f"{tuple(x_TM.shape)}, {tuple(voice_2D.shape)}"
            told, turns = self._told(window.time), self._turns(window.first, frames)
            codes = np.array(window.codes, dtype=np.int32)
            velocity_TM, kept = torch.empty(frames, c.mels), None
            if window.keep and c.back:
                kept = torch.empty(len(c.back), 2, branches, c.heads, c.block, c.head_dim)
                to.kept, to.keep = kept.data_ptr(), window.keep
            if past is not None and c.back:
                past = _plain(past)
                wanted = (len(c.back), 2, past.shape[2], c.heads, c.block, c.head_dim)
                assert past.shape == wanted and past.shape[2] >= branches, f"past {tuple(past.shape)}, {wanted} needed"
                to.past, to.past_branches = past.data_ptr(), past.shape[2]
            to.x, to.velocity, to.code = x_TM.data_ptr(), velocity_TM.data_ptr(), codes.ctypes.data
            to.voice, to.turns, to.told = voice_2D.data_ptr(), turns.data_ptr(), told.data_ptr()
            to.frames, to.branches, to.guidance, to.first = frames, branches, window.guidance, rows
            alive += [x_TM, voice_2D, past, told, turns, codes]
            rows += frames * branches
            moved.append(Moved(velocity_TM, kept))
        parts = (c.width, c.width, 3 * c.heads * c.head_dim, max(c.ffn, c.mels))  # floats a row of x, h, qkv, act
        room = torch.empty(rows * sum(parts))
        batch = _Batch(ctypes.addressof(given), rows, len(windows))
        batch.threads = torch.get_num_threads() if rows * self._work > cpu.SMALL else 1
        at = room.data_ptr()
        for name, floats in zip(("x", "h", "qkv", "act"), parts, strict=True):
            setattr(batch, name, at)
            at += 4 * rows * floats
        self._run(ctypes.addressof(self._model), ctypes.addressof(batch))
        return moved


def _plain(x: torch.Tensor) -> torch.Tensor:
    """Float32 on the CPU, one number after the other."""
    return x.to("cpu", torch.float32).contiguous()


def _turns(first: int, frames: int, frequency_F: torch.Tensor) -> torch.Tensor:
    """Cosines, then sines, of each frame: [T, 2, F]."""
    angle_TF = torch.arange(first, first + frames).float()[:, None] * frequency_F
    return torch.stack([angle_TF.cos(), angle_TF.sin()], 1)
