"""The layers of a decoder as one call into `kernels/cpu.c`: all phases of all layers in one region of threads.

What torch needs some thirty calls a layer for, 190 µs of Python and dispatch however small the model, is none here.

Suffixes: T rows (tokens of all spans), D width, E head dimension.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import torch

from omni_runtime.experts.kv_cache import Kept
from omni_runtime.kernels import cpu
from omni_runtime.weights.decoder_config import DecoderConfig

Take = Callable[[str], torch.Tensor]
"""A weight by its name in `parameter_shapes`, float32."""

_POINTER, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("norm", "ffn_norm", "q_norm", "k_norm")),
        *((name, cpu.Mat) for name in ("qkv", "out", "gate_up", "down", "router", "shared_gate")),
        ("expert_gate_up", _POINTER),
        ("expert_down", _POINTER),
        *((name, _INT) for name in ("experts", "chosen", "normalise", "number")),
    ]


class _Cache(ctypes.Structure):
    _fields_ = [("kv", _POINTER), ("layer", _LONG), ("head", _LONG)]


class _Batch(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("rows", "width", "heads", "kv_heads", "head_dim", "hidden", "threads", "moe_hidden")),
        ("eps", _FLOAT),
        ("scale", _FLOAT),
        *((name, _POINTER) for name in ("caches", "sequence", "position", "cos", "sin", "x", "h", "qkv", "mixed", "act")),
        *((name, _POINTER) for name in ("pairs", "pair_act", "route", "weight", "expert", "place", "starts", "picked", "acted")),
    ]


class CpuLayers:
    """Resident weights of all layers.

    Args:
        kind: what matrices are kept in, one of `cpu.TYPES`. Norms and the router are float32.

    Raises:
        OmniError: the kernels cannot be had.
    """

    def __init__(self, config: DecoderConfig, take: Take, kind: str) -> None:
        self.config = config
        self._run, self._norm = cpu.functions().omni_layers, cpu.functions().omni_norm
        self._alive: list[object] = []
        self._layers = (_Layer * config.layers)(*(self._layer(i, take, kind) for i in range(config.layers)))
        self._final_D = take("model.norm.weight").contiguous()
        # Multiplications of a row: attention aside, which a short row has little of.
        self._work = sum(m.n * m.k for layer in self._layers for m in (layer.qkv, layer.out, layer.gate_up, layer.down))

    def _layer(self, i: int, take: Take, kind: str) -> _Layer:
        config, at = self.config, f"model.layers.{i}"

        def vector(name: str) -> int:
            found = take(name).contiguous()
            self._alive.append(found)
            return found.data_ptr()

        def mat(prefix: str, parts: Sequence[str], gated: bool = False, bias: bool = False, kind: str = kind) -> cpu.Mat:
            weight = torch.cat([take(f"{prefix}.{part}.weight") for part in parts])
            biases = torch.cat([take(f"{prefix}.{part}.bias") for part in parts]) if bias else None
            found = cpu.pack(weight, biases, kind, gated)
            self._alive.append(found)
            return found.mat

        def pair(prefix: str, bias: bool = False) -> tuple[cpu.Mat, cpu.Mat]:
            return mat(prefix, ("gate_proj", "up_proj"), True, bias), mat(prefix, ("down_proj",), False, bias)

        made = _Layer(norm=vector(f"{at}.input_layernorm.weight"), ffn_norm=vector(f"{at}.post_attention_layernorm.weight"))
        if config.qk_norm:
            made.q_norm, made.k_norm = (vector(f"{at}.self_attn.{part}_norm.weight") for part in ("q", "k"))
        made.qkv = mat(f"{at}.self_attn", ("q_proj", "k_proj", "v_proj"), bias=config.qkv_bias)
        made.out = mat(f"{at}.self_attn", ("o_proj",), bias=config.out_bias)
        made.number = i
        sparse = config.sparse
        if sparse is None or i not in sparse.layers:
            made.gate_up, made.down = pair(f"{at}.mlp", config.mlp_bias)
            return made
        made.router = mat(f"{at}.mlp", ("gate",), kind="float32")
        pairs = [pair(f"{at}.mlp.experts.{expert}") for expert in range(sparse.experts)]
        ups, downs = ((cpu.Mat * len(pairs))(*mats) for mats in zip(*pairs, strict=True))
        self._alive += [ups, downs]
        made.expert_gate_up, made.expert_down = ctypes.addressof(ups), ctypes.addressof(downs)
        made.experts, made.chosen, made.normalise = sparse.experts, sparse.chosen, sparse.normalise
        if sparse.shared:
            made.gate_up, made.down = pair(f"{at}.mlp.shared_expert")
            made.shared_gate = mat(f"{at}.mlp", ("shared_expert_gate",), kind="float32")
        return made

    def norm(self, x_TD: torch.Tensor) -> torch.Tensor:
        """The last norm."""
        h_TD = torch.empty_like(x_TD)
        self._norm(x_TD.data_ptr(), self._final_D.data_ptr(), h_TD.data_ptr(), *x_TD.shape, self.config.eps)
        return h_TD

    def rows(
        self,
        kept: Sequence[Kept],
        sequence_T: Sequence[int],
        position_T: Sequence[int],
        cos_T1E: torch.Tensor,
        sin_T1E: torch.Tensor,
    ) -> Callable[[torch.Tensor, int, int], None]:
        """A call (x_TD, first, last) that runs layers first .. last of these rows in place.

        Row t is at position_T[t] of kept[sequence_T[t]]; rows of one sequence are in order. The caches have room for them.
        """
        c, count = self.config, len(sequence_T)
        caches = (_Cache * len(kept))(*(_Cache(one.kv.data_ptr(), one.layer, one.head) for one in kept))
        where = np.array([sequence_T, position_T], dtype=np.int32)
        sparse, heads = c.sparse, c.heads + 2 * c.kv_heads
        chosen, experts = (sparse.chosen, sparse.experts) if sparse else (0, 0)
        hidden, moe = max(c.ffn, sparse.shared if sparse else 0), sparse.ffn if sparse else 0
        # Floats a row, one part after the other in one allocation.
        parts = {"h": c.width, "qkv": heads * c.head_dim, "mixed": max(c.heads * c.head_dim, c.width), "act": hidden}
        parts |= {"pairs": chosen * c.width, "pair_act": chosen * moe, "route": experts, "weight": chosen}
        room = torch.empty(count * sum(parts.values()))
        numbers = np.empty(2 * count * chosen + experts + 1, dtype=np.int32)
        pointers = np.empty(2 * count * chosen, dtype=np.uintp)
        batch = _Batch(
            rows=count,
            width=c.width,
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            hidden=hidden,
            threads=torch.get_num_threads() if count * self._work > cpu.SMALL * len(self._layers) else 1,
            moe_hidden=moe,
            eps=c.eps,
            scale=c.head_dim**-0.5,
            caches=ctypes.addressof(caches),
            sequence=where[0].ctypes.data,
            position=where[1].ctypes.data,
            cos=cos_T1E.data_ptr(),
            sin=sin_T1E.data_ptr(),
            expert=numbers.ctypes.data,
            place=numbers.ctypes.data + 4 * count * chosen,
            starts=numbers.ctypes.data + 8 * count * chosen,
            picked=pointers.ctypes.data,
            acted=pointers.ctypes.data + 8 * count * chosen,
        )
        at = room.data_ptr()
        for name, floats in parts.items():
            setattr(batch, name, at)
            at += 4 * count * floats

        def run(x_TD: torch.Tensor, first: int, last: int) -> None:
            _ = kept, caches, where, cos_T1E, sin_T1E, room, numbers, pointers  # as long as this function
            batch.x = x_TD.data_ptr()
            self._run(ctypes.addressof(self._layers), first, last, ctypes.addressof(batch))

        return run
