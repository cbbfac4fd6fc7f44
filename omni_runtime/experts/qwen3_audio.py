"""The audio encoder of Qwen3-Omni: log-mel frames to vectors of the thinker, 13 for a second.

A sound is cut into chunks of 100 frames. Three convolutions of stride 2 see a chunk; its positions begin at 0 again. Then a
transformer sees `window` chunks at once. Convolutions of the last chunk see zeros up to the length of a full one where the sound
has a full one, and end with it where it has not: that is what the makers' code does for a sound that comes alone, and here it is
so in every company. (There it also depends on the longest sound in the batch.)

Suffixes: B bins, T frames, C chunks of equal length, F rows after convolution, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from omni_runtime.experts.encoder_layers import Parts, Tensors, sinusoids
from omni_runtime.experts.sound_layers import EPS, SoundLayers
from omni_runtime.weights.qwen3_omni_parts import CHUNK_TOKENS, AudioConfig

AT_ONCE = 32  # chunks in the convolutions: 200 MB after the first one in the published shape


def audio_tokens(frames: int, chunk: int = 100) -> int:
    """Vectors for a sound of so many mel frames: each stride of 2 halves a chunk's length, rounded up."""
    tokens = frames % chunk
    for _ in range(3):
        tokens = (tokens + 1) // 2
    return tokens + frames // chunk * CHUNK_TOKENS


class AudioEncoder:
    """Resident weights, float32; `weights` by the names of the checkpoint below `thinker.audio_tower.`."""

    def __init__(self, config: AudioConfig, weights: Tensors, device: str = "cpu", layout: str = "auto") -> None:
        self.config, self.device = config, torch.device(device)
        parts = Parts(weights, self.device, layout)
        with torch.inference_mode():
            self._convs = [(parts.take(f"conv2d{i}.weight"), parts.take(f"conv2d{i}.bias")) for i in (1, 2, 3)]
            self._conv_out = parts.dense("conv_out", bias=False)
            self._layers = SoundLayers(parts, config.layers, config.heads, key_bias=True)
            self._norm = parts.norm("ln_post", EPS)
            self._first, self._second = parts.dense("proj1"), parts.dense("proj2")
            self._place_ND = sinusoids(CHUNK_TOKENS, config.width).to(self.device)

    @torch.inference_mode()
    def encode(self, mels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Vectors [N, out] for each sound's log-mel frames [B, T], T at least 1."""
        c = self.config
        chunks: dict[int, list[tuple[int, torch.Tensor]]] = {}  # by the length that convolutions see: (place, frames)
        tokens: list[int] = []
        for mel_BT in mels:
            length = min(mel_BT.shape[1], c.chunk)
            for part_BT in mel_BT.to(self.device, torch.float32).split(c.chunk, 1):
                chunks.setdefault(length, []).append((len(tokens), F.pad(part_BT, (0, length - part_BT.shape[1]))))
                tokens.append(audio_tokens(part_BT.shape[1], c.chunk))
        found: dict[int, torch.Tensor] = {}
        for same in chunks.values():
            for members in (same[i : i + AT_ONCE] for i in range(0, len(same), AT_ONCE)):
                for (place, _), x_ND in zip(members, self._convolve(torch.stack([part for _, part in members])), strict=True):
                    found[place] = x_ND[: tokens[place]]
        x_TD = torch.cat([found[i] for i in range(len(tokens))])
        counts = [audio_tokens(mel_BT.shape[1], c.chunk) for mel_BT in mels]
        window = c.window * CHUNK_TOKENS
        lengths = [min(window, count - at) for count in counts for at in range(0, count, window)]
        x_TD = self._layers(x_TD, lengths)
        out_TD = self._second(F.gelu(self._first(self._norm(x_TD))))
        return [part.clone() for part in out_TD.split_with_sizes(counts)]

    def _convolve(self, mel_CBT: torch.Tensor) -> torch.Tensor:
        """[C, N, D], with positions."""
        x = mel_CBT[:, None]
        for weight, bias in self._convs:
            x = F.gelu(F.conv2d(x, weight, bias, stride=2, padding=1))
        x_CND = self._conv_out(x.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)).view(len(x), x.shape[3], -1)
        return x_CND + self._place_ND[: x.shape[3]]
