"""The transformer of Stable Diffusion 3: joint attention of image and text tokens, both modulated by time (Esser et al. 2024).

Parameter names are those of a `transformer/` folder as diffusers writes it.

Suffixes: B batch, N image tokens, S text tokens, T = N + S, D width, H heads, E head dimension, C channels, Y and X rows and
columns of a latent, P pooled text features, J text features, M modulation vectors of a block times D.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from omni_runtime.errors import CardError, CheckpointError, unknown
from omni_runtime.kernels import JointPlan, gate, joint_attention, joint_plan, modulate, rms_norm

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, each [B, N, H, E]"""

WAVES = 256  # features of the sines and cosines that a timestep becomes
EPS = 1e-6  # of the norm of queries and keys


@dataclass(frozen=True)
class MMDiTConfig:
    """Shape of the network; fields as in `transformer/config.json`.

    Raises:
        CheckpointError: a size is not positive, two contradict each other, or it asks for what is not built here.
    """

    patch_size: int
    in_channels: int
    num_layers: int
    attention_head_dim: int
    num_attention_heads: int
    joint_attention_dim: int
    caption_projection_dim: int
    pooled_projection_dim: int
    out_channels: int
    pos_embed_max_size: int
    sample_size: int = 128  # of the pictures it was trained on; only a default
    dual_attention_layers: tuple[int, ...] = ()
    qk_norm: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self)[:11]:
            value = getattr(self, field.name)
            if type(value) is not int or value <= 0:
                raise CheckpointError(f"{field.name}={value!r}, a whole number above 0 is needed")
        if self.caption_projection_dim != self.width:
            heads = f"num_attention_heads x attention_head_dim = {self.width}"
            raise CheckpointError(f"caption_projection_dim={self.caption_projection_dim}, {heads} is needed: they attend jointly")
        if self.out_channels != self.in_channels:
            raise CheckpointError(f"out_channels={self.out_channels}, in_channels={self.in_channels} are needed to step a latent")
        if self.qk_norm not in (None, "rms_norm"):
            raise CheckpointError(f"qk_norm={self.qk_norm!r} is not built here; null or 'rms_norm' is")
        if bad := [i for i in self.dual_attention_layers if not 0 <= i < self.num_layers]:
            raise CheckpointError(f"dual_attention_layers names layer {bad[0]}, there are {self.num_layers}")

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> MMDiTConfig:
        """From the contents of `config.json`; its keys that begin with "_" say who wrote it.

        Raises:
            CheckpointError: another class, or an unknown or missing key.
        """
        if (found := config.get("_class_name")) != "SD3Transformer2DModel":
            raise CheckpointError(f"_class_name is {found!r}, 'SD3Transformer2DModel' is needed")
        given = {key: value for key, value in config.items() if not key.startswith("_")}
        known = {field.name: field for field in fields(cls)}
        for key in given:
            if key not in known:
                raise CheckpointError(unknown("key", key, known))
        given.setdefault("out_channels", given.get("in_channels"))
        if given["out_channels"] is None:
            given["out_channels"] = given.get("in_channels")
        if missing := [name for name in list(known)[:10] if name not in given]:
            raise CheckpointError(f"key {missing[0]!r} is missing")
        given["dual_attention_layers"] = tuple(given.get("dual_attention_layers") or ())
        return cls(**given)


