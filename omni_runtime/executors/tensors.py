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


def tensors(brought: Iterable[tuple[TensorRef, Any]], device: str, own: bool = False) -> list[tuple[TensorRef, Any]]:
    """Brought arrays as tensors of an executor's own: an op may do with them what it likes.

    Args:
        own: arrays that can be written to are nobody else's, and become the tensors' memory.
    """
    found = []
    for ref, value in brought:
        if isinstance(value, np.ndarray):
            import torch

            value = torch.from_numpy(value if own and value.flags.writeable else np.array(value))  # of others torch warns
            value = value.view(torch.bfloat16) if ref.dtype == "bfloat16" else value
            value = value.to(device)
        found.append((ref, value))
    return found
