"""Fused operations, each in two forms: a Triton kernel, and a torch definition that says what is right.

Which form runs is decided here and nowhere else. Tensors on a GPU take the Triton kernel where triton is installed, everything
else takes the torch definition. Who names a form, by argument or by `OMNI_KERNELS=triton|torch`, gets that form or an error:
an unnoticed fallback would make every measurement and every test a guess.

Shapes, dtypes and formulas are told beside the definitions, in the module that each function names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from omni_runtime.kernels import (
    adaln,
    attention,
    conv,
    convnext,
    euler,
    joint,
    kv,
    matrix,
    moe,
    norm,
    rope,
    sample,
    snake,
    swiglu,
)
from omni_runtime.kernels.attention import Plan as Plan
from omni_runtime.kernels.attention import Sizes as Sizes
from omni_runtime.kernels.attention import bucket as bucket
from omni_runtime.kernels.attention import plan as plan
from omni_runtime.kernels.conv import pack as pack
from omni_runtime.kernels.conv import pack_transposed as pack_transposed
from omni_runtime.kernels.convnext import ConvNeXt as ConvNeXt
from omni_runtime.kernels.joint import JointPlan as JointPlan
from omni_runtime.kernels.joint import joint_plan as joint_plan
from omni_runtime.kernels.rope import axes as axes
from omni_runtime.kernels.sample import Changes as Changes
from omni_runtime.kernels.sample import Draws as Draws

from omni_runtime.errors import MissingExtra, OmniError

Pair = tuple[torch.Tensor, torch.Tensor]

FORMS = ("triton", "torch")
FLOATS = frozenset((torch.float32, torch.bfloat16, torch.float16))
_TRITON = find_spec("triton") is not None
_ASKED = os.environ.get("OMNI_KERNELS", "")  # read once: looking it up costs 0.6 µs, as much again as the choice


def choose(x: torch.Tensor, form: str | None = None) -> str:
    """The form that runs for a tensor: `form` if given, else what the environment asks for, else by device.

    Raises:
        OmniError: the form that was asked for does not exist, or cannot run on this device.
        MissingExtra: triton was asked for and is not installed.
        ValueError: a dtype that no op computes with: of whole numbers the sums would wrap, of float64 they would be float32's.
    """
    if x.dtype not in FLOATS:
        raise ValueError(f"kernels compute with float32, bfloat16 and float16, not {x.dtype}: convert it first")
    asked = form or _ASKED
    if not asked:
        return "triton" if _TRITON and x.device.type == "cuda" else "torch"  # HIP tensors are of type "cuda" too
    settled("form" if form else "OMNI_KERNELS", asked, x.device)
    return asked


def settled(source: str, asked: str, device: torch.device | None) -> None:
    """Whether a form that was asked for can run there; None is anywhere. Whoever builds experts asks before the first op does.

    Raises:
        OmniError: there is no such form, or it cannot run on this device.
        MissingExtra: triton was asked for and is not installed.
    """
    if asked not in FORMS:
        raise OmniError(f"{source}={asked!r}: unknown form of a kernel, one of {', '.join(FORMS)} needed")
    if asked == "triton" and device is not None:
        if not _TRITON:
            raise MissingExtra(f"{source}='triton' was asked for, which is not installed: pip install 'omni_runtime[gpu]'")
        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise OmniError(f"{source}='triton' was asked for, but the tensors are on {device}: use 'torch', or a GPU")


def rms_norm(x_RD: torch.Tensor, weight_D: torch.Tensor, eps: float, form: str | None = None) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight along the last axis, in the dtype of x. See `norm.rms_norm`."""
    if choose(x_RD, form) == "torch":
        return norm.rms_norm(x_RD, weight_D, eps)
    from omni_runtime.kernels import norm_triton

    return norm_triton.rms_norm(x_RD, weight_D, eps)


def add_rms_norm(
    x_RD: torch.Tensor, residual_RD: torch.Tensor, weight_D: torch.Tensor, eps: float, form: str | None = None
) -> Pair:
    """s = x + residual, and its norm: (norm, s), both in the dtype of x. See `norm.add_rms_norm`."""
    if choose(x_RD, form) == "torch":
        return norm.add_rms_norm(x_RD, residual_RD, weight_D, eps)
    from omni_runtime.kernels import norm_triton

    return norm_triton.add_rms_norm(x_RD, residual_RD, weight_D, eps)


def product(
    x_TK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None, form: str | None = None
) -> torch.Tensor:
    """x weightᵀ + bias; in Triton a row is the same to the bit beside any others. See `matrix.product`."""
    if choose(x_TK, form) == "torch":
        return matrix.product(x_TK, weight_NK, bias_N)
    from omni_runtime.kernels import matrix_triton

    return matrix_triton.product(x_TK, weight_NK, bias_N)


