"""A runtime in which an omni model's loops are visible."""

from __future__ import annotations

import importlib
import pathlib
import typing

from omni_runtime.errors import (
    CardError,
    CheckpointError,
    EngineStopped,
    ExecutorLost,
    LoadError,
    MissingExtra,
    OmniError,
    OutputNotAsked,
    Overloaded,
    ProgramError,
    RequestCancelled,
    RequestError,
    RequestFailed,
    RequestRefused,
    RequestTooLarge,
)

if typing.TYPE_CHECKING:
    from omni_runtime.card import (
        ArDecode,
        AudioDecode,
        DiffusionDenoise,
        Each,
        ExpertSpec,
        FlowDecode,
        FlowMatch,
        LoopSpec,
        ModelCard,
        OneShot,
        OpLimits,
        Port,
        Raster,
        Slot,
        Talk,
    )
    from omni_runtime.executors.simulated import SimulatedExecutor
    from omni_runtime.handle import Handle, Result, StreamChunk
    from omni_runtime.observe.recorder import Recorder
    from omni_runtime.program import Program
    from omni_runtime.runtime import Runtime
    from omni_runtime.sim import Simulation
    from omni_runtime.wav import WavWriter

_MODULES = {  # nothing heavy is imported before it is asked for
    "card": "ArDecode AudioDecode DiffusionDenoise Each ExpertSpec FlowDecode FlowMatch LoopSpec ModelCard OneShot OpLimits Port "
    "Raster Slot Talk",
    "handle": "Handle Result StreamChunk",
    "observe.recorder": "Recorder",
    "program": "Program",
    "runtime": "Runtime",
    "sim": "Simulation",
    "executors.simulated": "SimulatedExecutor",
    "wav": "WavWriter",
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "ArDecode",
    "AudioDecode",
    "CardError",
    "CheckpointError",
    "DiffusionDenoise",
    "Each",
    "EngineStopped",
    "ExecutorLost",
    "ExpertSpec",
    "FlowDecode",
    "FlowMatch",
    "Handle",
    "LoadError",
    "LoopSpec",
    "MissingExtra",
    "ModelCard",
    "OmniError",
    "OneShot",
    "OpLimits",
    "OutputNotAsked",
    "Overloaded",
    "Port",
    "Program",
    "ProgramError",
    "Raster",
    "Recorder",
    "RequestCancelled",
    "RequestError",
    "RequestFailed",
    "RequestRefused",
    "RequestTooLarge",
    "Result",
    "Runtime",
    "SimulatedExecutor",
    "Simulation",
    "Slot",
    "StreamChunk",
    "Talk",
    "WavWriter",
]


def __getattr__(name: str) -> typing.Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"omni_runtime.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'omni_runtime' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


_ROOT = pathlib.Path(__file__).resolve().parent.parent
if (_ROOT / "pyproject.toml").exists():  # a bare checkout: cards/, programs/ and kernels/ lie beside us
    __path__.append(str(_ROOT))
