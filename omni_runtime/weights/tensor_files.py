"""The safetensors files of a Hugging Face folder: which tensors are where, in what shape, and whether that is the model.

Only headers are read here (safetensors: eight bytes of length, then JSON), so a folder of any size is checked in milliseconds and
without torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from omni_runtime.errors import CheckpointError
from omni_runtime.weights.decoder_config import DecoderConfig, parameter_shapes
from omni_runtime.weights.json_file import Fields, read_json

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes of an element
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

# Tables that old versions stored beside the weights; they follow from the configuration.
_DERIVED = re.compile(r"(?:model\.)?(?:layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$")
# Extra tensors under these names would take part in what the decoder computes, or say that the configuration is another's.
_OURS = ("model.", "lm_head.")


class Entry(NamedTuple):
    """Where a tensor is."""

    path: Path
    shape: tuple[int, ...]
    dtype: str  # as safetensors names it


class Inventory(NamedTuple):
    """The tensors of a decoder by name, and remarks about what else is there."""

    entries: dict[str, Entry]
    head: Entry | None  # of a tied model that stores one all the same
    notes: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Of the tensors as they are stored."""
        return sum(_product(entry.shape) * DTYPES[entry.dtype] for entry in self.entries.values())


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def take_stock(folder: Path, config: DecoderConfig) -> Inventory:
    """Accounts for every parameter of a decoder and for every tensor of a folder.

    A tensor that the decoder does not have is ignored if it follows from the configuration (`rotary_emb.inv_freq`), noted if it
    stands apart (a value head, a vision tower), and refused if it stands under `model.` or `lm_head.`: there the published model
    computes something with it that would be left out. A stored head of a tied model is noted when the weights are read, if it
    differs from the embedding: the configuration is followed.

    Raises:
        CheckpointError: no safetensors, a file or shard is missing or damaged, a tensor is missing, is in no shard or in two,
            has another shape than the configuration says, or is of a type that is no floating-point number.
    """
    found = entries(folder)
    shapes = parameter_shapes(config)
    check_entries(folder, found, shapes)
    head = found.get(HEAD) if config.tied else None
    others = sorted(
        name for name in found if name not in shapes and not _DERIVED.search(name) and not (config.tied and name == HEAD)
    )
    for name in others:
        if name.startswith(_OURS):
            raise CheckpointError(
                f"{found[name].path}: tensor {name!r} and {sum(o.startswith(_OURS) for o in others) - 1} others are no part of "
                "the decoder that config.json describes; without them something else would be computed, so one of the files is "
                "another model's"
            )
    notes = (f"{folder}: tensor {others[0]!r} and {len(others) - 1} others are not used",) if others else ()
    return Inventory({name: found[name] for name in shapes}, head, notes)


def check_entries(folder: Path, found: Mapping[str, Entry], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Whether all these tensors are there, in their shapes and in a type that is read.

    Raises:
        CheckpointError: one is not.
    """
    for name, shape in shapes.items():
        entry = found.get(name)
        if entry is None:
            raise CheckpointError(_missing(folder, name, sum(other not in found for other in shapes) - 1, found))
        if entry.shape != shape:
            raise CheckpointError(
                f"{entry.path}: tensor {name!r} has shape {entry.shape}, config.json asks for {shape}; "
                "one of the files is another model's"
            )
        if entry.dtype not in DTYPES:
            raise CheckpointError(
                f"{entry.path}: tensor {name!r} is of type {entry.dtype}, only {', '.join(DTYPES)} are read; "
                "use the folder before quantisation"
            )


def _missing(folder: Path, name: str, more: int, found: Mapping[str, Entry]) -> str:
    remedy = "fetch the files again"
    if name == HEAD:
        remedy = 'if the head is the embedding, config.json must say "tie_word_embeddings": true'
    elif ".mlp.experts." in name and any(other.endswith("mlp.experts.gate_up_proj") for other in found):
        remedy = "experts fused into one tensor are not read, save them one by one as transformers does"
    return f"{folder}: tensor {name!r} is missing, and {more} others; {remedy}"


def entries(folder: Path) -> dict[str, Entry]:
    """Every tensor of a folder.

    Raises:
        CheckpointError: no safetensors, or a file or shard is missing, damaged, or contradicts the index.
    """
    whole, index = folder / WHOLE, folder / INDEX
    if whole.is_file() and index.is_file():
        raise CheckpointError(f"{folder}: {WHOLE} and {INDEX} are both there; remove the one that is not meant")
    if whole.is_file():
        return _header(whole)
    if index.is_file():
        return _shards(folder, index)
    if pickles := sorted(path.name for path in folder.glob("pytorch_model*.bin")):
        raise CheckpointError(f"{folder}: {pickles[0]} is a pickle, which can run code; convert the weights to safetensors")
    raise CheckpointError(f"{folder}: neither {WHOLE} nor {INDEX} is there; fetch the weights")


def _shards(folder: Path, index: Path) -> dict[str, Entry]:
    places = Fields(index, read_json(index)).inner("weight_map")
    if places is None or not places.values:
        raise CheckpointError(f"{index}: weight_map: is missing or empty; fetch the file again")
    names = sorted({places.text(tensor) for tensor in places.values})
    headers: dict[str, dict[str, Entry]] = {}
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{index}: {name!r} is no name of a file in this folder; fetch the index again")
        if not (folder / name).is_file():
            lost = next(tensor for tensor in places.values if places.values[tensor] == name)
            raise CheckpointError(f"{folder}: shard {name!r}, which holds tensor {lost!r}, is missing; fetch that file")
        headers[name] = _header(folder / name)
    found: dict[str, Entry] = {}
    for name, header in headers.items():
        for tensor, entry in header.items():
            if tensor in found:
                raise CheckpointError(
                    f"{folder}: tensor {tensor!r} is in {found[tensor].path.name} and in {name}; fetch both again"
                )
            found[tensor] = entry
    for tensor, name in places.values.items():
        if tensor not in headers[name]:
            where = f"it is in {found[tensor].path.name}" if tensor in found else "no shard holds it"
            raise CheckpointError(
                f"{index}: tensor {tensor!r} should be in {name}, but {where}; fetch the index and {name} again"
            )
    return found


def _header(path: Path) -> dict[str, Entry]:
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
            return {name: Entry(path, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; fetch the file again") from None
