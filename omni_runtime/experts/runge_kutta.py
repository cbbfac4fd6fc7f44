"""An ODE by Runge and Kutta's 3/8 rule (Kutta 1901), one velocity at a time: who asks for the next one may wait between.

Suffixes: T, M: whatever x has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Trajectory:
    """Where an ODE stands: never changed, only replaced."""

    x_TM: torch.Tensor  # at the beginning of the step
    slopes: tuple[torch.Tensor, ...] = ()  # velocities of this step so far

    def point(self, width: float) -> torch.Tensor:
        """Where the next velocity is wanted; the step is so wide."""
        k = self.slopes
        if not k:
            return self.x_TM
        if len(k) == 1:
            return self.x_TM + width / 3 * k[0]
        if len(k) == 2:
            return self.x_TM + width * (k[1] - k[0] / 3)
        return self.x_TM + width * (k[0] - k[1] + k[2])

    def after(self, velocity_TM: torch.Tensor, width: float) -> Trajectory:
        """With that velocity: the fourth ends the step."""
        if len(self.slopes) < 3:
            return replace(self, slopes=(*self.slopes, velocity_TM))
        first, second, third = self.slopes
        return Trajectory(self.x_TM + width / 8 * (first + 3 * (second + third) + velocity_TM))
