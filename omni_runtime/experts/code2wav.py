"""code2wav of Qwen3-Omni: frames of codes to sound, in chunks of any size, nothing computed twice.

A frame's codes are embedded and averaged, go through a transformer whose positions see `window` positions, are upsampled by
ConvNeXt blocks and then by a decoder of Snake activations and dilated convolutions. All of it is causal but for one thing: a
block of an upsampling with overlap is whole only when the next input is there. So

    samples(n frames) = n · hop - lag,    hop = 1920 and lag = 555 in the published shape

and sample s belongs to frame s // hop, as in one call over all frames. (The makers' own decode in chunks loses `lag` samples at
every chunk's end.) What is kept of a stream: keys and values of window - 1 positions a layer, and the tails of its convolutions.

Suffixes: R rows, T frames of a row's chunk, N frames of all rows, G codes of a frame, D width, H query heads, K key-value heads,
E head dimension, S positions that are kept, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from omni_runtime.experts.code2wav_fused import FusedWaves
from omni_runtime.experts.code2wav_waves import Waves
from omni_runtime.experts.linear import Linear, linear, native, varies
from omni_runtime.experts.moe import Mlp, gated
from omni_runtime.experts.rotary import falling, halves, turn
from omni_runtime.experts.staging import Staging
from omni_runtime.experts.steady import silu
from omni_runtime.kernels import cpu_attention, cpu_sound, rms_norm
from omni_runtime.weights.qwen3_omni_parts import VocoderConfig

Tensors = Mapping[str, torch.Tensor]
Codes = np.ndarray[Any, np.dtype[np.int64]]
Seen = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each row, [K, S, E]: those that were kept, and the new ones"""


@dataclass(frozen=True)
class Stream:
    """Where a stream stands: never changed, only replaced."""

    frames: int  # the number of the next one
    window_LKSE: torch.Tensor  # keys at 2l, values at 2l + 1
    tails: tuple[torch.Tensor, ...]  # [C, P] each, in the order of the network

    @property
    def begins(self) -> bool:
        """Whether it was fed nothing yet."""
        return self.window_LKSE.shape[2] == 0


@dataclass(frozen=True)
class _Layer:
    norm_D: torch.Tensor
    qkv: Linear
    out: Linear
    scale_D: torch.Tensor
    mlp_norm_D: torch.Tensor
    mlp: Mlp
    mlp_scale_D: torch.Tensor