def silu_mul(x: torch.Tensor, form: str | None = None) -> torch.Tensor:
    """silu(gate) · up of rows that hold both. See `swiglu.silu_mul`."""
    if choose(x, form) == "torch":
        return swiglu.silu_mul(x)
    from omni_runtime.kernels import swiglu_triton

    return swiglu_triton.silu_mul(x)


def rotary(
    x_THE: torch.Tensor,
    positions_AT: torch.Tensor,
    cos_SF: torch.Tensor,
    sin_SF: torch.Tensor,
    axis_F: torch.Tensor | None = None,
    pairs: bool = False,
    in_place: bool = False,
    form: str | None = None,
) -> torch.Tensor:
    """Heads turned by the angles of their positions. See `rope.rotary`."""
    if choose(x_THE, form) == "torch":
        return rope.rotary(x_THE, positions_AT, cos_SF, sin_SF, axis_F, pairs, in_place)
    from omni_runtime.kernels import rope_triton

    return rope_triton.rotary(x_THE, positions_AT, cos_SF, sin_SF, axis_F, pairs, in_place)


def norm_rotary(
    x_THE: torch.Tensor,
    queries: int,
    q_weight_E: torch.Tensor,
    k_weight_E: torch.Tensor,
    eps: float,
    positions_AT: torch.Tensor,
    cos_SF: torch.Tensor,
    sin_SF: torch.Tensor,
    axis_F: torch.Tensor | None = None,
    pairs: bool = False,
    form: str | None = None,
) -> torch.Tensor:
    """QK-norm and rotary embedding, in place. See `rope.norm_rotary`."""
    if choose(x_THE, form) == "torch":
        return rope.norm_rotary(x_THE, queries, q_weight_E, k_weight_E, eps, positions_AT, cos_SF, sin_SF, axis_F, pairs)
    from omni_runtime.kernels import rope_triton

    return rope_triton.norm_rotary(x_THE, queries, q_weight_E, k_weight_E, eps, positions_AT, cos_SF, sin_SF, axis_F, pairs)


def store_kv(
    k_TGE: torch.Tensor,
    v_TGE: torch.Tensor,
    k_NPGE: torch.Tensor,
    v_NPGE: torch.Tensor,
    slots_T: torch.Tensor,
    form: str | None = None,
) -> None:
    """New keys and values into a paged cache. See `kv.store_kv`."""
    if choose(k_TGE, form) == "torch":
        return kv.store_kv(k_TGE, v_TGE, k_NPGE, v_NPGE, slots_T)
    from omni_runtime.kernels import kv_triton

    return kv_triton.store_kv(k_TGE, v_TGE, k_NPGE, v_NPGE, slots_T)


def paged_attention(
    q_THE: torch.Tensor, k_NPGE: torch.Tensor, v_NPGE: torch.Tensor, batch: Plan, scale: float, form: str | None = None
) -> torch.Tensor:
    """Causal attention of a ragged batch over a paged cache; `plan` makes the batch. See `attention.paged_attention`."""
    if choose(q_THE, form) == "torch":
        return attention.paged_attention(q_THE, k_NPGE, v_NPGE, batch, scale)
    from omni_runtime.kernels import attention_triton

    return attention_triton.paged_attention(q_THE, k_NPGE, v_NPGE, batch, scale)


def joint_attention(
    first_3NHE: Sequence[torch.Tensor],
    second_3SHE: Sequence[torch.Tensor],
    batch: JointPlan,
    scale: float,
    form: str | None = None,
) -> Pair:
    """Attention of two streams to both; `joint_plan` makes the batch. See `joint.joint_attention`."""
    if choose(first_3NHE[0], form) == "torch":
        return joint.joint_attention(first_3NHE, second_3SHE, batch, scale)
    from omni_runtime.kernels import joint_triton

    return joint_triton.joint_attention(first_3NHE, second_3SHE, batch, scale)


def fused_moe(
    x_TD: torch.Tensor,
    gate_up_XMD: torch.Tensor,
    down_XDF: torch.Tensor,
    expert_TC: torch.Tensor,
    weight_TC: torch.Tensor,
    invariant: bool = False,
    form: str | None = None,
) -> torch.Tensor:
    """The MLP of a mixture of experts, after its router. See `moe.fused_moe`."""
    if choose(x_TD, form) == "torch":
        return moe.fused_moe(x_TD, gate_up_XMD, down_XDF, expert_TC, weight_TC, invariant)
    from omni_runtime.kernels import moe_triton

    return moe_triton.fused_moe(x_TD, gate_up_XMD, down_XDF, expert_TC, weight_TC, invariant)


