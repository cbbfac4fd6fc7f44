"""What the layouts of omni checkpoints share: tokens that stand for media, and the names and shapes of usual layers.

Loads without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

from omni_runtime.weights.decoder_config import DecoderConfig, parameter_shapes

Shapes = dict[str, tuple[int, ...]]
PARTS = ("thinker", "talker")  # whose settings a generation_config.json may name


@dataclass(frozen=True)
class MediaTokens:
    """Ids of the thinker's vocabulary that stand for media."""

    audio: int
    image: int
    video: int
    audio_start: int
    vision_start: int


@dataclass(frozen=True)
class Timing:
    """How positions of three numbers run through clips. Qwen3-Omni's are the defaults."""

    a_second: int
    whole: bool = False  # times of a clip's steps are cut to whole positions
    chunk: int = 0  # a clip and its sound take turns by so many positions; 0: by each step of the clip
    marks: int = 2  # positions that the two tokens before and after a clip with its sound take


class AudioShape(Protocol):
    """What is asked of an audio encoder from outside of it."""

    @property
    def mels(self) -> int: ...


class VisionShape(Protocol):
    """What is asked of a vision encoder from outside of it."""

    @property
    def patch(self) -> int: ...
    @property
    def merge(self) -> int: ...
    @property
    def temporal(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def pixels(self) -> int:
        """Numbers of one flattened patch."""


class OmniShape(Protocol):
    """What the configurations of all families have."""

    @property
    def thinker(self) -> DecoderConfig: ...
    @property
    def audio(self) -> AudioShape: ...
    @property
    def vision(self) -> VisionShape: ...
    @property
    def tokens(self) -> MediaTokens: ...
    @property
    def timing(self) -> Timing: ...


def decoder_names(config: DecoderConfig, prefix: str, embedding: str, head: str) -> dict[str, str]:
    """Name in the checkpoint by name of `parameter_shapes`, in its order."""
    special = {"model.embed_tokens.weight": f"{prefix}model.{embedding}.weight", "lm_head.weight": f"{head}.weight"}
    return {name: special.get(name, prefix + name) for name in parameter_shapes(config)}


def count_by(shapes: Shapes, prefixes: Mapping[str, str]) -> dict[str, int]:
    """How many numbers each part has; a name belongs to the longest prefix that fits."""
    counts = dict.fromkeys(prefixes, 0)
    for name, shape in shapes.items():
        part = max((part for part, prefix in prefixes.items() if name.startswith(prefix)), key=lambda p: len(prefixes[p]))
        counts[part] += prod(shape)
    return {part: count for part, count in counts.items() if count}


def dense(at: str, out: int, into: int, bias: bool = True) -> Shapes:
    """A linear layer."""
    return {f"{at}.weight": (out, into)} | ({f"{at}.bias": (out,)} if bias else {})


def norm(at: str, width: int, bias: bool = True) -> Shapes:
    """A layer norm, or an RMS norm."""
    return {f"{at}.{part}": (width,) for part in (("weight", "bias") if bias else ("weight",))}


def conv(at: str, *shape: int, out: int | None = None, bias: bool = True) -> Shapes:
    """A convolution; `out` where it is transposed."""
    return {f"{at}.weight": shape} | ({f"{at}.bias": (shape[0] if out is None else out,)} if bias else {})


def snake(at: str, channels: int) -> Shapes:
    """A Snake activation of two parameters."""
    return {f"{at}.alpha": (channels,), f"{at}.beta": (channels,)}