def parameter_shapes(config: MMDiTConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint."""
    width, head, patch = config.width, config.attention_head_dim, config.patch_size
    shapes: dict[str, tuple[int, ...]] = {
        "pos_embed.pos_embed": (1, config.pos_embed_max_size**2, width),
        "pos_embed.proj.weight": (width, config.in_channels, patch, patch),
        "pos_embed.proj.bias": (width,),
    }

    def linear(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    for name, inputs in (("timestep_embedder", WAVES), ("text_embedder", config.pooled_projection_dim)):
        linear(f"time_text_embed.{name}.linear_1", inputs, width)
        linear(f"time_text_embed.{name}.linear_2", width, width)
    linear("context_embedder", config.joint_attention_dim, width)
    for i in range(config.num_layers):
        at, last, dual = f"transformer_blocks.{i}", i + 1 == config.num_layers, i in config.dual_attention_layers
        linear(f"{at}.norm1.linear", width, (9 if dual else 6) * width)
        linear(f"{at}.norm1_context.linear", width, (2 if last else 6) * width)
        ours = ["attn.to_q", "attn.to_k", "attn.to_v", "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_out.0"]
        ours += [] if last else ["attn.to_add_out"]
        ours += ["attn2.to_q", "attn2.to_k", "attn2.to_v", "attn2.to_out.0"] if dual else []
        for name in ours:
            linear(f"{at}.{name}", width, width)
        for name in ["ff"] if last else ["ff", "ff_context"]:
            linear(f"{at}.{name}.net.0.proj", width, 4 * width)
            linear(f"{at}.{name}.net.2", 4 * width, width)
        if config.qk_norm:
            norms = ["attn.norm_q", "attn.norm_k", "attn.norm_added_q", "attn.norm_added_k"]
            norms += ["attn2.norm_q", "attn2.norm_k"] if dual else []
            shapes |= {f"{at}.{name}.weight": (head,) for name in norms}
    linear("norm_out.linear", width, 2 * width)
    linear("proj_out", width, patch * patch * config.out_channels)
    return shapes


class _Parts:
    """Tensors of a checkpoint on their device, taken by name, several linear layers of one input as one."""

    def __init__(self, weights: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self._weights, self._device = weights, device

    def tensor(self, name: str) -> torch.Tensor:
        return self._weights[name].to(self._device, torch.float32)

    def linear(self, *names: str) -> _Linear:
        weights = [self.tensor(f"{name}.weight") for name in names]
        biases = [self.tensor(f"{name}.bias") for name in names]
        return _Linear(torch.cat(weights), torch.cat(biases))


class _Linear:
    """x ↦ x Wᵀ + b."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class _Heads:
    """Queries, keys and values of one stream of tokens, and the way back."""

    def __init__(
        self,
        parts: _Parts,
        config: MMDiTConfig,
        at: str,
        qkv: tuple[str, str, str],
        out: str | None,
        norm: str,
        form: str | None,
    ) -> None:
        self._qkv = parts.linear(*(f"{at}.{name}" for name in qkv))
        self.out = parts.linear(f"{at}.{out}") if out else None
        self._norms = None
        if config.qk_norm:
            self._norms = tuple(parts.tensor(f"{at}.{norm}_{x}.weight") for x in "qk")
        self._head, self._form = config.attention_head_dim, form

    def __call__(self, x_BND: torch.Tensor) -> QKV:
        batch, tokens, _ = x_BND.shape
        q, k, v = self._qkv(x_BND).view(batch, tokens, 3, -1, self._head).unbind(2)
        if self._norms is not None:
            q, k = rms_norm(q, self._norms[0], EPS, self._form), rms_norm(k, self._norms[1], EPS, self._form)
        return q, k, v


@dataclass(frozen=True)
class Plans:
    """How a batch attends: image and text to both, and where a layer has a second attention, the image to itself."""

    joint: JointPlan
    alone: JointPlan


def _attend(first: QKV, second: QKV | None, plan: JointPlan | None, form: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Every token of a sample sees every token of both streams: [B, N, D] and [B, S, D].

    With a plan in one kernel that reads both streams where they lie; without, copied into one and by torch, which on a CPU takes
    less than the kernel's definition.
    """
    batch, tokens, heads, head = first[0].shape
    if plan is None:
        if second is None:
            q, k, v = (x_BNHE.transpose(1, 2) for x_BNHE in first)
            mixed_BTD = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return mixed_BTD, mixed_BTD[:, :0]
        q, k, v = (torch.cat([x.transpose(1, 2), y.transpose(1, 2)], 2) for x, y in zip(first, second, strict=True))
        mixed_BTD = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        own_BND, other_BSD = mixed_BTD.split([tokens, second[0].shape[1]], 1)
        return own_BND, other_BSD
    ours = [x_BNHE.flatten(0, 1) for x_BNHE in first]
    theirs = [x_NHE[:0] for x_NHE in ours] if second is None else [x_BSHE.flatten(0, 1) for x_BSHE in second]
    own_NHE, other_SHE = joint_attention(ours, theirs, plan, head**-0.5, form)
    return own_NHE.view(batch, tokens, heads * head), other_SHE.view(batch, len(other_SHE) // batch, heads * head)


class _FeedForward:
    """Two linear layers with tanh-approximated GELU between them."""

    def __init__(self, parts: _Parts, at: str) -> None:
        self._up, self._down = parts.linear(f"{at}.net.0.proj"), parts.linear(f"{at}.net.2")

    def __call__(self, x_BND: torch.Tensor) -> torch.Tensor:
        return self._down(F.gelu(self._up(x_BND), approximate="tanh"))


class _Block:
    """One layer. The last one of a network does not go on with the text tokens (`last`)."""

    def __init__(self, parts: _Parts, config: MMDiTConfig, i: int, form: str | None) -> None:
        at, self._form = f"transformer_blocks.{i}", form
        self.last, self.dual = i + 1 == config.num_layers, i in config.dual_attention_layers
        self._modulation, self._text_modulation = parts.linear(f"{at}.norm1.linear"), parts.linear(f"{at}.norm1_context.linear")
        self._image = _Heads(parts, config, f"{at}.attn", ("to_q", "to_k", "to_v"), "to_out.0", "norm", form)
        names = ("add_q_proj", "add_k_proj", "add_v_proj")
        self._text = _Heads(parts, config, f"{at}.attn", names, None if self.last else "to_add_out", "norm_added", form)
        self._second = None
        if self.dual:
            self._second = _Heads(parts, config, f"{at}.attn2", ("to_q", "to_k", "to_v"), "to_out.0", "norm", form)
        self._feed = _FeedForward(parts, f"{at}.ff")
        self._text_feed = None if self.last else _FeedForward(parts, f"{at}.ff_context")

    def __call__(
        self, image_BND: torch.Tensor, text_BSD: torch.Tensor, told_BD: torch.Tensor, plans: Plans | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Image and text tokens one layer on. `told_BD` is SiLU of what the layer is told about time and text."""
        width, form = image_BND.shape[-1], self._form
        m = self._modulation(told_BD).split(width, 1)  # shift, scale, gate of attention; of the feed-forward; of the second
        c = self._text_modulation(told_BD).split(width, 1)  # the same, or (scale, shift) in the last layer
        text_shift, text_scale = (c[1], c[0]) if self.last else (c[0], c[1])
        first = self._image(modulate(image_BND, m[0], m[1], form))
        second = self._text(modulate(text_BSD, text_shift, text_scale, form))
        own_BND, text_own_BSD = _attend(first, second, None if plans is None else plans.joint, form)
        assert self._image.out is not None
        after_BND = gate(image_BND, self._image.out(own_BND), m[2], form)
        if self._second is not None:  # attention of the image to itself, from the same input as the first
            assert self._second.out is not None
            plan = None if plans is None else plans.alone
            alone_BND, _ = _attend(self._second(modulate(image_BND, m[6], m[7], form)), None, plan, form)
            after_BND = gate(after_BND, self._second.out(alone_BND), m[8], form)
        after_BND = gate(after_BND, self._feed(modulate(after_BND, m[3], m[4], form)), m[5], form)
        if self._text.out is None or self._text_feed is None:
            return after_BND, text_BSD
        text_BSD = gate(text_BSD, self._text.out(text_own_BSD), c[2], form)
        return after_BND, gate(text_BSD, self._text_feed(modulate(text_BSD, c[3], c[4], form)), c[5], form)


@lru_cache(maxsize=64)
def _plans(rows: int, image: int, text: int, device: torch.device) -> Plans:
    return Plans(joint_plan([(image, text)] * rows, device), joint_plan([(image, 0)] * rows, device))


class MMDiT:
    """Resident weights, float32.

    Args:
        weights: by the names and in the shapes of `parameter_shapes`; each is read once, so a lazy mapping never holds all.
        form: of the kernels, see `omni_runtime.kernels`. With one, or on a GPU, attention is the fused kernel.
    """

    def __init__(
        self, config: MMDiTConfig, weights: Mapping[str, torch.Tensor], device: str = "cpu", form: str | None = None
    ) -> None:
        self.config, self.device, self.form = config, torch.device(device), form
        self._fused = form is not None or self.device.type == "cuda"
        parts = _Parts(weights, self.device)
        with torch.inference_mode():
            side = config.pos_embed_max_size
            self._places_YXD = parts.tensor("pos_embed.pos_embed").view(side, side, config.width)
            self._patch = parts.tensor("pos_embed.proj.weight").flatten(1), parts.tensor("pos_embed.proj.bias")
            self._time = [parts.linear(f"time_text_embed.timestep_embedder.linear_{i}") for i in (1, 2)]
            self._pooled = [parts.linear(f"time_text_embed.text_embedder.linear_{i}") for i in (1, 2)]
            self._text = parts.linear("context_embedder")
            self._blocks = [_Block(parts, config, i, form) for i in range(config.num_layers)]
            self._last_modulation, self._out = parts.linear("norm_out.linear"), parts.linear("proj_out")
            half = WAVES // 2
            self._frequency = torch.exp(-math.log(10_000) / half * torch.arange(half, device=self.device))

    def plans(self, rows: int, size: tuple[int, ...], tokens: int) -> Plans | None:
        """How a batch of so many rows attends, with latents of this size and texts of so many tokens; None: without a plan.

        To make one waits for the device, so whoever captures `forward` asks before, and holds it as long as the graph.
        """
        patch = self.config.patch_size
        return _plans(rows, (size[-2] // patch) * (size[-1] // patch), tokens, self.device) if self._fused else None

    @torch.inference_mode()
    def forward(
        self,
        latent_BCYX: torch.Tensor,
        timestep_B: torch.Tensor,
        text_BSJ: torch.Tensor,
        pooled_BP: torch.Tensor,
        plans: Plans | None = None,
    ) -> torch.Tensor:
        """The velocity noise - clean that each row of a batch moves along, [B, C, Y, X]. `plans` are made if none are given.

        Rows are independent of each other, up to the order of summation that matrix products of another size take.

        Raises:
            CardError: a latent is no multiple of the patch, or larger than the table of places.
        """
        config = self.config
        patch, (rows, columns) = config.patch_size, latent_BCYX.shape[2:]
        height, width = rows // patch, columns // patch
        if rows % patch or columns % patch or max(height, width) > config.pos_embed_max_size:
            most = config.pos_embed_max_size * patch
            raise CardError(f"a latent of {rows} x {columns}: multiples of {patch} up to {most} are needed")
        if plans is None:
            plans = self.plans(len(latent_BCYX), latent_BCYX.shape, text_BSJ.shape[1])
        told_BD = F.silu(self._tell(timestep_B, pooled_BP))
        text_BSD = self._text(text_BSJ)
        # Token (y, x) is the patch there, its elements in the order channel, row, column.
        cut_BNK = F.pixel_unshuffle(latent_BCYX, patch).flatten(2).transpose(1, 2)
        top, left = (config.pos_embed_max_size - height) // 2, (config.pos_embed_max_size - width) // 2
        places_ND = self._places_YXD[top : top + height, left : left + width].reshape(height * width, config.width)
        image_BND = F.linear(cut_BNK, *self._patch) + places_ND
        for block in self._blocks:
            image_BND, text_BSD = block(image_BND, text_BSD, told_BD, plans)
        scale_BD, shift_BD = self._last_modulation(told_BD).chunk(2, 1)
        out_BNK = self._out(modulate(image_BND, shift_BD, scale_BD, self.form))
        # Elements of a token come in the order row, column, channel here.
        return (
            out_BNK.view(-1, height, width, patch, patch, config.out_channels)
            .permute(0, 5, 1, 3, 2, 4)
            .reshape(latent_BCYX.shape)
        )

    def _tell(self, timestep_B: torch.Tensor, pooled_BP: torch.Tensor) -> torch.Tensor:
        """What all layers are told: the time as waves, and the text as a whole."""
        angle_BW = timestep_B[:, None] * self._frequency
        waves_BW = torch.cat([angle_BW.cos(), angle_BW.sin()], 1)
        return self._time[1](F.silu(self._time[0](waves_BW))) + self._pooled[1](F.silu(self._pooled[0](pooled_BP)))
