"""Whose voice it is, and whether there is one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from omni_runtime.errors import CheckpointError, RequestError, unknown

T = TypeVar("T")


def by_name(speakers: Mapping[str, T], name: str) -> T:
    """A speaker, in whatever case the name is written; "" is the first.

    Raises:
        RequestError: there is none of that name.
    """
    if not name and speakers:
        return next(iter(speakers.values()))
    for known, found in speakers.items():
        if known.lower() == name.lower():
            return found
    raise RequestError(f"speaker: {unknown('speaker', name, speakers)}")


def voiced(part: T | None, folder: Path) -> T:
    """The configuration of a part of a voice, if a folder has one.

    Raises:
        CheckpointError: it has none.
    """
    if part is None:
        raise CheckpointError(
            f"{folder}: enable_audio_output is false: this checkpoint has no voice, only text can be asked of it"
        )
    return part
