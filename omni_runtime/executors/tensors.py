"""Tensors as numpy arrays and back. An array stands for a bfloat16 tensor as its bits, int16: numpy has no such type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from omni_runtime.work import TensorRef

Array = np.ndarray[Any, Any]


def arrays(tensors: Sequence[Any]) -> list[Array]:
    """Copies on the host: of tensors on a CPU the same memory, of others one transfer for all that are alike."""
    found: list[Any] = list(tensors)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for at, tensor in enumerate(tensors):
        if isinstance(tensor, np.ndarray):
            continue
        if tensor.device.type == "cpu":
            found[at] = _bits(tensor.detach())
        else:
            alike.setdefault((tensor.device, tensor.dtype, tuple(tensor.shape)), []).append(at)
    for places in alike.values():
        import torch

        stacked = _bits(torch.stack([tensors[at].detach() for at in places]).cpu())
        for at, array in zip(places, stacked, strict=True):
            found[at] = array
    return found


def _bits(tensor: Any) -> Array:
    import torch

    array: Array = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def tensors(brought: Iterable[tuple[TensorRef, Any]], device: str) -> list[tuple[TensorRef, Any]]:
    """Brought arrays as tensors of an executor's own: an op may do with them what it likes."""
    found = []
    for ref, value in brought:
        if isinstance(value, np.ndarray):
            import torch

            value = torch.from_numpy(np.array(value))  # a copy: torch warns of arrays that must not be written to
            value = value.view(torch.bfloat16) if ref.dtype == "bfloat16" else value
            value = value.to(device)
        found.append((ref, value))
    return found
