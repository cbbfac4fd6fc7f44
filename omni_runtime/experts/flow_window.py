"""What flows are asked for and what they give: one velocity of a stretch of frames, and what the next one needs to know of it.

Suffixes: T frames of a window, M numbers of a frame, D width, H heads, E head dimension, B frames of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

UNGUIDED = 1e-5  # guidance below it has one branch


@dataclass(frozen=True)
class Window:
    """A stretch of mel frames at one time of its ODE. It begins with a block.

    `past` and what is kept of a block: [Y, 2, branches, H, B, E], keys and values of the Y layers that look back.
    """

    x_TM: torch.Tensor
    time: float  # 0 is noise, 1 is sound
    codes: Sequence[int]  # `repeats` frames each
    voice_2D: torch.Tensor
    guidance: float = 0.5
    first: int = 0  # number of its first frame, which positions count from
    past: torch.Tensor | None = None  # of the block before, in the same call of its own ODE; None: there is none
    keep: int = 0  # block of the window, from 1 on, of which that is kept; 0: of none

    @property
    def branches(self) -> int:
        """1, or 2 where what nobody would say is computed as well."""
        return 2 if self.guidance >= UNGUIDED else 1


class Moved(NamedTuple):
    """What a call gives for a window."""

    velocity_TM: torch.Tensor
    kept: torch.Tensor | None
