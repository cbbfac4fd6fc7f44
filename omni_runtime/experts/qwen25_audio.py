"""The audio encoder of Qwen2.5-Omni: log-mel frames to vectors of the thinker, 25 for a second.

A sound is cut into chunks of 200 frames. Two convolutions, the second of stride 2, and all of the transformer see one chunk and
nothing else; its positions begin at 0. Then neighbours are averaged in pairs, from the sound's beginning on, and projected. What
lies before and after a chunk is zero to the convolutions, also where another chunk follows.

Suffixes: B bins, T frames, C chunks of equal length, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from omni_runtime.experts.encoder_layers import Parts, Tensors, sinusoids
from omni_runtime.experts.sound_layers import EPS, SoundLayers
from omni_runtime.weights.qwen2_5_omni_parts import AudioConfig

LEAST = 3  # frames: fewer have no pair of neighbours, and no vector


def audio_tokens(frames: int) -> int:
    """Vectors for a sound of so many mel frames."""
    return (frames + 1) // 2 // 2


class AudioEncoder:
    """Resident weights, float32; `weights` by the names of the checkpoint below `thinker.audio_tower.`."""

    def __init__(self, config: AudioConfig, weights: Tensors, device: str = "cpu", layout: str = "auto") -> None:
        self.config, self.device = config, torch.device(device)
        parts = Parts(weights, self.device, layout)
        with torch.inference_mode():
            self._convs = [(parts.take(f"conv{i}.weight"), parts.take(f"conv{i}.bias")) for i in (1, 2)]
            self._layers = SoundLayers(parts, config.layers, config.heads, key_bias=False)
            self._norm, self._out = parts.norm("ln_post", EPS), parts.dense("proj")
            self._place_ND = sinusoids(config.chunk // 2, config.width).to(self.device)

    @torch.inference_mode()
    def encode(self, mels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Vectors [N, out] for each sound's log-mel frames [B, T], T at least `LEAST`."""
        c = self.config
        chunks = [part for mel_BT in mels for part in mel_BT.to(self.device, torch.float32).split(c.chunk, 1)]
        same: dict[int, list[int]] = {}  # by length: convolutions see chunks of equal length together
        for i, part in enumerate(chunks):
            same.setdefault(part.shape[1], []).append(i)
        found: dict[int, torch.Tensor] = {}
        for members in same.values():
            found |= dict(zip(members, self._convolve(torch.stack([chunks[i] for i in members])), strict=True))
        parts = [found[i] for i in range(len(chunks))]
        x_TD = self._layers(torch.cat(parts), [len(part) for part in parts])
        whole = x_TD.split_with_sizes([(mel_BT.shape[1] + 1) // 2 for mel_BT in mels])
        pairs = [x_ND[: len(x_ND) // 2 * 2].view(-1, 2, c.width).mean(1) for x_ND in whole]
        out_TD = self._out(self._norm(torch.cat(pairs)))
        return [part.clone() for part in out_TD.split_with_sizes([len(pair) for pair in pairs])]

    def _convolve(self, x_CBT: torch.Tensor) -> torch.Tensor:
        """[C, N, D], with positions."""
        for stride, (weight, bias) in enumerate(self._convs, 1):
            x_CBT = F.gelu(F.conv1d(x_CBT, weight, bias, stride=stride, padding=1))
        return x_CBT.transpose(1, 2) + self._place_ND[: x_CBT.shape[2]]
