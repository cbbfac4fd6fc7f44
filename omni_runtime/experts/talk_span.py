"""What talkers are asked for and what they give: vectors of a sequence, and perhaps a frame of codes after the last of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from omni_runtime.draw import Draw
from omni_runtime.experts.decoder import Given, Span
from omni_runtime.experts.edits import History
from omni_runtime.experts.kv_cache import Cache


@dataclass(frozen=True)
class TalkSpan:
    """Vectors of one sequence, and perhaps a frame after the last of them."""

    cache: Cache
    start: int
    vectors_TD: torch.Tensor
    talk: Draw  # how code 0 is drawn
    frame: int = -1  # which frame of the answer to draw; -1: none
    predict: Draw | None = None  # how the other codes are; None: as code 0
    history: History | None = None  # codes 0 of the answer so far, for penalties
    positions_3T: torch.Tensor | None = None

    @property
    def fed(self) -> Span:
        """The same for a decoder."""
        return Span(self.cache, self.start, (), self.frame >= 0, Given(self.vectors_TD, self.positions_3T))


@dataclass(frozen=True)
class Talked:
    """What a span gave."""

    code: int  # code 0, or -1
    frame: tuple[int, ...]  # all codes; empty where the answer ends or nothing was drawn


class Talking(Protocol):
    """Spans whose codes are drawn on a device and on their way."""

    def collect(self) -> list[Talked]:
        """What each gave; waits for it, and queues nothing. Raises as `talk`."""
        ...
