"""A denoise step and a vocoder's convolutions by their kernels in the interpreter, against the same by torch's definitions.

Not collected by name: `test_triton_forms.py` runs it.
"""

from __future__ import annotations

import numpy as np
import torch
from against import poisoned

from omni_runtime.draw import Draw
from omni_runtime.experts import mmdit, sd3
from omni_runtime.experts.code2wav_fused import FusedWaves
from omni_runtime.experts.slots import Slots
from omni_runtime.weights.qwen3_omni_parts import VocoderConfig
from omni_runtime.work import DenoiseStep, Row

CONFIG = mmdit.MMDiTConfig(
    patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2, joint_attention_dim=12,
    caption_projection_dim=16, pooled_projection_dim=10, out_channels=4, pos_embed_max_size=4, qk_norm="rms_norm",
    dual_attention_layers=(0,),
)  # fmt: skip


def denoised(form: str) -> list[torch.Tensor]:
    """One step of two requests, one of which is guided."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.8 / (np.prod(shape) / shape[0]) ** 0.5
        for name, shape in mmdit.parameter_shapes(CONFIG).items()
    }
    expert = sd3.SD3Denoiser(mmdit.MMDiT(CONFIG, weights, form=form), late=True)
    slots, rows = Slots("x"), []
    for run in (1, 2):
        source = Row(run, "encode", 1, 0, (), DenoiseStep(0, 1, 1.0, 0.0, 0.0, 1.0, (), Draw(0, 0), {}))
        shapes = {"embeds": (3, 12), "pooled": (10,), "negative_embeds": (3, 12), "negative_pooled": (10,)}
        told = {name: (slots.keep(source, name, 0, torch.randn(s, generator=generator)),) for name, s in shapes.items()}
        step = DenoiseStep(1, 4, 0.75, 0.5, 750.0, 1.0 + run, (4, 4, 6), Draw(run, 1), told, ("latent", "preview"))
        rows.append(Row(run, "denoise", 2, 0, (), step))
    given = [torch.randn(4, 4, 6, generator=generator) for _ in rows]
    for row, latent_CYX in zip(rows, given, strict=True):
        slots.state(row, sd3.Trajectory).move(0, latent_CYX, latent_CYX)
    results = expert.launch(rows, slots).collect()
    return [slots.read(result.tensors[port][0]) for result in results for port in ("latent", "preview")]


def test_a_denoise_step() -> None:
    wanted = denoised("torch")
    with poisoned():
        found = denoised("triton")
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5)
        assert other.std() > 0.3


W, C = 6, 8
VOCODER = VocoderConfig(
    codebook=8, groups=2, width=W, layers=1, heads=1, kv_heads=1, head_dim=4, ffn=8, window=2, rope_theta=1e4, eps=1e-5,
    bias=False, ratios=(2,), rates=(3,), channels=C,
)  # fmt: skip
SHAPES = {
    "upsample.0.0.conv.weight": (W, W, 2),
    "upsample.0.1.dwconv.conv.weight": (W, 1, 7),
    "upsample.0.1.pwconv1.weight": (4 * W, W),
    "upsample.0.1.pwconv1.bias": (4 * W,),
    "upsample.0.1.pwconv2.weight": (W, 4 * W),
    "decoder.0.conv.weight": (C, W, 7),
    "decoder.0.conv.bias": (C,),
    "decoder.1.block.0.alpha": (C,),
    "decoder.1.block.0.beta": (C,),
    "decoder.1.block.1.conv.weight": (C, C // 2, 6),
    **{f"decoder.1.block.{j}.conv1.conv.weight": (C // 2, C // 2, 7) for j in (2, 3, 4)},
    **{f"decoder.1.block.{j}.conv2.conv.weight": (C // 2, C // 2, 1) for j in (2, 3, 4)},
    "decoder.3.conv.weight": (1, C // 2, 7),
    "decoder.3.conv.bias": (1,),
}


def waves(form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Two streams in two pieces: the sound, and the tails after it."""
    generator = torch.Generator().manual_seed(1)

    def take(name: str) -> torch.Tensor:
        shape = SHAPES.get(name, (W,) if name.startswith("upsample") else (C // 2,))
        return torch.randn(shape, generator=generator) * (0.3 if len(shape) == 1 else 0.6 / (shape[1] * shape[-1]) ** 0.5)

    made = FusedWaves(VOCODER, take, torch.device("cpu"), form)
    x_RCT, (tails_F,) = torch.randn(2, W, 3, generator=generator), made.fresh()
    first, kept = made(x_RCT[..., :1], [tails_F.expand(2, -1)], True)
    then, kept = made(x_RCT[..., 1:], kept, False)
    return torch.cat([first, then], 1), kept[0]


def test_the_convolutions_of_a_vocoder() -> None:
    wanted = waves("torch")
    with poisoned():
        found = waves("triton")
    assert wanted[0].shape == (2, 3 * VOCODER.hop - VOCODER.lag)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5)
    assert wanted[0].std() > 0.05 and (wanted[0].abs() < 1).all()
