"""The MLP of a mixture of experts (Shazeer et al. 2017, equation 1, with SwiGLU experts): the definition.

Which experts a token goes to, and with what weight, is the router's business and comes in.

Suffixes: T tokens, D width, X experts, F features of an expert, C chosen experts of a token.
"""

from __future__ import annotations

import torch
from omni_runtime.kernels.swiglu import silu_mul


def fused_moe(
    x_TD: torch.Tensor,
    gate_up_XMD: torch.Tensor,
    down_XDF: torch.Tensor,
    expert_TC: torch.Tensor,
    weight_TC: torch.Tensor,
    invariant: bool = False,
) -> torch.Tensor:
    """Σ weight · down(silu(gate) · up) over a token's chosen experts, [T, D].

    Args:
        x_TD: float32, bfloat16 or float16.
        gate_up_XMD: M = 2F rows, gate and then up; same dtype.
        down_XDF: same dtype.
        expert_TC: int32 or int64; an expert that is not there (-1 on purpose) adds nothing.
        weight_TC: float32.
        invariant: the Triton form takes one setting for any number of tokens, so that a token is the same to the bit beside any
            others. The definition promises a value and no order.

    Returns:
        The dtype of x. Products are summed in float32, the gated features rounded to the dtype of x, the sum over experts is
        float32 in the order in which they were chosen, rounded once.

    Raises:
        ValueError: shapes do not fit.
    """
    check(x_TD, gate_up_XMD, down_XDF, expert_TC, weight_TC)
    out_TCD = torch.zeros(*expert_TC.shape, x_TD.shape[1], device=x_TD.device)
    for expert in range(len(gate_up_XMD)):
        token, choice = torch.where(expert_TC == expert)
        hidden = silu_mul(x_TD[token].float() @ gate_up_XMD[expert].float().t()).to(x_TD.dtype)
        out_TCD[token, choice] = weight_TC[token, choice, None] * (hidden.float() @ down_XDF[expert].float().t())
    return out_TCD.sum(1).to(x_TD.dtype)


def check(
    x_TD: torch.Tensor, gate_up_XMD: torch.Tensor, down_XDF: torch.Tensor, expert_TC: torch.Tensor, weight_TC: torch.Tensor
) -> None:
    """Whether shapes and dtypes fit. ValueError if not."""
    fits = x_TD.dim() == 2 and gate_up_XMD.dim() == down_XDF.dim() == 3 and expert_TC.dim() == 2
    fits = fits and weight_TC.shape == expert_TC.shape and len(expert_TC) == len(x_TD)
    if fits:
        experts, width, features = down_XDF.shape
        fits = gate_up_XMD.shape == (experts, 2 * features, width) and x_TD.shape[1] == width
    if not fits or not x_TD.dtype == gate_up_XMD.dtype == down_XDF.dtype:
        shapes = [f"{tuple(t.shape)} {t.dtype}" for t in (x_TD, gate_up_XMD, down_XDF, expert_TC, weight_TC)]
        raise ValueError(f"fused_moe: {', '.join(shapes)} do not fit [T, D], [X, 2F, D], [X, D, F] in one dtype, [T, C], [T, C]")
