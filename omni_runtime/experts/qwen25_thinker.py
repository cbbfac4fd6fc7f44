"""The thinker of Qwen2.5-Omni as an expert: a text model with media, whose port "hidden" is what its talker is fed.

Suffixes: N tokens of a step, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from omni_runtime.experts.media_lm import MediaLM
from omni_runtime.experts.qwen25_talker import spoken
from omni_runtime.work import ArStep


class Thinker(MediaLM):
    """The expert."""

    def taps_of(self, steps: Sequence[ArStep]) -> tuple[int, ...]:
        return (0,) if any(step.hidden for step in steps) else ()

    def handed(self, step: ArStep, hidden_ND: torch.Tensor, taps: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """What was fed, without media, and the last state."""
        first, stop = step.start, step.start + len(step.tokens)
        spans = [range(max(i.at, first) - first, min(i.at + i.count, stop) - first) for i in step.insets]
        return spoken(taps[0], hidden_ND, [row for span in spans for row in span])
