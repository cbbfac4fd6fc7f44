"""Our transformer, encoders and decoder against the parts of diffusers' pipeline, on tiny random checkpoints."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("diffusers")

import tiny_sd3
import torch
from diffusers import StableDiffusion3Pipeline
from omni_runtime.cards.sd3 import sd3 as card_of

from omni_runtime.errors import CheckpointError, MissingExtra
from omni_runtime.experts import sd3, sd3_text, sd3_vae
from omni_runtime.experts.mmdit import MMDiT, parameter_shapes
from omni_runtime.experts.slots import Slots
from omni_runtime.weights.diffusers_folder import FolderWeights
from omni_runtime.work import CallStep, Row

pytestmark = [pytest.mark.torch, pytest.mark.oracle, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sd3.5": {"qk_norm": "rms_norm", "dual_attention_layers": (0, 1), "num_layers": 3},
    "patch4": {"patch_size": 4, "pos_embed_max_size": 9, "num_layers": 1},
    "no-t5-shards": {"third": False, "shard": "200KB"},
}


def pipeline(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        missing = [part for part in ("text_encoder_3", "tokenizer_3") if not (folder / part).is_dir()]
        made = StableDiffusion3Pipeline.from_pretrained(str(folder), **dict.fromkeys(missing))
    made.set_progress_bar_config(disable=True)
    return made


@pytest.fixture(scope="module", params=KINDS)
def pair(request: Any, tmp_path_factory: Any) -> tuple[Path, Any]:
    folder = tiny_sd3.write(tmp_path_factory.mktemp("sd3"), **KINDS[request.param])
    return folder, pipeline(folder)


@torch.no_grad()
def test_the_transformer(pair: tuple[Path, Any]) -> None:
    folder, theirs = pair
    ours = sd3.build({"checkpoint": str(folder)}, "cpu").model
    fused = MMDiT(ours.config, FolderWeights(folder / "transformer", parameter_shapes(ours.config)), form="torch")
    patch = ours.config.patch_size
    generator = torch.Generator().manual_seed(1)
    for rows, columns in ((16, 16), (4 * patch, 2 * patch), (patch, 3 * patch)):
        latent = torch.randn(3, 4, rows, columns, generator=generator)
        text, pooled = torch.randn(3, 20, 64, generator=generator), torch.randn(3, 64, generator=generator)
        when = torch.tensor([1000.0, 333.3, 1.5])
        want = theirs.transformer(latent, text, pooled, when, return_dict=False)[0]
        for model in (ours, fused):  # as on a CPU; with the fused attention of a GPU
            torch.testing.assert_close(model.forward(latent, when, text, pooled), want, rtol=0, atol=2e-5)
        assert want.std() > 0.2, "flat: this proves nothing"


@pytest.mark.parametrize("prompt", ["a red cat", "", "Ünïcödé 日本 🐈", "long " * 200])
def test_the_text_encoders_bit_by_bit(pair: tuple[Path, Any], prompt: str) -> None:
    folder, theirs = pair
    ours = sd3_text.build({"checkpoint": str(folder)}, "cpu")
    slots = Slots("x")
    step = CallStep(0, {"prompt": (prompt,)}, {}, {"negative_prompt": "blurred"})
    rows = [Row(run, "encode", 1, 0, (), step) for run in (1, 2)]
    found = ours.encode(rows, slots)
    with torch.no_grad():
        embeds, negative, pooled, negative_pooled = theirs.encode_prompt(prompt, None, None, negative_prompt="blurred")
    want = {"embeds": embeds, "negative_embeds": negative, "pooled": pooled, "negative_pooled": negative_pooled}
    for result in found:
        for port, tensor in want.items():
            torch.testing.assert_close(slots.read(result.tensors[port][0]), tensor[0], rtol=0, atol=0)
    assert embeds.shape == (1, 77 + 256, 64)


def test_the_picture_bit_by_bit(pair: tuple[Path, Any]) -> None:
    folder, theirs = pair
    ours = sd3_vae.build({"checkpoint": str(folder)}, "cpu")
    slots = Slots("x")
    latent = torch.randn(1, 4, 16, 12, generator=torch.Generator().manual_seed(2))
    row = Row(1, "decode", 1, 0, (), CallStep(0, {}, {}, {}))
    ref = slots.keep(row, "latent", 0, latent[0])
    found = ours.decode([Row(1, "decode", 1, 0, (), CallStep(0, {}, {"latent": (ref,)}, {}))], slots)[0].items["image"][0]
    with torch.no_grad():
        raw = theirs.vae.decode(latent / 1.5 + 0.06, return_dict=False)[0]
    want = np.asarray(theirs.image_processor.postprocess(raw, output_type="pil")[0])
    np.testing.assert_array_equal(found, want)
    assert (found.dtype, found.shape) == (np.uint8, (32, 24, 3))
    assert found.std() > 20, "flat: this proves nothing"


# -- What is refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_sd3.write(tmp_path / "sd3")


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("model_index.json", {"_class_name": "FluxPipeline"}, "FluxPipeline"),
        ("model_index.json", {"image_encoder": ["transformers", "SiglipVisionModel"]}, "image_encoder"),
        ("scheduler/scheduler_config.json", {"use_karras_sigmas": True}, "use_karras_sigmas is on"),
        ("scheduler/scheduler_config.json", {"stochastic_sampling": True}, "stochastic_sampling is on"),
        ("scheduler/scheduler_config.json", {"invert_sigmas": True}, "invert_sigmas is on"),
        ("scheduler/scheduler_config.json", {"shfit": 3.0}, "did you mean 'shift'"),
        ("scheduler/scheduler_config.json", {"shift": "3"}, "shift.*'3'"),
        ("scheduler/scheduler_config.json", {"_class_name": "DDIMScheduler"}, "DDIMScheduler"),
        ("transformer/config.json", {"patch_size": None}, "patch_size=None"),
        ("vae/config.json", {"block_out_channels": []}, "block_out_channels"),
    ],
)
def test_a_card_names_what_it_cannot_do(folder: Path, file: str, changes: dict[str, Any], words: str) -> None:
    edit(folder / file, **changes)
    with pytest.raises(CheckpointError, match=words):
        card_of(str(folder))


def test_incomplete_encoders_and_decoders_are_refused(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    for part, build, name in (("text_encoder_2", sd3_text.build, "model"), ("vae", sd3_vae.build, "diffusion_pytorch_model")):
        path = folder / part / f"{name}.safetensors"
        tensors = load_file(path)
        lost = next(key for key in sorted(tensors) if "encoder" not in key or part != "vae")
        save_file({key: value for key, value in tensors.items() if key != lost}, path, {"format": "pt"})
        with pytest.raises(CheckpointError, match=rf"{part}: missing keys: {lost}"):
            build({"checkpoint": str(folder)}, "cpu")
        save_file({**tensors, "extra": torch.zeros(1)}, path, {"format": "pt"})
        with pytest.raises(CheckpointError, match=rf"{part}: unexpected keys: extra"):
            build({"checkpoint": str(folder)}, "cpu")
        path.unlink()
        with pytest.raises(CheckpointError, match=part):
            build({"checkpoint": str(folder)}, "cpu")
        save_file(tensors, path, {"format": "pt"})
    edit(folder / "transformer/config.json", joint_attention_dim=60)
    with pytest.raises(CheckpointError, match="joint_attention_dim is 60"):
        sd3_text.build({"checkpoint": str(folder)}, "cpu")


@pytest.mark.parametrize(("build", "library"), [(sd3_text.build, "transformers"), (sd3_vae.build, "diffusers")])
def test_a_missing_library_names_the_extra(build: Any, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=r"omni_runtime\[diffusers\]"):
        build({"checkpoint": "x"}, "cpu")
