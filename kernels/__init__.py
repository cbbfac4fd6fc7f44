"""Fused operations, each in two forms: a Triton kernel, and a torch definition that says what is right.

Which form runs is decided here and nowhere else. Tensors on a GPU take the Triton kernel where triton is installed, everything
else takes the torch definition. Who names a form, by argument or by `OMNI_KERNELS=triton|torch`, gets that form or an error:
an unnoticed fallback would make every measurement and every test a guess. `adaln` and `euler` have their definition only, so far:
there is nothing to choose.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from omni_runtime.kernels import norm
from omni_runtime.kernels.adaln import gate as gate
from omni_runtime.kernels.adaln import modulate as modulate
from omni_runtime.kernels.euler import guided_euler as guided_euler

from omni_runtime.errors import MissingExtra, OmniError

FORMS = ("triton", "torch")
_TRITON = find_spec("triton") is not None
_ASKED = os.environ.get("OMNI_KERNELS", "")  # read once: looking it up costs 0.6 µs, as much again as the choice


def choose(x: torch.Tensor, form: str | None = None) -> str:
    """The form that runs for a tensor: `form` if given, else what the environment asks for, else by device.

    Raises:
        OmniError: the form that was asked for does not exist, or cannot run on this device.
        MissingExtra: triton was asked for and is not installed.
    """
    asked = form or _ASKED
    if not asked:
        return "triton" if _TRITON and x.device.type == "cuda" else "torch"  # HIP tensors are of type "cuda" too
    if asked not in FORMS:
        source = "form" if form else "OMNI_KERNELS"
        raise OmniError(f"{source}={asked!r}: unknown form of a kernel, one of {', '.join(FORMS)} needed")
    if asked == "triton":
        if not _TRITON:
            raise MissingExtra("kernels were asked for as 'triton', which is not installed: pip install 'omni_runtime[gpu]'")
        if x.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise OmniError(f"kernels were asked for as 'triton', but the tensor is on {x.device}: use 'torch', or a GPU")
    return asked


def rms_norm(x_RD: torch.Tensor, weight_D: torch.Tensor, eps: float, form: str | None = None) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight along the last axis, in the dtype of x. See `norm.rms_norm`."""
    if choose(x_RD, form) == "torch":
        return norm.rms_norm(x_RD, weight_D, eps)
    from omni_runtime.kernels import norm_triton

    return norm_triton.rms_norm(x_RD, weight_D, eps)


def add_rms_norm(
    x_RD: torch.Tensor, residual_RD: torch.Tensor, weight_D: torch.Tensor, eps: float, form: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """s = x + residual, and its norm: (norm, s), both in the dtype of x. See `norm.add_rms_norm`."""
    if choose(x_RD, form) == "torch":
        return norm.add_rms_norm(x_RD, residual_RD, weight_D, eps)
    from omni_runtime.kernels import norm_triton

    return norm_triton.add_rms_norm(x_RD, residual_RD, weight_D, eps)
