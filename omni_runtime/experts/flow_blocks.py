"""Which block of frames stands beside which, for layers of a flow that look at their neighbours.

Strands of a batch are whole blocks, one strand after the other. What layers read of it are `tables`, made on the host and sent
to the device with the rest of a batch.

Suffixes: T frames of all strands, N blocks of all strands, B frames of a block, H heads, E head dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

Tensors = Mapping[str, torch.Tensor]


class Blocks:
    """Which block of a batch stands beside which, and which of their frames are there: `tables` of the host, to be sent."""

    def __init__(self, counts: Sequence[int], frames: Sequence[int], past: Sequence[bool], size: int) -> None:
        self.frames = torch.tensor(counts) * size
        places = [torch.arange(count * size) for count in counts]
        self.place_T = torch.cat(places)
        there = [place < length for place, length in zip(places, frames, strict=True)]
        there_NB = torch.cat(there).view(-1, size)
        self._whole = bool(there_NB.all())
        # After the blocks of all strands stand those before the first of the strands that have one.
        count = len(there_NB)
        index, at = torch.arange(count), torch.cat([torch.arange(count) for count in counts])
        left = torch.cat([torch.arange(count - 1, -1, -1) for count in counts])  # blocks after this one
        before = torch.where(at > 0, index - 1, -1)
        before[torch.nonzero(at == 0)[:, 0][torch.tensor(past)]] = count + torch.arange(sum(past))
        beside = {-1: before, 0: index, 1: torch.where(left > 0, index + 1, -1)}
        self.tables = {"there": torch.cat([there_NB, there_NB.new_ones(sum(past), size)])}
        for look, found in beside.items():
            self.tables |= {f"has {look}": found >= 0, f"beside {look}": found.clamp(min=0)}

    def seen(self, kv: torch.Tensor, looks: tuple[int, ...], sent: Tensors) -> torch.Tensor:
        """Keys and values, [2, N, H, frames, E], of all blocks that each block sees."""
        if looks == (0,):
            return kv
        return torch.cat([kv[:, sent[f"beside {look}"]] for look in looks], 3)

    def mask(self, looks: tuple[int, ...], sent: Tensors) -> torch.Tensor | None:
        """[N, 1, 1, frames seen], or None where all of them are there."""
        if looks == (0,) and self._whole:
            return None
        parts = [sent["there"][sent[f"beside {look}"]] & sent[f"has {look}"][:, None] for look in looks]
        return torch.cat(parts, 1)[:, None, None]
