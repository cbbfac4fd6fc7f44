"""The flow of Qwen2.5-Omni's token2wav: codes to mel frames, along an ODE from noise (flow matching, Lipman et al. 2023).

One call of `velocity` is one pass of the transformer for each window, with both branches of its guidance. Mel frames come in
blocks of 24. A layer sees a block by itself; a few also see the block before, or the next one. So a velocity depends on two
blocks before and one after, whatever the depth, and all is computed block by block: windows of any length are one batch, without
masks over all pairs of frames.

A stream is windows one after the other. What layers that look back have of the last block of one, keys and values, is handed to
the next (`Window.past`), call by call of their ODEs: so the past is never computed twice.

The first head alone is turned by positions; pairs (0, 1), (2, 3), ... of its numbers turn together, which is the usual order of
halves once its rows of the weights are sorted.

Suffixes: T mel frames of a window, M mels, R windows, S strands (windows times branches), N blocks of all strands, B frames of a
block, D width, H heads, E head dimension, K numbers that a speaker is told by, V codes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from omni_runtime.errors import RequestError
from omni_runtime.experts.ecapa import Ecapa
from omni_runtime.experts.encoder_layers import Parts, Tensors
from omni_runtime.experts.flow_blocks import Blocks
from omni_runtime.experts.flow_cpu import LANES, CpuFlow
from omni_runtime.experts.flow_window import Moved, Window
from omni_runtime.experts.linear import Linear
from omni_runtime.experts.rotary import falling, halves, turn
from omni_runtime.experts.staging import Staging
from omni_runtime.kernels import gate, modulate
from omni_runtime.kernels.cpu import packed_of
from omni_runtime.weights.qwen2_5_omni_parts import FlowConfig

WAVES = 256  # features of the sines and cosines that a time becomes
NOBODY = 0  # the code of the branch that is told nothing


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
            self._native: CpuFlow | None = None
            products = [[layer.qkv, layer.out, layer.wide, layer.narrow] for layer in self._layers]
            packs, last = [[p for one in own if (p := packed_of(one))] for own in products], packed_of(self._out)
            if last is not None and c.head_dim % LANES == 0:
                self._native = CpuFlow(c, packs, self._in_DM, self._code_VD, last, self._told, self._frequency)

    @property
    def exact(self) -> bool:
        """Whether a window tells nothing of its company, to the bit."""
        return self._native is not None

    @torch.inference_mode()
    def voice(self, condition_K: torch.Tensor, mel_TM: torch.Tensor) -> torch.Tensor:
        """voice_2D: what a speaker adds to the input of every frame, and what nobody adds."""
        rows = []
        for share in (1.0, 0.0):
            heard = F.linear(self._speaker(share * mel_TM.to(self.device)), self._heard_D)
            rows.append(heard + F.linear(share * condition_K.to(self.device), self._told_DK) + self._bias_D)
        return torch.stack(rows)

    @torch.inference_mode()
    def velocity(self, windows: Sequence[Window]) -> list[Moved]:
        """dx/dt of each window: that of its speaker and codes, and `guidance` times the difference to nobody's.

        Raises:
            RequestError: a code that its embedding has not; a talker's vocabulary is larger.
        """
        c = self.config
        for window in windows:
            assert len(window.x_TM) == len(window.codes) * c.repeats > 0, f"{len(window.x_TM)} frames, {len(window.codes)} codes"
            assert window.keep * c.block <= len(window.x_TM), f"block {window.keep} of {len(window.x_TM)} frames is not whole"
            if not 0 <= min(window.codes) <= max(window.codes) < c.codes:
                wrong = next(code for code in window.codes if not 0 <= code < c.codes)
                raise RequestError(f"codes: {wrong} is no code of sound, they are below {c.codes}; draw others")
        if self._native is not None:
            return self._native.velocity(windows)
        strands = [(r, branch) for r, window in enumerate(windows) for branch in range(window.branches)]
        counts = [-(-len(windows[r].x_TM) // c.block) for r, _ in strands]
        frames = [len(windows[r].x_TM) for r, _ in strands]
        blocks = Blocks(counts, frames, [windows[r].past is not None for r, _ in strands], c.block)
        place_T = blocks.place_T + torch.tensor([windows[r].first for r, _ in strands]).repeat_interleave(blocks.frames)
        owner = [r for (r, _), count in zip(strands, counts, strict=True) for _ in range(count)]
        tables = {
            "codes": torch.tensor([NOBODY if branch else code for r, branch in strands for code in windows[r].codes]),
            "row": torch.tensor(owner),
            "end": torch.tensor([sum(counts[:s]) + windows[r].keep - 1 for s, (r, _) in enumerate(strands)]),
            "wave": self._waves([window.time for window in windows]),
            **dict(zip(("cos", "sin"), halves(place_T.float()[:, None] * self._frequency), strict=True)),
            **blocks.tables,
        }
        sent = Staging(self.device).send({name: table.numpy() for name, table in tables.items()})
        row_N, end_S, cos_T1E, sin_T1E = sent["row"], sent["end"], sent["cos"], sent["sin"]
        time_RD = F.silu(self._timed(sent["wave"]))
        codes = sent["codes"].split_with_sizes([len(windows[r].codes) for r, _ in strands])
        fed = [self._fed(windows[r], branch, own) for (r, branch), own in zip(strands, codes, strict=True)]
        x_NBD = torch.cat([F.pad(x, (0, 0, 0, -len(x) % c.block)).view(-1, c.block, c.width) for x in fed])
        kept: list[torch.Tensor] = []
        for layer in self._layers:
            shift, scale, gate_out, mlp_shift, mlp_scale, mlp_gate = layer.modulation(time_RD)[row_N].chunk(6, -1)
            h_TD = modulate(x_NBD, shift, scale).flatten(0, 1)
            qkv_THE = layer.qkv(h_TD).view(len(h_TD), 3 * c.heads, c.head_dim)
            for first in (0, c.heads):  # the first head of queries, and of keys
                qkv_THE[:, first : first + 1] = turn(qkv_THE[:, first : first + 1], cos_T1E, sin_T1E)
            q, k, v = qkv_THE.view(len(x_NBD), c.block, 3, c.heads, c.head_dim).permute(2, 0, 3, 1, 4)
            kv = torch.stack([k, v])
            if -1 in layer.looks:
                past = [windows[r].past[len(kept), :, b] for r, b in strands if windows[r].past is not None]  # type: ignore[index]
                kept.append(kv[:, end_S])
                kv = torch.cat([kv, torch.stack(past, 1)], 1) if past else kv
            keys, values = blocks.seen(kv, layer.looks, sent)
            mask = blocks.mask(layer.looks, sent)
            mixed_NHBE = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            mixed_TX = mixed_NHBE.transpose(1, 2).reshape(len(h_TD), -1)
            x_NBD = gate(x_NBD, layer.out(mixed_TX).view_as(x_NBD), gate_out)
            h_TD = modulate(x_NBD, mlp_shift, mlp_scale).flatten(0, 1)
            h_TD = layer.narrow(F.gelu(layer.wide(h_TD), approximate="tanh"))
            x_NBD = gate(x_NBD, h_TD.view_as(x_NBD), mlp_gate)
        scale, shift = self._last(time_RD)[row_N].chunk(2, -1)
        out_NBM = self._out(modulate(x_NBD, shift, scale).flatten(0, 1)).view(len(x_NBD), c.block, c.mels)
        found: list[list[int]] = [[] for _ in windows]  # strands of each
        for s, (r, _) in enumerate(strands):
            found[r].append(s)
        out = [part.flatten(0, 1)[:length] for part, length in zip(out_NBM.split_with_sizes(counts), map(len, fed), strict=True)]
        left = torch.stack(kept) if kept else None  # [Y, 2, S, H, B, E]
        moved = []
        for window, own in zip(windows, found, strict=True):
            told, *nobody = (out[s] for s in own)
            velocity_TM = told + (told - nobody[0]) * window.guidance if nobody else told.clone()
            whose = slice(own[0], own[-1] + 1)  # strands of a window are neighbours
            moved.append(Moved(velocity_TM, left[:, :, whose].clone() if window.keep and left is not None else None))
        return moved

    def _fed(self, window: Window, branch: int, codes: torch.Tensor) -> torch.Tensor:
        """x_TD of a strand."""
        told_TD = self._code_VD[codes].repeat_interleave(self.config.repeats, 0)
        return F.linear(window.x_TM.to(self.device), self._in_DM) + told_TD + window.voice_2D[branch]

    @staticmethod
    def _waves(times: Sequence[float]) -> torch.Tensor:
        """Sines and cosines of 1000 t, with rates that fall from 1 to 1/10000, on the host."""
        rate = torch.exp(torch.arange(WAVES // 2).float() * (-math.log(10_000) / (WAVES // 2 - 1)))
        angle = 1000 * torch.tensor(times)[:, None] * rate
        return torch.cat([angle.sin(), angle.cos()], 1)

    def _timed(self, waves: torch.Tensor) -> torch.Tensor:
        """Waves through a small network: [R, D]."""
        return self._time[1](F.silu(self._time[0](waves)))

    def _told(self, time: float) -> torch.Tensor:
        """What all layers are told by a time, one after the other."""
        time_RD = F.silu(self._timed(self._waves([time]).to(self.device)))
        return torch.cat([part(time_RD)[0] for part in (*(layer.modulation for layer in self._layers), self._last)])
