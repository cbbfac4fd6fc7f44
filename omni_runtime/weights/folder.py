"""The weights of a Hugging Face folder, one tensor at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from omni_runtime.errors import CheckpointError, CheckpointWarning
from omni_runtime.weights import memory
from omni_runtime.weights.folder_config import read_config
from omni_runtime.weights.tensor_files import EMBEDDING, HEAD, Entry, take_stock


class OpenFiles:
    """Safetensors files, mapped into memory when something is first read from them."""

    def __init__(self) -> None:
        self._files: dict[Path, Any] = {}

    def read(self, name: str, entry: Entry) -> torch.Tensor:
        """A tensor, in the type it is stored in.

        Raises:
            CheckpointError: the file cannot be read any more.
        """
        try:
            if entry.path not in self._files:
                self._files[entry.path] = safe_open(entry.path, framework="pt", device="cpu")
            tensor: torch.Tensor = self._files[entry.path].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{entry.path}: tensor {name!r} cannot be read: {error}; fetch the file again") from None
        return tensor


class FolderWeights(Mapping[str, torch.Tensor]):
    """The tensors of a folder under the names of `parameter_shapes`, in the type they are stored in, read when asked for.

    Files are mapped into memory, so what a decoder has converted can be dropped by the system at any time. Remarks of
    `take_stock` and a head that contradicts its config become a `CheckpointWarning` each.

    Args:
        folder: holds config.json and safetensors, in one piece or in shards.
        layout: of the decoder's linear layers, for the check of memory.
        max_bytes: memory that weights and caches may take; 0 asks the system what is free.
        each: bytes of a number in memory, for that check.

    Raises:
        CheckpointError: anything of `read_config`, `memory.check` and `take_stock`, in this order: memory is checked before the
            first file of weights is opened.
    """

    def __init__(self, folder: Path, layout: str = "auto", max_bytes: int = 0, each: int = 4) -> None:
        self.folder = folder
        self.architecture, self.config, _ = read_config(folder)
        memory.check(folder, self.config, layout, max_bytes, each)
        stock = take_stock(folder, self.config)
        self._entries = stock.entries
        self._files = OpenFiles()
        notes = list(stock.notes)
        if stock.head is not None and not self._equal(stock.head, stock.entries[EMBEDDING]):
            notes.append(
                f"{stock.head.path}: tensor {HEAD!r} differs from the embedding, but config.json says tie_word_embeddings; "
                "the embedding is used, as it says"
            )
        for note in notes:
            warnings.warn(note, CheckpointWarning, stacklevel=2)

    def _equal(self, head: Entry, embedding: Entry) -> bool:
        same = head.shape == embedding.shape and head.dtype == embedding.dtype
        return same and torch.equal(self._read(HEAD, head), self._read(EMBEDDING, embedding))

    def _read(self, name: str, entry: Entry) -> torch.Tensor:
        return self._files.read(name, entry)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._read(name, self._entries[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
