"""What the encoders of Qwen3-Omni share: attention within stretches of one long row, and layers made of named tensors.

Suffixes: T tokens of all stretches, D width, H heads, E head dimension, N tokens of one stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from omni_runtime.experts.linear import Linear, linear

Norm = Callable[[torch.Tensor], torch.Tensor]
Tensors = Mapping[str, torch.Tensor]


def attend(q_THE: torch.Tensor, k_THE: torch.Tensor, v_THE: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[T, H·E]: every token sees all of its own stretch and nothing else.

    Stretches run one by one, so that what one gives does not depend on how long its neighbours are.
    """
    parts = []
    for q, k, v in zip(*(x.transpose(0, 1)[None].split_with_sizes(list(lengths), 2) for x in (q_THE, k_THE, v_THE)), strict=True):
        out_1HNE = F.scaled_dot_product_attention(q, k, v)
        parts.append(out_1HNE[0].transpose(0, 1).flatten(1))
    return torch.cat(parts)


class Parts:
    """Layers by the names of a checkpoint, float32 on one device."""

    def __init__(self, weights: Tensors, device: torch.device, layout: str) -> None:
        self._weights, self._device, self._layout = weights, device, layout

    def take(self, name: str) -> torch.Tensor:
        """A tensor."""
        return self._weights[name].detach().to(self._device, torch.float32)

    def dense(self, *names: str, bias: bool = True) -> Linear:
        """Linear layers side by side, as one product."""
        biases = torch.cat([self.take(f"{name}.bias") for name in names]) if bias else None
        return linear(torch.cat([self.take(f"{name}.weight") for name in names]), biases, self._layout)

    def norm(self, name: str, eps: float) -> Norm:
        """A layer norm."""
        weight, bias = self.take(f"{name}.weight"), self.take(f"{name}.bias")
        return lambda x_TD: F.layer_norm(x_TD, x_TD.shape[-1:], weight, bias, eps)
