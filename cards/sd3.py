"""Stable Diffusion 3 and 3.5 (Esser et al. 2024): a picture from a prompt, out of a folder as `diffusers` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_runtime.card import (
    DiffusionDenoise,
    Each,
    ExpertSpec,
    FlowMatch,
    ModelCard,
    OneShot,
    OpCost,
    OpLimits,
    Port,
    Raster,
    Slot,
)
from omni_runtime.errors import CardError, CheckpointError, unknown
from omni_runtime.weights.json_file import read_json

FOLDER = "give the folder that holds model_index.json"

MEDIUM: dict[str, dict[str, Any]] = {  # sizes of SD3 medium, to draw and simulate it without a checkpoint
    "scheduler": {"shift": 3.0},
    "transformer": {"in_channels": 16, "patch_size": 2, "pos_embed_max_size": 192, "sample_size": 128},
    "vae": {"block_out_channels": [128, 256, 512, 512]},
}
OFF = ("invert_sigmas", "stochastic_sampling", "use_beta_sigmas", "use_exponential_sigmas", "use_karras_sigmas")

# Nobody measured these: assumed for SD3 medium at 300 TFLOP/s, from its operation counts. A guided step of 1024 x 1024 (two
# rows of 16,384 cells, 20 TFLOP each) would take 135 ms, the text encoders 25 ms, the autoencoder 80 ms.
ENCODE = OpCost(batch=5e-3, unit=2e-2, work=0.0, reach=0.0)
DENOISE = OpCost(batch=3e-3, unit=1e-3, work=4e-6, reach=0.0)
DECODE = OpCost(batch=2e-3, unit=0.0, work=3e-7, reach=0.0)
EMBEDS = ("embeds", "pooled", "negative_embeds", "negative_pooled")


def sd3(checkpoint: str | None = None, *, dtype: str = "float32", max_sequence_length: int = 256) -> ModelCard:
    """Loops: `encode` (prompt to conditioning), `denoise`, `decode` (latent to picture), `develop` (the same, for previews).

    Args:
        checkpoint: folder that holds model_index.json. Without one the card has the sizes of SD3 medium and cannot be loaded.
        dtype: "float32".
        max_sequence_length: tokens that the third text encoder gives, 1 .. 512; short prompts are padded, long ones cut.

    Raises:
        CheckpointError: it is no folder of a Stable Diffusion 3 model, or asks for a way of sampling that is not offered.
        CardError: a wrong argument.
    """
    if dtype != "float32":
        raise CardError(f"sd3: dtype={dtype!r}, only 'float32' is computed here so far")
    if type(max_sequence_length) is not int or not 1 <= max_sequence_length <= 512:
        raise CardError(f"sd3: max_sequence_length={max_sequence_length!r}, 1 .. 512 is needed")
    files = MEDIUM if checkpoint is None else _files(Path(checkpoint))
    options = {"checkpoint": checkpoint or "", "dtype": dtype}
    schedule = _schedule(files["scheduler"], checkpoint or "sd3")
    image = {"image": Port(type="image")}
    return ModelCard(
        name="sd3",
        description=f"Stable Diffusion 3, float32, {checkpoint or 'no checkpoint'}",
        experts={
            "text": ExpertSpec(
                build="omni_runtime.experts.sd3_text:build",
                ops={"encode": OpLimits(units=8, size=8, cost=ENCODE)},
                options={**options, "max_sequence_length": max_sequence_length},
            ),
            "transformer": ExpertSpec(
                build="omni_runtime.experts.sd3:build",
                ops={"denoise": OpLimits(units=8, size=16, cost=DENOISE)},
                options=options,
            ),
            "vae": ExpertSpec(
                build="omni_runtime.experts.sd3_vae:build",
                ops={"decode": OpLimits(units=1, size=1, cost=DECODE)},
                options=options,
            ),
        },
        loops={
            "encode": OneShot(
                expert="text",
                op="encode",
                reads={"prompt": Slot(type="prompt")},
                ports={name: Port(type="hidden", device=True) for name in EMBEDS},
                defaults={"negative_prompt": ""},
            ),
            "denoise": DiffusionDenoise(
                expert="transformer",
                reads={name: Slot(type="hidden") for name in EMBEDS},
                state_blocks=1,
                max_steps=schedule.num_train_timesteps,
                schedule=schedule,
                raster=_raster(files["transformer"], files["vae"], checkpoint or "sd3"),
                defaults={"steps": 28, "guidance_scale": 7.0},
            ),
            "decode": OneShot(expert="vae", op="decode", reads={"latent": Slot(type="latent")}, ports=image),
            "develop": Each(expert="vae", op="decode", reads={"latent": Slot(type="latent", mode="stream")}, ports=image),
        },
    )


def _files(folder: Path) -> dict[str, dict[str, Any]]:
    index = read_json(folder / "model_index.json", FOLDER)
    if (found := index.get("_class_name")) != "StableDiffusion3Pipeline":
        raise CheckpointError(f"{folder}: model_index.json is of {found!r}, 'StableDiffusion3Pipeline' is needed")
    if adapter := [name for name in ("image_encoder", "feature_extractor") if (index.get(name) or [None])[0] is not None]:
        raise CheckpointError(f"{folder}: model_index.json has {adapter[0]!r}; image prompts are not offered")
    return {
        "scheduler": read_json(folder / "scheduler" / "scheduler_config.json", FOLDER),
        "transformer": read_json(folder / "transformer" / "config.json", FOLDER),
        "vae": read_json(folder / "vae" / "config.json", FOLDER),
    }


def _schedule(config: Mapping[str, Any], where: str) -> FlowMatch:
    """`scheduler_config.json`, every key of it read or refused."""
    what = f"{where}: scheduler_config.json"
    if (found := config.get("_class_name", "FlowMatchEulerDiscreteScheduler")) != "FlowMatchEulerDiscreteScheduler":
        raise CheckpointError(f"{what}: _class_name is {found!r}, 'FlowMatchEulerDiscreteScheduler' is needed")
    given = {key: value for key, value in config.items() if not key.startswith("_")}
    for key in OFF:
        if given.pop(key, False):
            raise CheckpointError(f"{what}: {key} is on; that way of sampling is not offered")
    for key in given:
        if key not in FlowMatch.model_fields:
            raise CheckpointError(f"{what}: " + unknown("key", key, {*FlowMatch.model_fields, *OFF}))
    try:
        return FlowMatch(**given)
    except CardError as error:
        raise CheckpointError(f"{what}: {error}") from None


def _raster(transformer: Mapping[str, Any], vae: Mapping[str, Any], where: str) -> Raster:
    """Sizes of pictures, from those of the transformer and the autoencoder."""

    def size(key: str) -> int:
        if type(value := transformer.get(key)) is not int or value < 1:
            raise CheckpointError(f"{where}: transformer/config.json: {key}={value!r}, a whole number above 0 is needed")
        return value

    blocks = vae.get("block_out_channels")
    if not isinstance(blocks, list) or not blocks:
        raise CheckpointError(f"{where}: vae/config.json: block_out_channels={blocks!r}, a list is needed")
    factor, patch = 2 ** (len(blocks) - 1), size("patch_size")
    side = size("sample_size") * factor
    try:
        return Raster(
            channels=size("in_channels"),
            factor=factor,
            patch=patch,
            largest=size("pos_embed_max_size") * patch * factor,
            width=side,
            height=side,
        )
    except CardError as error:
        raise CheckpointError(f"{where}: {error}") from None
