"""The decoder of Stable Diffusion 3's autoencoder as an expert: op `decode` turns a latent into a picture.

Wraps diffusers, which is imported when the expert is built. Pictures are decoded one at a time: a batch would change their last
bits, and one fills a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from omni_runtime.errors import CheckpointError, MissingExtra, RequestError
from omni_runtime.experts.base import Launched, Op
from omni_runtime.experts.later import Later, launches, settled
from omni_runtime.experts.sd3_options import read_options
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.staging import Reading
from omni_runtime.work import CallStep, Row, StepResult


class SD3VAE:
    """The op around a decoder. Keeps no state.

    Args:
        decode: [1, C, Y, X] to [1, 3, H, W] in -1 .. 1.
        scale, shift: what the denoiser's latents were divided by and moved by: latent / scale + shift is the decoder's.
        late: whether a batch is launched, and read when it is collected.
    """

    def __init__(self, decode: Any, scale: float, shift: float, late: bool = False) -> None:
        self._decode, self._scale, self._shift, self.late = decode, scale, shift, late
        self.ops: Mapping[str, Op] = {"decode": self.decode}

    @torch.inference_mode()
    def decode(self, rows: Sequence[Row], slots: Slots) -> list[StepResult] | Launched:
        """Per row, from one tensor [C, Y, X] in slot "latent": item "image", uint8 [H, W, 3].

        Raises:
            RequestError: inputs of another shape.
            FloatingPointError: the picture is not finite.
        """
        pictures = [self._picture(row, slots) for row in rows]

        def read(*found: torch.Tensor) -> list[StepResult]:
            results = []
            for row, levels_HW3, fine in zip(rows, found[::2], found[1::2], strict=True):
                if not bool(fine):
                    raise FloatingPointError(f"request {row.run}, loop {row.loop!r}: the picture is not finite")
                results.append(StepResult(items={"image": [levels_HW3.numpy()]}))
            return results

        return settled(Later(Reading(*(x for pair in pictures for x in pair)), read), self.late)

    def _picture(self, row: Row, slots: Slots) -> tuple[torch.Tensor, torch.Tensor]:
        """levels_HW3, and whether they were made of finite numbers."""
        step = row.payload
        if not isinstance(step, CallStep) or len(step.tensors.get("latent", ())) != 1:
            raise RequestError(f"loop {row.loop!r}: op 'decode' needs one tensor in slot 'latent'")
        latent_CYX = slots.read(step.tensors["latent"][0])
        image_3HW = self._decode(latent_CYX[None] / self._scale + self._shift)[0]
        levels_HW3 = ((image_3HW / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0)
        return levels_HW3.contiguous(), image_3HW.isfinite().all()


def build(options: Mapping[str, Any], device: str) -> SD3VAE:
    """The expert that a card names `omni_runtime.experts.sd3_vae:build`.

    Raises:
        CardError: a wrong option.
        MissingExtra: diffusers is not installed.
        CheckpointError: the checkpoint has no such autoencoder, or its weights are not complete.
    """
    try:
        from diffusers import AutoencoderKL
    except ImportError as error:
        raise MissingExtra(f"the picture decoder needs diffusers: pip install 'omni_runtime[diffusers]' ({error})") from None
    from omni_runtime.weights.json_file import read_json

    folder = Path(read_options(options, "sd3_vae").checkpoint) / "vae"
    config = read_json(folder / "config.json")
    if (found := config.get("_class_name")) != "AutoencoderKL":
        raise CheckpointError(f"{folder / 'config.json'}: _class_name is {found!r}, 'AutoencoderKL' is needed")
    try:
        how = {"output_loading_info": True, "low_cpu_mem_usage": False, "use_safetensors": True, "local_files_only": True}
        vae, told = AutoencoderKL.from_pretrained(str(folder), torch_dtype=torch.float32, **how)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: {error}") from None
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if names := sorted(map(str, told[what])):
            raise CheckpointError(f"{folder}: {what.replace('_', ' ')}: {names[0]} and {len(names) - 1} others")
    vae = vae.eval().to(device)
    scale, shift = vae.config.scaling_factor, vae.config.shift_factor
    if not scale or shift is None:
        raise CheckpointError(f"{folder / 'config.json'}: scaling_factor={scale}, shift_factor={shift}; numbers are needed")
    return SD3VAE(lambda latent_1CYX: vae.decode(latent_1CYX, return_dict=False)[0], scale, shift, launches(vae.device))
