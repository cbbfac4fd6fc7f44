"""The flow of Qwen2.5-Omni's token2wav: codes to mel frames, along an ODE from noise (flow matching, Lipman et al. 2023).

One call of `velocity` is one pass of the transformer for each window, with both branches of its guidance. Mel frames come in
blocks of 24. A layer sees a block by itself; a few also see the block before, or the next one. So a velocity depends on two
blocks before and one after, whatever the depth, and all is computed block by block: windows of any length are one batch, without
masks over all pairs of frames.

The first head alone is turned by positions; pairs (0, 1), (2, 3), ... of its numbers turn together, which is the usual order of
halves once its rows of the weights are sorted.

Suffixes: T mel frames of a window, M mels, R windows, S strands (windows times branches), N blocks of all strands, B frames of a
block, D width, H heads, E head dimension, K numbers that a speaker is told by, V codes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from omni_runtime.experts.ecapa import Ecapa
from omni_runtime.experts.encoder_layers import Parts, Tensors
from omni_runtime.experts.linear import Linear
from omni_runtime.experts.rotary import falling, halves, turn
from omni_runtime.kernels import gate, modulate
from omni_runtime.weights.qwen2_5_omni_parts import FlowConfig

WAVES = 256  # features of the sines and cosines that a time becomes
NOBODY = 0  # the code of the branch that is told nothing


@dataclass(frozen=True)
class Window:
    """A stretch of mel frames at one time of its ODE. It begins with a block."""

    x_TM: torch.Tensor
    time: float  # 0 is noise, 1 is sound
    codes: Sequence[int]  # `repeats` frames each
    voice_2D: torch.Tensor
    guidance: float = 0.5


class _Layer(NamedTuple):
    modulation: Linear
    qkv: Linear
    out: Linear
    wide: Linear
    narrow: Linear
    looks: tuple[int, ...]  # blocks that a block sees, by how far they are


class Flow:
    """Resident weights, float32; `weights` by the names of the checkpoint below `token2wav.code2wav_dit_model.`."""

    def __init__(self, config: FlowConfig, weights: Tensors, device: str = "cpu", layout: str = "auto") -> None:
        self.config, self.device = config, torch.device(device)
        c, parts = config, Parts(weights, self.device, layout)
        with torch.inference_mode():
            self._time = parts.dense("time_embed.time_mlp.0"), parts.dense("time_embed.time_mlp.2")
            proj = parts.take("input_embed.proj.weight").split([c.mels, c.speaker.out, c.code_width, c.condition], 1)
            self._in_DM, self._heard_D, code_D, self._told_DK = proj
            self._code_VD = F.linear(parts.take("text_embed.codec_embed.weight"), code_D)
            self._bias_D = parts.take("input_embed.proj.bias")
            self._speaker = Ecapa(c.speaker, parts, "input_embed.spk_encoder")
            order = torch.arange(3 * c.heads * c.head_dim)
            for first in (0, c.heads * c.head_dim):  # rows of the first head of queries, and of keys
                order[first : first + c.head_dim] = first + torch.arange(c.head_dim).view(-1, 2).T.flatten()
            self._layers = []
            for i in range(c.layers):
                at = f"transformer_blocks.{i}"
                layer = _Layer(
                    modulation=parts.dense(f"{at}.attn_norm.linear"),
                    qkv=parts.dense(*(f"{at}.attn.to_{part}" for part in "qkv"), order=order),
                    out=parts.dense(f"{at}.attn.to_out.0"),
                    wide=parts.dense(f"{at}.ff.ff.0"),
                    narrow=parts.dense(f"{at}.ff.ff.3"),
                    looks=(*([-1] if i in c.back else []), 0, *([1] if i in c.ahead else [])),
                )
                self._layers.append(layer)
            self._last, self._out = parts.dense("norm_out.linear"), parts.dense("proj_out")
            self._frequency = falling(c.head_dim, c.rope_theta)

    @torch.inference_mode()
    def voice(self, condition_K: torch.Tensor, mel_TM: torch.Tensor) -> torch.Tensor:
        """voice_2D: what a speaker adds to the input of every frame, and what nobody adds."""
        rows = []
        for share in (1.0, 0.0):
            heard = F.linear(self._speaker(share * mel_TM.to(self.device)), self._heard_D)
            rows.append(heard + F.linear(share * condition_K.to(self.device), self._told_DK) + self._bias_D)
        return torch.stack(rows)

    @torch.inference_mode()
    def velocity(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        """dx/dt of each window, [T, M]: that of its speaker and codes, and `guidance` times the difference to nobody's."""
        c = self.config
        for window in windows:
            assert len(window.x_TM) == len(window.codes) * c.repeats > 0, f"{len(window.x_TM)} frames, {len(window.codes)} codes"
        strands = [(r, branch) for r, window in enumerate(windows) for branch in range(2 if window.guidance >= 1e-5 else 1)]
        counts = [-(-len(windows[r].x_TM) // c.block) for r, _ in strands]
        fed = [self._fed(windows[r], branch) for r, branch in strands]
        x_NBD = torch.cat([F.pad(x, (0, 0, 0, -len(x) % c.block)).view(-1, c.block, c.width) for x in fed])
        blocks = _Blocks(counts, [len(x) for x in fed], c.block, self.device)
        time_RD = F.silu(self._timed([window.time for window in windows]))
        row_N = torch.tensor([r for (r, _), count in zip(strands, counts, strict=True) for _ in range(count)], device=self.device)
        cos_T1E, sin_T1E = (table.to(self.device) for table in halves(blocks.place_T.float()[:, None] * self._frequency))
        for layer in self._layers:
            shift, scale, gate_out, mlp_shift, mlp_scale, mlp_gate = layer.modulation(time_RD)[row_N].chunk(6, -1)
            h_TD = modulate(x_NBD, shift, scale).flatten(0, 1)
            qkv_THE = layer.qkv(h_TD).view(len(h_TD), 3 * c.heads, c.head_dim)
            for first in (0, c.heads):  # the first head of queries, and of keys
                qkv_THE[:, first : first + 1] = turn(qkv_THE[:, first : first + 1], cos_T1E, sin_T1E)
            q, k, v = qkv_THE.view(len(x_NBD), c.block, 3, c.heads, c.head_dim).permute(2, 0, 3, 1, 4)
            keys, values, mask = blocks.seen(k, layer.looks), blocks.seen(v, layer.looks), blocks.mask(layer.looks)
            mixed_NHBE = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            mixed_TX = mixed_NHBE.transpose(1, 2).reshape(len(h_TD), -1)
            x_NBD = gate(x_NBD, layer.out(mixed_TX).view_as(x_NBD), gate_out)
            h_TD = modulate(x_NBD, mlp_shift, mlp_scale).flatten(0, 1)
            h_TD = layer.narrow(F.gelu(layer.wide(h_TD), approximate="tanh"))
            x_NBD = gate(x_NBD, h_TD.view_as(x_NBD), mlp_gate)
        scale, shift = self._last(time_RD)[row_N].chunk(2, -1)
        out_NBM = self._out(modulate(x_NBD, shift, scale).flatten(0, 1)).view(len(x_NBD), c.block, c.mels)
        found: list[list[torch.Tensor]] = [[] for _ in windows]
        for (r, _), part in zip(strands, out_NBM.split_with_sizes(counts), strict=True):
            found[r].append(part.flatten(0, 1)[: len(windows[r].x_TM)])
        guided = zip(found, windows, strict=True)
        return [b[0] + (b[0] - b[1]) * w.guidance if len(b) > 1 else b[0].clone() for b, w in guided]

    def _fed(self, window: Window, branch: int) -> torch.Tensor:
        """x_TD of a strand."""
        codes = [NOBODY] * len(window.codes) if branch else list(window.codes)
        told_TD = self._code_VD[torch.tensor(codes, device=self.device)].repeat_interleave(self.config.repeats, 0)
        return F.linear(window.x_TM.to(self.device), self._in_DM) + told_TD + window.voice_2D[branch]

    def _timed(self, times: Sequence[float]) -> torch.Tensor:
        """Sines and cosines of 1000 t, with rates that fall from 1 to 1/10000, through a small network: [R, D]."""
        rate = torch.exp(torch.arange(WAVES // 2).float() * (-math.log(10_000) / (WAVES // 2 - 1)))
        angle = 1000 * torch.tensor(times)[:, None] * rate
        return self._time[1](F.silu(self._time[0](torch.cat([angle.sin(), angle.cos()], 1).to(self.device))))


class _Blocks:
    """Which block of a batch stands beside which, and which of their frames are there."""

    def __init__(self, counts: Sequence[int], frames: Sequence[int], size: int, device: torch.device) -> None:
        places = [torch.arange(count * size) for count in counts]
        self.place_T = torch.cat(places)
        there = [place < length for place, length in zip(places, frames, strict=True)]
        self._there_NB = torch.cat(there).view(-1, size).to(device)
        self._whole = all(count * size == length for count, length in zip(counts, frames, strict=True))
        index = torch.arange(sum(counts))
        at = torch.cat([torch.arange(count) for count in counts])
        left = torch.cat([torch.arange(count - 1, -1, -1) for count in counts])  # blocks after this one
        has = {-1: at > 0, 0: at >= 0, 1: left > 0}
        self._has = {look: has[look].to(device) for look in has}
        self._beside = {look: torch.where(has[look], index + look, index).to(device) for look in has}

    def seen(self, x_NHBE: torch.Tensor, looks: tuple[int, ...]) -> torch.Tensor:
        """Keys or values of all blocks that each block sees."""
        return torch.cat([x_NHBE[self._beside[look]] if look else x_NHBE for look in looks], 2) if len(looks) > 1 else x_NHBE

    def mask(self, looks: tuple[int, ...]) -> torch.Tensor | None:
        """[N, 1, 1, frames seen], or None where all of them are there."""
        if looks == (0,) and self._whole:
            return None
        parts = [self._there_NB[self._beside[look]] for look in looks]
        return torch.cat([part & self._has[look][:, None] for part, look in zip(parts, looks, strict=True)], 1)[:, None, None]
