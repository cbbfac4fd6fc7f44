"""Causal convolutions over time that go on where the last chunk ended: the definition.

What a chunk needs of the past is its last inputs, `state`; zeros at the beginning. So chunks of any sizes are one convolution,
and no sum is ever taken in two halves. Weights come packed, a matrix a tap (`pack`, `pack_transposed`): rows of C contiguous
values.

Suffixes: N sequences, C channels in, O channels out, K taps, L positions, P positions of state, J taps of a transposed
convolution as one over its inputs, Q = O · stride.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from omni_runtime.kernels.snake import snake_beta

Snake = tuple[torch.Tensor, torch.Tensor]
"""alpha_C and beta_C of `snake_beta`."""


def pack(weight_OCK: torch.Tensor) -> torch.Tensor:
    """weight_KOC of `causal_conv`, from the layout of `torch.nn.Conv1d`."""
    return weight_OCK.permute(2, 0, 1).contiguous()


def pack_transposed(weight_COK: torch.Tensor, stride: int) -> torch.Tensor:
    """weight_JQC of `causal_transposed_conv`, from the layout of `torch.nn.ConvTranspose1d`.

    Output o at position stride · i + r gets input i - j through tap stride · j + r: row o · stride + r of matrix j, with zeros
    where the kernel has no such tap.
    """
    weight_COK = F.pad(weight_COK, (0, -weight_COK.shape[2] % stride))
    inputs, outputs, taps = weight_COK.shape
    return (
        weight_COK.view(inputs, outputs, taps // stride, stride)
        .permute(2, 1, 3, 0)
        .reshape(-1, outputs * stride, inputs)
        .contiguous()
    )


def causal_conv(
    x_NCL: torch.Tensor,
    state_NCP: torch.Tensor,
    weight_KOC: torch.Tensor,
    bias_O: torch.Tensor | None = None,
    dilation: int = 1,
    snake: Snake | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y[o, l] = bias[o] + Σ w[k, o, c] x[c, l - (K - 1 - k) · dilation], after `snake_beta` of all inputs if given.

    Args:
        x_NCL: float32, bfloat16 or float16.
        state_NCP: the P = (K - 1) · dilation inputs before x, without snake; same dtype.
        weight_KOC: see `pack`; same dtype.

    Returns:
        y_NOL, and the state for the next chunk. Sums are float32, rounded once; snake is rounded to the dtype of x.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    check("causal_conv", x_NCL, state_NCP, weight_KOC, bias_O, weight_KOC.shape[1], (len(weight_KOC) - 1) * dilation)
    padded_NCL, state_NCP = extend(x_NCL, state_NCP)
    active_NCL = padded_NCL if snake is None else snake_beta(padded_NCL, *snake)
    y_NOL = _taps(active_NCL, weight_KOC, x_NCL.shape[2], [k * dilation for k in range(len(weight_KOC))])
    y_NOL = y_NOL if bias_O is None else y_NOL + bias_O.float()[:, None]
    return y_NOL.to(x_NCL.dtype), state_NCP


def causal_transposed_conv(
    x_NCL: torch.Tensor,
    state_NCP: torch.Tensor,
    weight_JQC: torch.Tensor,
    stride: int,
    bias_O: torch.Tensor | None = None,
    snake: Snake | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y[o, stride · i + r] = bias[o] + Σ w[j, o · stride + r, c] x[c, i - j].

    That is a transposed convolution without its last K - stride values.

    Args:
        x_NCL: float32, bfloat16 or float16.
        state_NCP: the P = J - 1 inputs before x, without snake; same dtype.
        weight_JQC: see `pack_transposed`; same dtype.

    Returns:
        y of [N, O, L · stride], and the state for the next chunk; rounded as in `causal_conv`.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    taps, rows, _ = weight_JQC.shape
    if stride < 1 or rows % stride:
        raise ValueError(f"causal_transposed_conv: weight {tuple(weight_JQC.shape)} has no {stride} rows an output")
    check("causal_transposed_conv", x_NCL, state_NCP, weight_JQC, bias_O, rows // stride, taps - 1)
    padded_NCL, state_NCP = extend(x_NCL, state_NCP)
    active_NCL = padded_NCL if snake is None else snake_beta(padded_NCL, *snake)
    y_NQL = _taps(active_NCL, weight_JQC, x_NCL.shape[2], [taps - 1 - j for j in range(taps)])
    y = y_NQL.unflatten(1, (-1, stride)).transpose(2, 3).flatten(2)
    y = y if bias_O is None else y + bias_O.float()[:, None]
    return y.to(x_NCL.dtype), state_NCP


def _taps(x_NCL: torch.Tensor, weight_KOC: torch.Tensor, length: int, starts: list[int]) -> torch.Tensor:
    """Σ w[k] x[:, start of k : start of k + length], float32."""
    parts = [weight.float() @ x_NCL[:, :, at : at + length].float() for weight, at in zip(weight_KOC, starts, strict=True)]
    return torch.stack(parts).sum(0)


def extend(x_NCL: torch.Tensor, state_NCP: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs with those before them, and the last P of that: a copy, so that a state does not keep a chunk alive."""
    padded_NCL = torch.cat([state_NCP, x_NCL], 2)
    return padded_NCL, padded_NCL[:, :, x_NCL.shape[2] :].clone()


def check(
    op: str,
    x_NCL: torch.Tensor,
    state_NCP: torch.Tensor,
    weight: torch.Tensor,
    bias_O: torch.Tensor | None,
    outputs: int,
    past: int,
) -> None:
    """Whether shapes and dtypes fit. ValueError if not."""
    fits = x_NCL.dim() == weight.dim() == 3 and weight.shape[2] == x_NCL.shape[1] and len(weight) > 0
    fits = fits and state_NCP.shape == (*x_NCL.shape[:2], past) and (bias_O is None or bias_O.shape == (outputs,))
    if not fits or not x_NCL.dtype == state_NCP.dtype == weight.dtype:
        given = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in (x_NCL, state_NCP, weight))
        bias = "no bias" if bias_O is None else f"bias {tuple(bias_O.shape)}"
        raise ValueError(
            f"{op}: {given}, {bias} do not fit x, state and weight, one dtype; "
            f"the state must have {past} positions, the bias {outputs}"
        )
