"""The weights of a Qwen3-Omni folder, part by part, one tensor at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from omni_runtime.errors import CheckpointError, CheckpointWarning
from omni_runtime.weights.decoder_config import parameter_shapes
from omni_runtime.weights.folder import OpenFiles
from omni_runtime.weights.qwen3_omni_config import read_omni_config
from omni_runtime.weights.qwen3_omni_parts import OmniConfig, TalkerConfig, decoder_names, tensor_shapes
from omni_runtime.weights.tensor_files import check_entries, entries

PARTS = ("thinker.", "talker.", "code2wav.")  # what stands under these names and is not known takes part in what is computed

Tensors = Mapping[str, torch.Tensor]


class OmniFolder:
    """A folder whose tensors are all accounted for, from headers alone. Nothing is read until a part is asked for.

    A folder that has no voice may hold the tensors of one: they are noted by a `CheckpointWarning`, as are tensors that stand
    apart.

    Raises:
        CheckpointError: anything of `read_omni_config`, `entries` and `check_entries`, or a tensor under a part's name that the
            configuration does not speak of.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: OmniConfig = read_omni_config(folder)
        shapes = tensor_shapes(self.config)
        self._entries = entries(folder)
        check_entries(folder, self._entries, shapes)
        silent = () if self.config.talker is not None else PARTS[1:]
        others = sorted(set(self._entries) - set(shapes))
        odd = [name for name in others if name.startswith(PARTS) and not name.startswith(silent or "\0")]
        if odd:
            raise CheckpointError(
                f"{self._entries[odd[0]].path}: tensor {odd[0]!r} and {len(odd) - 1} others are no part of the model that "
                "config.json describes; without them something else would be computed, so one of the files is another model's"
            )
        if others:
            note = f"{folder}: tensor {others[0]!r} and {len(others) - 1} others are not used"
            warnings.warn(note, CheckpointWarning, stacklevel=2)
        self._files = OpenFiles()
        self._names = tuple(shapes)

    def __len__(self) -> int:
        return len(self._names)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor by its name in the checkpoint, in the type it is stored in."""
        return self._files.read(name, self._entries[name])

    def named(self, prefix: str) -> Tensors:
        """All tensors under a prefix, by what follows it."""
        names = {name.removeprefix(prefix): name for name in self._names if name.startswith(prefix)}
        return _Lazy({short: partial(self.tensor, name) for short, name in names.items()})

    def thinker(self) -> Tensors:
        """By the names of `parameter_shapes`."""
        return self._decoder(decoder_names(self.config.thinker, "thinker.", "embed_tokens", "thinker.lm_head"))

    def talker(self) -> Tensors:
        """By the names of `parameter_shapes`."""
        return self._decoder(decoder_names(_there(self.config.talker).decoder, "talker.", "codec_embedding", "talker.codec_head"))

    def predictor(self) -> Tensors:
        """By the names of `parameter_shapes`: the embeddings of all groups are one table."""
        config = _there(self.config.talker)
        at = "talker.code_predictor."
        found: dict[str, Callable[[], torch.Tensor]] = {
            name: partial(self.tensor, at + name) for name in parameter_shapes(config.predictor)
        }
        tables = [f"{at}model.codec_embedding.{i}.weight" for i in range(config.groups - 1)]
        found["model.embed_tokens.weight"] = lambda: torch.cat([self.tensor(name) for name in tables])
        return _Lazy(found)

    def _decoder(self, names: Mapping[str, str]) -> Tensors:
        return _Lazy({ours: partial(self.tensor, name) for ours, name in names.items()})


def _there(part: TalkerConfig | None) -> TalkerConfig:
    assert part is not None, "this folder has no voice: ask its configuration first"
    return part


class _Lazy(Tensors):
    """Tensors that are made when asked for."""

    def __init__(self, make: Mapping[str, Callable[[], torch.Tensor]]) -> None:
        self._make = make

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._make[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)