def draw_tokens(
    logits_RV: torch.Tensor, draws: Draws, changes: Changes | None = None, logprobs: bool = False, form: str | None = None
) -> Pair:
    """The next token of every row, and its log-probability. See `sample.draw_tokens`."""
    if choose(logits_RV, form) == "torch":
        return sample.draw_tokens(logits_RV, draws, changes, logprobs)
    from omni_runtime.kernels import sample_triton

    return sample_triton.draw_tokens(logits_RV, draws, changes, logprobs)


def modulate(x_BND: torch.Tensor, shift_BD: torch.Tensor, scale_BD: torch.Tensor, form: str | None = None) -> torch.Tensor:
    """Layer norm, scaled and shifted per sample. See `adaln.modulate`."""
    if choose(x_BND, form) == "torch":
        return adaln.modulate(x_BND, shift_BD, scale_BD)
    from omni_runtime.kernels import adaln_triton

    return adaln_triton.modulate(x_BND, shift_BD, scale_BD)


def gate(x_BND: torch.Tensor, delta_BND: torch.Tensor, gate_BD: torch.Tensor, form: str | None = None) -> torch.Tensor:
    """x + gate · delta, gates per sample. See `adaln.gate`."""
    if choose(x_BND, form) == "torch":
        return adaln.gate(x_BND, delta_BND, gate_BD)
    from omni_runtime.kernels import adaln_triton

    return adaln_triton.gate(x_BND, delta_BND, gate_BD)


def guided_euler(
    latent_RX: torch.Tensor,
    velocity_BX: torch.Tensor,
    with_R: torch.Tensor,
    without_R: torch.Tensor,
    scale_R: torch.Tensor,
    sigma_R: torch.Tensor,
    target_R: torch.Tensor,
    form: str | None = None,
) -> Pair:
    """Guidance and one Euler step of every row. See `euler.guided_euler`."""
    if choose(latent_RX, form) == "torch":
        return euler.guided_euler(latent_RX, velocity_BX, with_R, without_R, scale_R, sigma_R, target_R)
    from omni_runtime.kernels import euler_triton

    return euler_triton.guided_euler(latent_RX, velocity_BX, with_R, without_R, scale_R, sigma_R, target_R)


def snake_beta(x_NCL: torch.Tensor, alpha_C: torch.Tensor, beta_C: torch.Tensor, form: str | None = None) -> torch.Tensor:
    """x + sin²(x · exp(alpha)) / exp(beta). See `snake.snake_beta`."""
    if choose(x_NCL, form) == "torch":
        return snake.snake_beta(x_NCL, alpha_C, beta_C)
    from omni_runtime.kernels import snake_triton

    return snake_triton.snake_beta(x_NCL, alpha_C, beta_C)


def causal_conv(
    x_NCL: torch.Tensor,
    state_NCP: torch.Tensor,
    weight_KOC: torch.Tensor,
    bias_O: torch.Tensor | None = None,
    dilation: int = 1,
    snake: conv.Snake | None = None,
    form: str | None = None,
) -> Pair:
    """A causal convolution that goes on where the last chunk ended; `pack` makes the weight. See `conv.causal_conv`."""
    if choose(x_NCL, form) == "torch":
        return conv.causal_conv(x_NCL, state_NCP, weight_KOC, bias_O, dilation, snake)
    from omni_runtime.kernels import conv_triton

    return conv_triton.causal_conv(x_NCL, state_NCP, weight_KOC, bias_O, dilation, snake)


def causal_transposed_conv(
    x_NCL: torch.Tensor,
    state_NCP: torch.Tensor,
    weight_JQC: torch.Tensor,
    stride: int,
    bias_O: torch.Tensor | None = None,
    snake: conv.Snake | None = None,
    form: str | None = None,
) -> Pair:
    """Its transposed twin; `pack_transposed` makes the weight. See `conv.causal_transposed_conv`."""
    if choose(x_NCL, form) == "torch":
        return conv.causal_transposed_conv(x_NCL, state_NCP, weight_JQC, stride, bias_O, snake)
    from omni_runtime.kernels import conv_triton

    return conv_triton.causal_transposed_conv(x_NCL, state_NCP, weight_JQC, stride, bias_O, snake)


def convnext_block(
    x_NCL: torch.Tensor, state_NCP: torch.Tensor, weights: ConvNeXt, invariant: bool = False, form: str | None = None
) -> Pair:
    """A causal ConvNeXt block that goes on where the last chunk ended. See `convnext.convnext_block`."""
    if choose(x_NCL, form) == "torch":
        return convnext.convnext_block(x_NCL, state_NCP, weights, invariant)
    from omni_runtime.kernels import convnext_triton

    return convnext_triton.convnext_block(x_NCL, state_NCP, weights, invariant)
