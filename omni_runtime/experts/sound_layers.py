"""The transformer of Whisper's encoder (Radford et al. 2022), which several families have after convolutions of their own.

Suffixes: T tokens of all stretches, D width, H heads, E head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from omni_runtime.experts.encoder_layers import Norm, Parts, attend
from omni_runtime.experts.linear import Linear

EPS = 1e-5


class _Layer(NamedTuple):
    norm: Norm
    qkv: Linear
    out: Linear
    mlp_norm: Norm
    wide: Linear
    narrow: Linear


class SoundLayers:
    """So many layers. `key_bias`: whether keys have a bias; Whisper's have none."""

    def __init__(self, parts: Parts, layers: int, heads: int, key_bias: bool) -> None:
        self._heads = heads
        self._layers = [
            _Layer(
                norm=parts.norm(f"{at}.self_attn_layer_norm", EPS),
                qkv=parts.dense(*(f"{at}.self_attn.{part}_proj" for part in "qkv"), bias=(True, key_bias, True)),
                out=parts.dense(f"{at}.self_attn.out_proj"),
                mlp_norm=parts.norm(f"{at}.final_layer_norm", EPS),
                wide=parts.dense(f"{at}.fc1"),
                narrow=parts.dense(f"{at}.fc2"),
            )
            for at in (f"layers.{i}" for i in range(layers))
        ]

    def __call__(self, x_TD: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """[T, D]; every token sees all of its own stretch."""
        for layer in self._layers:
            q_THE, k_THE, v_THE = layer.qkv(layer.norm(x_TD)).view(len(x_TD), 3, self._heads, -1).unbind(1)
            x_TD = x_TD + layer.out(attend(q_THE, k_THE, v_THE, lengths))
            x_TD = x_TD + layer.narrow(F.gelu(layer.wide(layer.mlp_norm(x_TD))))
        return x_TD
