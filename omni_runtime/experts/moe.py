"""A mixture of experts as a layer's MLP: each token goes through the few experts that its router prefers (Qwen3-MoE).

Suffixes: T tokens, D width, X experts, C chosen experts of a token, P pairs of token and chosen expert (P = T·C).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from omni_runtime.experts.linear import Linear

Mlp = Callable[[torch.Tensor], torch.Tensor]
"""h_TD → what the layer adds, [T, D]"""


def gated(gate_up: Linear, down: Linear, silu: Linear = F.silu) -> Mlp:
    """down(silu(gate) · up): SwiGLU (Shazeer 2020), gate and up as one product."""

    def run(h_TD: torch.Tensor) -> torch.Tensor:
        gate_TF, up_TF = gate_up(h_TD).chunk(2, -1)
        return down(silu(gate_TF).mul_(up_TF))

    return run


class Routed(NamedTuple):
    """Which experts tokens go to, and with what weight."""

    expert_TC: torch.Tensor  # int64
    weight_TC: torch.Tensor  # float32


def route(logits_TX: torch.Tensor, chosen: int, normalise: bool) -> Routed:
    """The likeliest experts of a softmax over all of them; normalised, the weights of a token's experts sum to 1."""
    weight_TC, expert_TC = logits_TX.float().softmax(-1).topk(chosen, -1)
    if normalise:
        weight_TC = weight_TC / weight_TC.sum(-1, keepdim=True)
    return Routed(expert_TC, weight_TC)


def mixture(router: Linear, experts: Sequence[Mlp], chosen: int, normalise: bool) -> Mlp:
    """Σ weight · expert(h) over a token's chosen experts.

    Pairs are sorted by expert, so a ragged batch runs each expert once, on all its tokens. The sum of a token is over its own
    experts in the router's order, so neighbours change its last bits at most: through the rows of a product, never its terms.
    """

    def run(h_TD: torch.Tensor) -> torch.Tensor:
        expert_TC, weight_TC = route(router(h_TD), chosen, normalise)
        expert_P = expert_TC.flatten()
        order_P = expert_P.argsort(stable=True)
        token_P = order_P.div(chosen, rounding_mode="floor")
        counts = expert_P.bincount(minlength=len(experts)).tolist()
        parts = h_TD[token_P].split_with_sizes(counts)
        done_PD = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True) if len(part)])
        back_PD = torch.empty_like(done_PD)
        back_PD[order_P] = done_PD
        return (back_PD.view(len(h_TD), chosen, -1) * weight_TC[..., None]).sum(1)

    return run


def with_shared(routed: Mlp, shared: Mlp, gate: Linear) -> Mlp:
    """routed(h) + sigmoid(gate(h)) · shared(h): an expert for every token, scaled by one number a token (Qwen2-MoE)."""

    def run(h_TD: torch.Tensor) -> torch.Tensor:
        return routed(h_TD) + gate(h_TD).sigmoid() * shared(h_TD)

    return run
