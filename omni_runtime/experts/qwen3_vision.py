"""The vision encoder of Qwen3-Omni: flattened patches to vectors of the thinker, and the features of its first layers.

Patches come block by block: the merge x merge neighbours that become one vector stand together (`patches.py`). A frame's patches
see each other and no other frame's. Positions are told twice: by a learned table, bilinearly resampled to the picture's grid with
its corners kept, and by rotary angles of which one half turns with the row and the other with the column.

Suffixes: T patches of all pictures, X numbers of a patch, D width, H heads, E head dimension, N vectors, L deepstack layers,
G = grid·grid places of the table, 2 axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from omni_runtime.experts.encoder_layers import Grid, Norm, Parts, Seen, Tensors, attend, places
from omni_runtime.experts.linear import Linear
from omni_runtime.experts.rotary import falling, halves, turn
from omni_runtime.experts.staging import Staging
from omni_runtime.weights.qwen3_omni_parts import VisionConfig

EPS = 1e-6
ROPE_BASE = 10_000.0


class _Block(NamedTuple):
    norm: Norm
    qkv: Linear
    out: Linear
    mlp_norm: Norm
    wide: Linear
    narrow: Linear


class _Merger(NamedTuple):
    norm: Norm
    after: bool  # the norm sees the merged row, not each patch of it
    first: Linear
    second: Linear


class VisionEncoder:
    """Resident weights, float32; `weights` by the names of the checkpoint below `thinker.visual.`."""

    def __init__(self, config: VisionConfig, weights: Tensors, device: str = "cpu", layout: str = "auto") -> None:
        self.config, self.device = config, torch.device(device)
        parts = Parts(weights, self.device, layout)

        def merger(at: str, after: bool) -> _Merger:
            return _Merger(parts.norm(f"{at}.ln_q", EPS), after, parts.dense(f"{at}.mlp.0"), parts.dense(f"{at}.mlp.2"))

        with torch.inference_mode():
            self._patch_DX = parts.take("patch_embed.proj.weight").flatten(1)
            self._patch_D = parts.take("patch_embed.proj.bias")
            self._place_GD = parts.take("pos_embed.weight")
            self._blocks = []
            for i in range(config.layers):
                at = f"blocks.{i}"
                block = _Block(
                    norm=parts.norm(f"{at}.norm1", EPS),
                    qkv=parts.dense(f"{at}.attn.qkv"),
                    out=parts.dense(f"{at}.attn.proj"),
                    mlp_norm=parts.norm(f"{at}.norm2", EPS),
                    wide=parts.dense(f"{at}.mlp.linear_fc1"),
                    narrow=parts.dense(f"{at}.mlp.linear_fc2"),
                )
                self._blocks.append(block)
            self._merger = merger("merger", after=False)
            self._deep = {i: merger(f"merger_list.{n}", after=True) for n, i in enumerate(config.deepstack)}
            self._frequency = falling(config.width // config.heads // 2, ROPE_BASE)

    @torch.inference_mode()
    def encode(self, pictures: Sequence[tuple[torch.Tensor, Grid]]) -> list[Seen]:
        """One result a picture, of its patches [T, X] and its grid.

        Rows and columns are multiples of `merge`, T their product with the steps of time.
        """
        c = self.config
        for patches_TX, (steps, rows, columns) in pictures:
            assert rows % c.merge == columns % c.merge == 0, f"a grid of {rows} x {columns}, merged by {c.merge}"
            wanted = steps * rows * columns, c.pixels
            assert tuple(patches_TX.shape) == wanted, f"{tuple(patches_TX.shape)} patches where {wanted} are needed"
        grids = [grid for _, grid in pictures]
        places_T2 = torch.cat([places(grid, self.config.merge) for grid in grids])
        angle_TF = (places_T2.float()[..., None] * self._frequency).flatten(1)
        between = [self._between(grid) for grid in grids]
        tables = dict(zip(("cos", "sin"), halves(angle_TF), strict=True))
        tables |= {name: torch.cat([one[i] for one in between], 1) for i, name in enumerate(("index", "weight"))}
        sent = Staging(self.device).send({name: table.numpy() for name, table in tables.items()})
        cos_T1E, sin_T1E = sent["cos"], sent["sin"]
        x_TX = torch.cat([patches_TX for patches_TX, _ in pictures]).to(self.device, torch.float32)
        place_4TD = self._place_GD[sent["index"]] * sent["weight"][..., None]
        place_TD = place_4TD[0] + place_4TD[1] + place_4TD[2] + place_4TD[3]
        x_TD = F.linear(x_TX, self._patch_DX, self._patch_D) + place_TD
        lengths = [rows * columns for steps, rows, columns in grids for _ in range(steps)]
        features = []
        for i, block in enumerate(self._blocks):
            qkv_THE = block.qkv(block.norm(x_TD)).view(len(x_TD), 3, c.heads, c.width // c.heads)
            q_THE, k_THE = turn(qkv_THE[:, 0], cos_T1E, sin_T1E), turn(qkv_THE[:, 1], cos_T1E, sin_T1E)
            x_TD = x_TD + block.out(attend(q_THE, k_THE, qkv_THE[:, 2], lengths))
            x_TD = x_TD + block.narrow(F.gelu(block.wide(block.mlp_norm(x_TD)), approximate="tanh"))
            if i in self._deep:
                features.append(self._merge(self._deep[i], x_TD))
        vectors_ND = self._merge(self._merger, x_TD)
        features_LND = torch.stack(features) if features else vectors_ND.new_zeros(0, *vectors_ND.shape)
        counts = [steps * rows * columns // c.merge**2 for steps, rows, columns in grids]
        parts = zip(vectors_ND.split_with_sizes(counts), features_LND.split_with_sizes(counts, 1), strict=True)
        return [Seen(vectors.clone(), deep.clone()) for vectors, deep in parts]

    def _merge(self, how: _Merger, x_TD: torch.Tensor) -> torch.Tensor:
        wide = self.config.merge**2 * self.config.width
        x = how.norm(x_TD.reshape(-1, wide)) if how.after else how.norm(x_TD).view(-1, wide)
        return how.second(F.gelu(how.first(x)))

    def _between(self, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
        """index_4T and weight_4T: the four nearest places of the table for each patch of a grid, corners on corners."""
        side = self.config.grid
        axes = []
        for at, size in zip(places(grid, self.config.merge).unbind(1), grid[1:], strict=True):
            exact = at.float() * (side - 1) / max(size - 1, 1)
            low = exact.floor()
            share = exact - low
            axes.append(((low.long(), 1.0 - share), ((low.long() + 1).clamp(max=side - 1), share)))
        pairs = [(row, column) for row in axes[0] for column in axes[1]]
        index_4T = torch.stack([row * side + column for (row, _), (column, _) in pairs])
        return index_4T, torch.stack([row_share * column_share for (_, row_share), (_, column_share) in pairs])
