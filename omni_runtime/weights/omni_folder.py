"""The weights of an omni folder, part by part, one tensor at a time."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from omni_runtime.errors import CheckpointError, CheckpointWarning
from omni_runtime.weights.folder import OpenFiles
from omni_runtime.weights.omni_parts import Shapes
from omni_runtime.weights.tensor_files import check_entries, entries

Tensors = Mapping[str, torch.Tensor]


class TensorFolder:
    """A folder whose tensors are all accounted for, from headers alone. Nothing is read until a part is asked for.

    A folder that has no voice may hold the tensors of one: they are noted by a `CheckpointWarning`, as are tensors that stand
    apart.

    Args:
        folder: holds config.json and safetensors.
        shapes: what it must hold.
        parts: what stands under these names and is not known takes part in what is computed.
        silent: those of them that this folder's configuration has not.
        derived: tables that follow from the configuration and may be stored all the same.

    Raises:
        CheckpointError: anything of `entries` and `check_entries`, or a tensor under a part's name that the configuration does
            not speak of.
    """

    def __init__(
        self, folder: Path, shapes: Shapes, parts: tuple[str, ...], silent: tuple[str, ...] = (), derived: str | None = None
    ) -> None:
        self.folder = folder
        self._entries = entries(folder)
        check_entries(folder, self._entries, shapes)
        known = re.compile(derived) if derived else None
        others = sorted(name for name in set(self._entries) - set(shapes) if not (known and known.search(name)))
        odd = [name for name in others if name.startswith(parts) and not name.startswith(silent or "\0")]
        if odd:
            raise CheckpointError(
                f"{self._entries[odd[0]].path}: tensor {odd[0]!r} and {len(odd) - 1} others are no part of the model that "
                "config.json describes; without them something else would be computed, so one of the files is another model's"
            )
        if others:
            note = f"{folder}: tensor {others[0]!r} and {len(others) - 1} others are not used"
            warnings.warn(note, CheckpointWarning, stacklevel=3)
        self._files = OpenFiles()
        self._names = tuple(shapes)

    def __len__(self) -> int:
        return len(self._names)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor by its name in the checkpoint, in the type it is stored in."""
        return self._files.read(name, self._entries[name])

    def named(self, prefix: str) -> Tensors:
        """All tensors under a prefix, by what follows it."""
        return self.under({name.removeprefix(prefix): name for name in self._names if name.startswith(prefix)})

    def under(self, names: Mapping[str, str]) -> Tensors:
        """Tensors by other names."""
        return Lazy({ours: partial(self.tensor, name) for ours, name in names.items()})


class Lazy(Tensors):
    """Tensors that are made when asked for."""

    def __init__(self, make: Mapping[str, Callable[[], torch.Tensor]]) -> None:
        self._make = make

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._make[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)
