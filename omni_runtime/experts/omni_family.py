"""What a family of omni models tells the experts that all of them share: `omni_prepare` and `omni_encoders`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from omni_runtime.experts.encoder_layers import Grid, Seen
from omni_runtime.weights.omni_folder import Tensors
from omni_runtime.weights.omni_parts import AudioShape, OmniShape, VisionShape


class Hears(Protocol):
    """An audio encoder."""

    @property
    def config(self) -> AudioShape: ...
    @property
    def device(self) -> torch.device: ...

    def encode(self, mels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Vectors [N, D] for the log-mel frames [B, T] of each sound."""


class Sees(Protocol):
    """A vision encoder."""

    @property
    def config(self) -> VisionShape: ...
    @property
    def device(self) -> torch.device: ...

    def encode(self, pictures: Sequence[tuple[torch.Tensor, Grid]]) -> list[Seen]:
        """What the patches [T, X] of each picture or clip become."""


class Opened(Protocol):
    """A folder of weights, as `weights.omni_folder.TensorFolder` is one."""

    @property
    def config(self) -> OmniShape: ...

    def named(self, prefix: str) -> Tensors:
        """All tensors under a prefix, by what follows it."""


@dataclass(frozen=True)
class OmniFamily:
    """A family. Encoders are made of (config, weights, device, layout)."""

    architectures: tuple[str, ...]  # as config.json names them
    kind: str  # its model_type there
    read: Callable[[Path], OmniShape]  # of config.json and nothing else
    open: Callable[[Path], Opened]
    hearing: Callable[[Any, Tensors, str, str], Hears]
    seeing: Callable[[Any, Tensors, str, str], Sees]
    audio_tokens: Callable[[int], int]  # vectors for a sound of so many mel frames
    audio_end: str  # how the token is spelt that ends a sound
    least: int = 1  # mel frames of a sound that has a vector
    silence: bool = False  # see `log_mel`
    user_turns: Callable[[Sequence[int], Any], list[int]] | None = None  # places that a talker hears; None: no port "turns"
