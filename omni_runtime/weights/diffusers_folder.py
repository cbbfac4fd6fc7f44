"""A component of a model folder as `diffusers` writes it: `config.json` and safetensors files, in one piece or in shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from omni_runtime.errors import CheckpointError
from omni_runtime.weights.json_file import read_json

WEIGHTS = "diffusion_pytorch_model.safetensors"


class FolderWeights(Mapping[str, torch.Tensor]):
    """The tensors of a component, read one at a time when asked for.

    Args:
        folder: holds `diffusion_pytorch_model.safetensors`, or its `.index.json` and the shards that this names.
        shapes: name and shape of every tensor that the network needs.

    Raises:
        CheckpointError: a file is missing or damaged, or a tensor is missing, surplus, or of another shape.
    """

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._files: dict[str, Any] = {}
        for path in _shards(folder):
            try:
                file = safe_open(path, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: {error}") from None
            for name in file.keys():  # noqa: SIM118  (not a mapping)
                if name in self._files:
                    raise CheckpointError(f"{path}: tensor {name!r} is in another shard too; fetch the files again")
                self._files[name] = file
        self._account(folder, shapes)

    def _account(self, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if missing := [name for name in shapes if name not in self._files]:
            raise CheckpointError(f"{folder}: tensor {missing[0]!r} is missing, and {len(missing) - 1} others")
        if surplus := [name for name in self._files if name not in shapes]:
            more = f"tensor {surplus[0]!r} and {len(surplus) - 1} others belong to no part of the network"
            raise CheckpointError(f"{folder}: {more} that its config.json describes")
        for name, shape in shapes.items():
            if (found := tuple(self._files[name].get_slice(name).get_shape())) != shape:
                raise CheckpointError(f"{folder}: tensor {name!r} has shape {found}, its config.json asks for {shape}")

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _shards(folder: Path) -> list[Path]:
    index = folder / f"{WEIGHTS}.index.json"
    if not index.is_file():
        if not (folder / WEIGHTS).is_file():
            raise CheckpointError(f"{folder}: neither {WEIGHTS} nor {index.name} is there")
        return [folder / WEIGHTS]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index}: 'weight_map' is missing or empty; fetch the file again")
    paths = [folder / str(name) for name in sorted(set(names.values()))]
    for path in paths:
        if path.parent != folder or not path.is_file():
            raise CheckpointError(f"{index}: it names {path.name!r}, which is not in its folder; fetch that shard")
    return paths
