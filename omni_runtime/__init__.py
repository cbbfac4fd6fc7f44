"""A runtime in which an omni model's loops are visible."""

from __future__ import annotations

import pathlib

from omni_runtime.errors import (
    CardError,
    CheckpointError,
    EngineStopped,
    ExecutorLost,
    MissingExtra,
    OmniError,
    Overloaded,
    ProgramError,
    RequestCancelled,
    RequestError,
    RequestFailed,
    RequestRefused,
    RequestTooLarge,
)

__all__ = [
    "CardError",
    "CheckpointError",
    "EngineStopped",
    "ExecutorLost",
    "MissingExtra",
    "OmniError",
    "Overloaded",
    "ProgramError",
    "RequestCancelled",
    "RequestError",
    "RequestFailed",
    "RequestRefused",
    "RequestTooLarge",
]

_ROOT = pathlib.Path(__file__).resolve().parent.parent
if (_ROOT / "pyproject.toml").exists():  # a bare checkout: cards/, programs/ and kernels/ lie beside us
    __path__.append(str(_ROOT))
