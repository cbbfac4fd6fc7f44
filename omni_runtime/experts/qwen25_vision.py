"""The vision encoder of Qwen2.5-Omni, that of Qwen2.5-VL: flattened patches to vectors of the thinker.

Most layers see windows of 4 x 4 vectors (8 x 8 patches) of one frame, a few see all of it. Windows are cut from the upper left
corner, so those at the right and lower edge are smaller. Tokens are put in the order of windows once, at the beginning, and back
at the end: a layer that sees a whole frame does not mind the order within it. Positions are rotary angles, of which one half
turns with the row and the other with the column.

Suffixes: T patches of all pictures, X numbers of a patch, D width, H heads, E head dimension, N vectors, U = merge² patches each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from omni_runtime.experts.encoder_layers import Grid, Norm, Parts, Seen, Tensors, attend, places
from omni_runtime.experts.linear import Linear
from omni_runtime.experts.moe import Mlp, gated
from omni_runtime.experts.rotary import falling, halves, turn
from omni_runtime.experts.staging import Staging
from omni_runtime.weights.qwen2_5_omni_parts import VisionConfig

EPS = 1e-6
ROPE_BASE = 10_000.0


class _Block(NamedTuple):
    norm: Norm
    qkv: Linear
    out: Linear
    mlp_norm: Norm
    mlp: Mlp


class VisionEncoder:
    """Resident weights, float32; `weights` by the names of the checkpoint below `thinker.visual.`."""

    def __init__(self, config: VisionConfig, weights: Tensors, device: str = "cpu", layout: str = "auto") -> None:
        self.config, self.device = config, torch.device(device)
        parts = Parts(weights, self.device, layout)
        with torch.inference_mode():
            self._patch_DX = parts.take("patch_embed.proj.weight").flatten(1)
            self._blocks = []
            for at in (f"blocks.{i}" for i in range(config.layers)):
                block = _Block(
                    norm=parts.rms(f"{at}.norm1", EPS),
                    qkv=parts.dense(*(f"{at}.attn.{part}" for part in "qkv")),
                    out=parts.dense(f"{at}.attn.proj"),
                    mlp_norm=parts.rms(f"{at}.norm2", EPS),
                    mlp=gated(parts.dense(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"), parts.dense(f"{at}.mlp.down_proj")),
                )
                self._blocks.append(block)
            self._merge_norm = parts.rms("merger.ln_q", EPS)
            self._first, self._second = parts.dense("merger.mlp.0"), parts.dense("merger.mlp.2")
            self._frequency = falling(config.width // config.heads // 2, ROPE_BASE)

    @torch.inference_mode()
    def encode(self, pictures: Sequence[tuple[torch.Tensor, Grid]]) -> list[Seen]:
        """One result a picture, of its patches [T, X] and its grid.

        Rows and columns are multiples of `merge`, T their product with the steps of time.
        """
        c, unit = self.config, self.config.merge**2
        for patches_TX, (steps, rows, columns) in pictures:
            assert rows % c.merge == columns % c.merge == 0, f"a grid of {rows} x {columns}, merged by {c.merge}"
            wanted = steps * rows * columns, c.pixels
            assert tuple(patches_TX.shape) == wanted, f"{tuple(patches_TX.shape)} patches where {wanted} are needed"
        grids = [grid for _, grid in pictures]
        counts = [steps * rows * columns // unit for steps, rows, columns in grids]
        cut = [windows((steps, rows // c.merge, columns // c.merge), c.window) for steps, rows, columns in grids]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        order_N = torch.cat([order + start for (order, _), start in zip(cut, starts, strict=True)])

        def ordered(x_TX: torch.Tensor, order_N: torch.Tensor) -> torch.Tensor:
            return x_TX.view(len(order_N), unit, -1)[order_N].flatten(0, 1)

        places_T2 = ordered(torch.cat([places(grid, c.merge) for grid in grids]), order_N)
        angle_TF = (places_T2.float()[..., None] * self._frequency).flatten(1)
        tables = dict(zip(("cos", "sin"), halves(angle_TF), strict=True)) | {"order": order_N}
        sent = Staging(self.device).send({name: table.numpy() for name, table in tables.items()})
        cos_T1E, sin_T1E, order_N = sent["cos"], sent["sin"], sent["order"]
        x_TX = torch.cat([patches_TX for patches_TX, _ in pictures]).to(self.device, torch.float32)
        x_TD = F.linear(ordered(x_TX, order_N), self._patch_DX)
        frames = [rows * columns for steps, rows, columns in grids for _ in range(steps)]
        near = [unit * size for _, sizes in cut for size in sizes]
        for i, block in enumerate(self._blocks):
            qkv_THE = block.qkv(block.norm(x_TD)).view(len(x_TD), 3, c.heads, c.width // c.heads)
            q_THE, k_THE = turn(qkv_THE[:, 0], cos_T1E, sin_T1E), turn(qkv_THE[:, 1], cos_T1E, sin_T1E)
            x_TD = x_TD + block.out(attend(q_THE, k_THE, qkv_THE[:, 2], frames if i in c.full else near))
            x_TD = x_TD + block.mlp(block.mlp_norm(x_TD))
        wide = self._first(self._merge_norm(x_TD).view(-1, unit * c.width))
        merged_ND = self._second(F.gelu(wide))
        back_ND = torch.empty_like(merged_ND)
        back_ND[order_N] = merged_ND
        return [Seen(part.clone()) for part in back_ND.split_with_sizes(counts)]


def windows(grid: Grid, side: int) -> tuple[torch.Tensor, list[int]]:
    """The vectors of a picture or clip in the order of windows, [N], and how many each window has."""
    steps, rows, columns = grid
    whole = torch.arange(steps * rows * columns).view(grid)
    parts = [
        part.flatten()
        for frame in whole
        for band in frame.split(side, 0)
        for part in band.split(side, 1)
    ]  # fmt: skip
    return torch.cat(parts), [len(part) for part in parts]