class Code2Wav:
    """Resident weights, float32.

    Args:
        weights: by the names of the checkpoint below `code2wav.`.
        layout: of matrices, see `linear`.
        form: of the kernels, see `omni_runtime.kernels`. With one, or on a GPU, the convolutions are `FusedWaves`.
    """

    def __init__(
        self, config: VocoderConfig, weights: Tensors, device: str = "cpu", layout: str = "auto", form: str | None = None
    ) -> None:
        self.config, self.device = config, torch.device(device)

        def take(name: str) -> torch.Tensor:
            return weights[name].detach().to(self.device, torch.float32)

        def fused(at: str, parts: tuple[str, ...], bias: bool = False) -> Linear:
            biases = torch.cat([take(f"{at}.{part}_proj.bias") for part in parts]) if bias else None
            return linear(torch.cat([take(f"{at}.{part}_proj.weight") for part in parts]), biases, layout)

        with torch.inference_mode():
            self._embedding_VD = take("code_embedding.weight")
            self._offset_G = torch.arange(config.groups, device=self.device) * config.codebook
            self._layers = []
            for i in range(config.layers):
                at = f"pre_transformer.layers.{i}"
                layer = _Layer(
                    norm_D=take(f"{at}.input_layernorm.weight"),
                    qkv=fused(f"{at}.self_attn", ("q", "k", "v"), config.bias),
                    out=fused(f"{at}.self_attn", ("o",), config.bias),
                    scale_D=take(f"{at}.self_attn_layer_scale.scale"),
                    mlp_norm_D=take(f"{at}.post_attention_layernorm.weight"),
                    mlp=gated(fused(f"{at}.mlp", ("gate", "up")), fused(f"{at}.mlp", ("down",)), silu),
                    mlp_scale_D=take(f"{at}.mlp_layer_scale.scale"),
                )
                self._layers.append(layer)
            self._norm_D = take("pre_transformer.norm.weight")
            self._frequency_F = falling(config.head_dim, config.rope_theta).to(self.device)
            fused_ = form is not None or self.device.type == "cuda"
            self._waves = FusedWaves(config, take, self.device, form) if fused_ else Waves(config, take, layout)
            self._staging = Staging(self.device)
            ours = native(layout, self._embedding_VD) is not None
        self._attend = self._by_query if ours else self._by_row
        self.exact = ours and cpu_sound.usable(self.device)  # a sample tells neither its company nor its piece, to the bit
        self.varies = "" if self.exact else varies(self.device, layout)

    def fresh(self, at: int = 0) -> Stream:
        """A stream that was fed nothing, whose first frame is number `at`."""
        c = self.config
        empty = torch.empty(2 * c.layers, c.kv_heads, 0, c.head_dim, device=self.device)
        return Stream(at, empty, self._waves.fresh())

    @torch.inference_mode()
    def decode(self, streams: Sequence[Stream], codes: Sequence[Codes]) -> list[tuple[Stream, torch.Tensor]]:
        """The next frames of every stream, [T, G] each, at least one: where it stands then, and its new samples.

        Samples are float32 within -1..1: T · hop of them, or `lag` fewer where the stream begins. Rows of equal length go through
        the convolutions together.
        """
        lengths = [len(row) for row in codes]
        assert all(lengths), "a chunk without frames"
        codes_NG = self._staging.send({"codes": np.concatenate([np.asarray(row) for row in codes])})["codes"]
        hidden_ND, windows = self._transform(streams, codes_NG, lengths)
        groups: dict[tuple[int, bool], list[int]] = {}
        for i, (stream, length) in enumerate(zip(streams, lengths, strict=True)):
            groups.setdefault((length, stream.begins), []).append(i)
        parts = hidden_ND.split_with_sizes(lengths)
        found: dict[int, tuple[Stream, torch.Tensor]] = {}
        for (length, begins), rows in groups.items():
            kept = [torch.stack(tails) for tails in zip(*(streams[i].tails for i in rows), strict=True)]
            wave_RS, after = self._waves(torch.stack([parts[i] for i in rows]).transpose(1, 2), kept, begins)
            for at, i in enumerate(rows):
                # Rows of their own: a view would keep those of the whole batch alive.
                tails = tuple(tail[at].clone() for tail in after)
                found[i] = Stream(streams[i].frames + length, windows[i], tails), wave_RS[at].clone()
        return [found[i] for i in range(len(streams))]

    def _transform(
        self, streams: Sequence[Stream], codes_NG: torch.Tensor, lengths: Sequence[int]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """hidden_ND, and the window of each row after it."""
        c = self.config
        x_ND = F.embedding(codes_NG + self._offset_G, self._embedding_VD).mean(1)
        runs = [torch.arange(s.frames, s.frames + n, device=self.device) for s, n in zip(streams, lengths, strict=True)]
        cos_N1E, sin_N1E = halves(torch.cat(runs).float()[:, None] * self._frequency_F)
        before = [s.window_LKSE.shape[2] for s in streams]
        grown: list[list[torch.Tensor]] = [[] for _ in streams]
        turned = c.heads + c.kv_heads
        for i, layer in enumerate(self._layers):
            qkv_NHE = layer.qkv(rms_norm(x_ND, layer.norm_D, c.eps)).view(len(x_ND), turned + c.kv_heads, c.head_dim)
            qk_NHE = turn(qkv_NHE[:, :turned], cos_N1E, sin_N1E)
            seen, at = [], 0
            for r, (stream, n) in enumerate(zip(streams, lengths, strict=True)):
                new = slice(at, at + n)
                k_KSE = torch.cat([stream.window_LKSE[2 * i], qk_NHE[new, c.heads :].transpose(0, 1)], 1)
                v_KSE = torch.cat([stream.window_LKSE[2 * i + 1], qkv_NHE[new, turned:].transpose(0, 1)], 1)
                keep = slice(max(k_KSE.shape[1] - (c.window - 1), 0), None)
                grown[r] += [k_KSE[:, keep], v_KSE[:, keep]]
                seen.append((k_KSE, v_KSE))
                at += n
            x_ND = x_ND + layer.scale_D * layer.out(self._attend(qk_NHE[:, : c.heads], seen, before))
            x_ND = x_ND + layer.mlp_scale_D * layer.mlp(rms_norm(x_ND, layer.mlp_norm_D, c.eps))
        return rms_norm(x_ND, self._norm_D, c.eps), [torch.stack(rows) for rows in grown]

    def _by_query(self, q_NHE: torch.Tensor, seen: Seen, before: Sequence[int]) -> torch.Tensor:
        """[N, H·E] of all rows' queries, each over its own window, by the kernel for a CPU."""
        stretches = []
        for (k_KSE, v_KSE), kept in zip(seen, before, strict=True):
            high = np.arange(kept + 1, k_KSE.shape[1] + 1)
            stretches.append(cpu_attention.Stretch(k_KSE, v_KSE, np.maximum(high - self.config.window, 0), high))
        return cpu_attention.attend(q_NHE, stretches)

    def _by_row(self, q_NHE: torch.Tensor, seen: Seen, before: Sequence[int]) -> torch.Tensor:
        """The same by torch, row by row."""
        c, mixed = self.config, []
        news = [k_KSE.shape[1] - kept for (k_KSE, _), kept in zip(seen, before, strict=True)]
        for q, (k_KSE, v_KSE), kept in zip(q_NHE.split_with_sizes(news), seen, before, strict=True):
            mask, grouped = self._mask(kept, len(q)), c.heads > c.kv_heads
            out_1HTE = F.scaled_dot_product_attention(
                q[None].transpose(1, 2), k_KSE[None], v_KSE[None], attn_mask=mask, enable_gqa=grouped
            )
            mixed.append(out_1HTE[0].transpose(0, 1).reshape(len(q), c.heads * c.head_dim))
        return torch.cat(mixed)

    def _mask(self, kept: int, new: int) -> torch.Tensor | None:
        """Which positions each new one sees: itself and window - 1 before it."""
        if new == 1 and kept < self.config.window:
            return None
        at = torch.arange(kept + new, device=self.device)
        back = at[kept:, None] - at
        return (back >= 0) & (back < self.config.window)
