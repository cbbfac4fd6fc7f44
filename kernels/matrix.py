"""The matrix product of a linear layer: the definition.

torch's product on a GPU takes another kernel for another number of rows, and adds in another order: what a row gets depends on
how many others there are. The Triton form adds every element's products in one order whatever the rows (He 2025, "Defeating
Nondeterminism in LLM Inference"), at a price in speed; the definition promises a value and no order.

Suffixes: T rows on any axes, K inputs, N outputs.
"""

from __future__ import annotations

import torch


def product(x_TK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """x weightᵀ + bias.

    Args:
        x_TK: float32, bfloat16 or float16.
        weight_NK, bias_N: same dtype.

    Returns:
        [T, N] in the dtype of x. Sums and bias are float32, rounded once.

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    check(x_TK, weight_NK, bias_N)
    out_TN = x_TK.float() @ weight_NK.float().t()
    return (out_TN if bias_N is None else out_TN + bias_N.float()).to(x_TK.dtype)


def check(x_TK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None) -> None:
    """Whether shapes and dtypes fit. ValueError if not."""
    fits = x_TK.dim() > 0 and weight_NK.dim() == 2 and x_TK.shape[-1] == weight_NK.shape[1] and x_TK.dtype == weight_NK.dtype
    fits = fits and (bias_N is None or (bias_N.shape == weight_NK.shape[:1] and bias_N.dtype == x_TK.dtype))
    given = [t for t in (x_TK, weight_NK, bias_N) if t is not None]
    if not fits or any(t.device != x_TK.device for t in given):  # torch 2.13 multiplies by a tensor of "meta", and gives anything
        told = ", ".join(f"{tuple(t.shape)} {t.dtype} on {t.device}" for t in given)
        raise ValueError(f"product: {told} do not fit [T, K], [N, K] and, where there is a bias, [N], in one dtype on one device")
