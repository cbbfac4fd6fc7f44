"""ECAPA-TDNN (Desplanques et al. 2020): a mel spectrogram of somebody who speaks to one vector.

A convolution, blocks of Res2Net with squeeze and excitation, all their outputs together, and a mean and deviation over time in
which an attention weighs the frames. Convolutions see the spectrogram mirrored at its ends.

Suffixes: C channels, T frames, M mels, D numbers of the vector.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from omni_runtime.experts.encoder_layers import Parts
from omni_runtime.weights.qwen2_5_omni_parts import SpeakerConfig

LEAST = 1e-12  # of a variance


class Ecapa:
    """Resident weights; `parts` gives them by the names of the checkpoint below `at`."""

    def __init__(self, config: SpeakerConfig, parts: Parts, at: str) -> None:
        self.config, self._parts, self._at = config, parts, at

    def __call__(self, mel_TM: torch.Tensor) -> torch.Tensor:
        """vector_D. It runs once a speaker, so nothing is kept of its weights."""
        c = self.config
        x_CT = self._heard("blocks.0.conv", mel_TM.T, c.dilations[0])
        found = []
        for i in range(1, len(c.channels) - 1):
            x_CT = x_CT + self._block(f"blocks.{i}", x_CT, c.dilations[i])
            found.append(x_CT)
        x_CT = self._heard("mfa.conv", torch.cat(found), c.dilations[-1])
        mean_C, deviation_C = _statistics(x_CT, torch.full_like(x_CT, 1 / x_CT.shape[1]))
        whole_CT = torch.cat([x_CT, mean_C[:, None].expand_as(x_CT), deviation_C[:, None].expand_as(x_CT)])
        weight_CT = self._conv("asp.conv", self._heard("asp.tdnn.conv", whole_CT).tanh()).softmax(1)
        pooled_C = torch.cat(_statistics(x_CT, weight_CT))
        return self._conv("fc", pooled_C[:, None])[:, 0]

    def _block(self, at: str, x_CT: torch.Tensor, dilation: int) -> torch.Tensor:
        x_CT = self._heard(f"{at}.tdnn1.conv", x_CT)
        parts = list(x_CT.chunk(self.config.scale))
        for i in range(1, len(parts)):
            before = parts[i] if i == 1 else parts[i] + parts[i - 1]
            parts[i] = self._heard(f"{at}.res2net_block.blocks.{i - 1}.conv", before, dilation)
        x_CT = self._heard(f"{at}.tdnn2.conv", torch.cat(parts))
        squeezed_C1 = self._heard(f"{at}.se_block.conv1", x_CT.mean(1, keepdim=True))
        return x_CT * self._conv(f"{at}.se_block.conv2", squeezed_C1).sigmoid()

    def _heard(self, name: str, x_CT: torch.Tensor, dilation: int = 1) -> torch.Tensor:
        return self._conv(name, x_CT, dilation).relu()

    def _conv(self, name: str, x_CT: torch.Tensor, dilation: int = 1) -> torch.Tensor:
        weight, bias = (self._parts.take(f"{self._at}.{name}.{kind}") for kind in ("weight", "bias"))
        reach = (weight.shape[2] - 1) * dilation
        if reach:
            x_CT = F.pad(x_CT, (reach // 2, reach - reach // 2), "reflect")
        return F.conv1d(x_CT, weight, bias, dilation=dilation)


def _statistics(x_CT: torch.Tensor, weight_CT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation over time, by weights that sum to 1."""
    mean_C = (weight_CT * x_CT).sum(1)
    variance_C = (weight_CT * (x_CT - mean_C[:, None]) ** 2).sum(1)
    return mean_C, variance_C.clamp(LEAST).sqrt()
