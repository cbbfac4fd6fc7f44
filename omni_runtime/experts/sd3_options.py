"""What a card says to the experts of Stable Diffusion 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from omni_runtime.errors import CardError, CheckpointError, unknown


@dataclass(frozen=True)
class Options:
    """Options of the experts `sd3`, `sd3_text` and `sd3_vae`."""

    checkpoint: str = ""  # folder that holds model_index.json
    dtype: str = "float32"
    max_sequence_length: int = 256  # tokens that the third text encoder gives, short prompts padded


def read_options(options: Mapping[str, Any], what: str) -> Options:
    """Options out of a card's mapping.

    Raises:
        CardError: an option that nobody knows, of another type, or a dtype that does not run here.
        CheckpointError: there is no checkpoint.
    """
    known = {field.name: field for field in fields(Options)}
    for name, value in options.items():
        if name not in known:
            raise CardError(f"{what}: {unknown('option', name, known)}")
        if type(value) is not type(known[name].default):
            raise CardError(f"{what}: option {name}={value!r}, a {type(known[name].default).__name__} is needed")
    found = Options(**options)
    if found.dtype != "float32":
        raise CardError(f"{what}: option dtype={found.dtype!r}, only 'float32' is computed here so far")
    if not found.checkpoint:
        raise CheckpointError(f"{what}: the card names no checkpoint; make it with sd3('folder of a diffusers checkpoint')")
    return found
