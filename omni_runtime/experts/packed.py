"""Arrays of fixed shapes in one piece of memory, so that the inputs of a graph are one copy.

Offsets are multiples of 64 bytes, as kernels that load 16 bytes at once want them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
ALIGN = 64


class Layout:
    """Where each of some arrays lies.

    Args:
        arrays: of the shapes and dtypes that all later ones have.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._places: dict[str, tuple[int, int, torch.dtype, tuple[int, ...]]] = {}
        self.nbytes = 0
        for name, array in arrays.items():
            kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
            self._places[name] = (self.nbytes, self.nbytes + array.nbytes, kind, array.shape)
            self.nbytes += -(-array.nbytes // ALIGN) * ALIGN

    def pack(self, arrays: Mapping[str, Array]) -> Array:
        """uint8: all of them. They must be those of the layout."""
        found = np.zeros(self.nbytes, np.uint8)
        assert arrays.keys() == self._places.keys(), f"{sorted(arrays)} for a layout of {sorted(self._places)}"
        for name, (low, high, _, shape) in self._places.items():
            array = arrays[name]
            assert array.shape == shape, f"{name}: {array.shape} for a layout of {shape}"
            found[low:high].view(array.dtype).reshape(shape)[...] = array
        return found

    def views(self, packed: torch.Tensor) -> dict[str, torch.Tensor]:
        """What `pack` made, as tensors in its memory."""
        return {name: packed[low:high].view(kind).view(shape) for name, (low, high, kind, shape) in self._places.items()}
