"""Arrays to a device, all in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


class Staging:
    """Sends arrays to one device."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)

    def send(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, torch.Tensor]:
        """The same as tensors there."""
        return {name: torch.from_numpy(array).to(self._device) for name, array in arrays.items()}


class Reading:
    """Tensors on their way to the host."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = tensors

    def get(self) -> tuple[torch.Tensor, ...]:
        """Them, once they are there."""
        return tuple(tensor.cpu() for tensor in self._tensors)
