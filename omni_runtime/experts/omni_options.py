"""What a card says to the experts of an omni folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from omni_runtime.errors import CardError, CheckpointError, unknown


@dataclass(frozen=True)
class Options:
    """Options of each of the experts."""

    checkpoint: str = ""  # folder that holds config.json
    linear: str = "auto"  # see `linear.LAYOUTS`
    family: str = ""  # "module:NAME" of an `OmniFamily`; "": the one of ours that config.json names

    @property
    def folder(self) -> Path:
        """Where the checkpoint is."""
        return Path(self.checkpoint)


def read_options(options: Mapping[str, Any], what: str) -> Options:
    """Options out of a card's mapping.

    Raises:
        CardError: an option that nobody knows, or of another type.
        CheckpointError: there is no checkpoint.
    """
    known = {field.name for field in fields(Options)}
    for name, value in options.items():
        if name not in known:
            raise CardError(f"{what}: {unknown('option', name, known)}")
        if type(value) is not str:
            raise CardError(f"{what}: option {name}={value!r}, a text is needed")
    found = Options(**options)
    if not found.checkpoint:
        raise CheckpointError(f"{what}: the card names no checkpoint; give the folder of one")
    return found
