"""The denoise op on random weights: batches, guidance, state, noise; and what a folder of weights must hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omni_runtime.kernels import gate, guided_euler, modulate
from safetensors.torch import save_file

from omni_runtime.errors import CardError, CheckpointError, RequestError
from omni_runtime.experts import sd3
from omni_runtime.experts.mmdit import MMDiT, MMDiTConfig, parameter_shapes
from omni_runtime.experts.philox_noise import normal_noise
from omni_runtime.experts.sd3 import SD3Denoiser
from omni_runtime.experts.sd3_options import read_options
from omni_runtime.experts.slots import Slots
from omni_runtime.weights.diffusers_folder import FolderWeights
from omni_runtime.work import DenoiseStep, Draw, Row, TensorRef

pytestmark = pytest.mark.torch

CONFIG: dict[str, Any] = {
    "_class_name": "SD3Transformer2DModel",
    "patch_size": 2,
    "in_channels": 4,
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "joint_attention_dim": 12,
    "caption_projection_dim": 16,
    "pooled_projection_dim": 10,
    "pos_embed_max_size": 8,
}
SIZE = (4, 6, 8)


def weights(config: MMDiTConfig) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator) * 0.8 / (np.prod(shape) / shape[0]) ** 0.5
        for name, shape in parameter_shapes(config).items()
    }


@pytest.fixture(scope="module")
def expert() -> SD3Denoiser:
    config = MMDiTConfig.read(CONFIG)
    return SD3Denoiser(MMDiT(config, weights(config)))


class Desk:
    """Makes rows of requests and runs them; each request has conditioning of its own."""

    def __init__(self, expert: SD3Denoiser) -> None:
        self.expert, self.slots = expert, Slots("x")

    def row(self, run: int, step: int, *, scale: float = 3.0, poison: bool = False, tokens: int = 5, **more: Any) -> Row:
        """A request whose conditioning follows from its number; `poison` makes it NaN."""
        generator = torch.Generator().manual_seed(run)
        conditioning: dict[str, tuple[TensorRef, ...]] = {}
        source = Row(run, "encode", 1, 0, (), DenoiseStep(0, 1, 1.0, 0.0, 0.0, 1.0, (), Draw(0, 0), {}))
        for name, shape in (
            ("embeds", (tokens, 12)),
            ("pooled", (10,)),
            ("negative_embeds", (tokens, 12)),
            ("negative_pooled", (10,)),
        ):
            made = torch.randn(shape, generator=generator)
            conditioning[name] = (self.slots.keep(source, name, 0, made * float("nan") if poison else made),)
        sigma = 1.0 - step / 8
        fields = {
            "step": step,
            "steps": 8,
            "sigma": sigma,
            "target": sigma - 0.125,
            "timestep": 1000 * sigma,
            "guidance_scale": scale,
            "size": SIZE,
            "draw": Draw(run, 1),
            "conditioning": conditioning,
            "keep": ("latent", "preview"),
        }
        return Row(run, "denoise", 2, 0, (), DenoiseStep(**{**fields, **more}))

    def run(self, *rows: Row) -> list[Any]:
        return [self.slots.read(result.tensors["latent"][0]) for result in self.expert.denoise(rows, self.slots)]


def alone(expert: SD3Denoiser, run: int, steps: int, **more: Any) -> Any:
    desk = Desk(expert)
    for step in range(steps):
        latent = desk.run(desk.row(run, step, **more))[0]
    return latent


def test_a_batch_of_different_steps_scales_and_texts_gives_what_each_gives_alone(expert: SD3Denoiser) -> None:
    """Case 20: request 1 has no guidance, 2 has it, 3 has a text of another length; they joined at different times."""
    kinds: dict[int, dict[str, Any]] = {1: {"scale": 1.0}, 2: {"scale": 7.0}, 3: {"scale": 2.0, "tokens": 9}}
    desk = Desk(expert)
    for step in range(3):
        desk.run(desk.row(1, step, **kinds[1]))
    desk.run(desk.row(1, 3, **kinds[1]), desk.row(2, 0, **kinds[2]))
    for order in ((3, 1, 2), (2, 3, 1)):
        at = {1: 4, 2: 1, 3: 0} if order[0] == 3 else {1: 5, 2: 2, 3: 1}
        found = dict(zip(order, desk.run(*(desk.row(run, at[run], **kinds[run]) for run in order)), strict=True))
    for run, steps in ((1, 6), (2, 3), (3, 2)):
        want = alone(expert, run, steps, **kinds[run])
        torch.testing.assert_close(found[run], want, rtol=0, atol=1e-5)
        assert want.std() > 0.3, "flat: this proves nothing"


def test_guidance_is_that_of_its_definition(expert: SD3Denoiser) -> None:
    desk = Desk(expert)
    row = desk.row(5, 0, scale=4.0)
    noise = torch.from_numpy(normal_noise(5, 1, 4 * 6 * 8)).view(1, *SIZE)

    def velocity(text: str, pooled: str) -> Any:
        read = [desk.slots.read(row.payload.conditioning[name][0])[None] for name in (text, pooled)]
        return expert.model.forward(noise, torch.tensor([1000.0]), *read)[0]

    free, told = velocity("negative_embeds", "negative_pooled"), velocity("embeds", "pooled")
    result = expert.denoise([row], desk.slots)[0]
    latent, preview = (desk.slots.read(result.tensors[port][0]) for port in ("latent", "preview"))
    torch.testing.assert_close(latent, noise[0] - 0.125 * (free + 4.0 * (told - free)), rtol=0, atol=1e-5)
    torch.testing.assert_close(preview, noise[0] - 1.0 * (free + 4.0 * (told - free)), rtol=0, atol=1e-5)
    assert (told - free).abs().max() > 0.1


def test_a_poisoned_neighbour_breaks_the_batch_and_nothing_else(expert: SD3Denoiser) -> None:
    """Its latent is not finite, so the batch raises and is run again one by one: nothing was moved by the first try."""
    desk = Desk(expert)
    good, bad, other = desk.row(1, 0), desk.row(2, 0, poison=True), desk.row(3, 0)
    with pytest.raises(FloatingPointError, match=r"request 2, loop 'denoise'.*step 1 of 8"):
        desk.run(good, bad, other)
    for run, row in ((1, good), (3, other)):
        torch.testing.assert_close(desk.run(row)[0], alone(expert, run, 1), rtol=0, atol=0)
    with pytest.raises(FloatingPointError):
        desk.run(bad)


def test_a_neighbours_nan_does_not_come_through_the_network(expert: SD3Denoiser) -> None:
    generator = torch.Generator().manual_seed(4)
    inputs = [torch.randn(3, *shape, generator=generator) for shape in (SIZE, (5, 12), (10,))]
    clean = expert.model.forward(inputs[0], torch.tensor([9.0, 500.0, 1000.0]), *inputs[1:])
    for poisoned in inputs:
        poisoned[1] = float("nan")
    found = expert.model.forward(inputs[0], torch.tensor([9.0, float("nan"), 1000.0]), *inputs[1:])
    assert found[1].isnan().all()
    torch.testing.assert_close(found[[0, 2]], clean[[0, 2]], rtol=0, atol=0)


def test_a_step_that_was_done_can_be_run_again(expert: SD3Denoiser) -> None:
    """Its answer may have been lost; the result is the same, and the trajectory goes on as if it had run once."""
    desk = Desk(expert)
    for step in range(3):
        first = desk.run(desk.row(1, step))[0].clone()
        again = desk.run(desk.row(1, step))[0]
        torch.testing.assert_close(again, first, rtol=0, atol=0)
    torch.testing.assert_close(again, alone(expert, 1, 3), rtol=0, atol=0)
    for wrong in (0, 1, 4):
        if wrong:
            with pytest.raises(AssertionError, match=f"step {wrong} after 3 steps"):
                desk.run(desk.row(1, wrong))


def test_noise_is_the_requests_and_normal(expert: SD3Denoiser) -> None:
    noise = normal_noise(7, 1, 40_000)
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    assert abs((noise**4).mean() - 3) < 0.2
    assert noise.dtype == np.float32
    np.testing.assert_array_equal(normal_noise(7, 1, 33), noise[:33])  # an element depends on its index alone
    pieces = [normal_noise(seed, node, 1000) for seed, node in ((7, 1), (8, 1), (7, 2), (0, 0), (2**63 - 1, 0))]
    assert np.abs(np.corrcoef(pieces) - np.eye(5)).max() < 0.15
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    alone(expert, 1, 1)
    assert torch.equal(torch.get_rng_state(), before[0]), "no global generator is touched"
    assert (np.random.get_state()[1] == before[1]).all()


@pytest.mark.parametrize(
    ("more", "word"),
    [({"size": (16, 6, 8)}, "4 channels"), ({"conditioning": {}}, "embeds"), ({"size": (4, 6, 18)}, "multiples of 2 up to 16")],
)
def test_a_row_that_no_request_may_ask_for_is_refused(expert: SD3Denoiser, more: dict[str, Any], word: str) -> None:
    desk = Desk(expert)
    row = desk.row(1, 0, **more)
    with pytest.raises((RequestError, CardError), match=word):
        desk.run(row)


# -- Definitions


def test_modulate_and_gate() -> None:
    x, shift, scale = torch.randn(2, 3, 8), torch.randn(2, 8), torch.randn(2, 8)
    normed = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt()
    torch.testing.assert_close(modulate(x, shift, scale), normed * (1 + scale[:, None]) + shift[:, None])
    torch.testing.assert_close(gate(x, normed, scale), x + scale[:, None] * normed)


def test_guided_euler() -> None:
    """Row 0 is guided (branches 0 and 1), row 1 is not (branch 2)."""
    x, v = torch.randn(2, 3, 4), torch.randn(3, 3, 4)
    scale, sigma, target = torch.tensor([5.0, 1.0]), torch.tensor([1.0, 0.5]), torch.tensor([0.7, 0.0])
    after, clean = guided_euler(x, v, torch.tensor([0, 2]), torch.tensor([1, 2]), scale, sigma, target)
    torch.testing.assert_close(after[0], x[0] - 0.3 * (v[1] + 5 * (v[0] - v[1])))
    torch.testing.assert_close(after[1], x[1] - 0.5 * v[2])
    torch.testing.assert_close(clean[1], after[1], rtol=0, atol=0)
    torch.testing.assert_close(clean[0], x[0] - (v[1] + 5 * (v[0] - v[1])))


# -- Folders


def folder(path: Path, change: Any = None, shards: int = 1, **config: Any) -> Path:
    """A transformer folder; `change` edits its tensors."""
    known = MMDiTConfig.read(CONFIG)
    tensors = weights(known)
    if change:
        change(tensors)
    (path / "transformer").mkdir(parents=True)
    (path / "transformer" / "config.json").write_text(json.dumps({**CONFIG, **config}))
    name = "diffusion_pytorch_model"
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, path / "transformer" / f"{name}.safetensors")
        return path
    places = {key: f"{name}-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, key in enumerate(names)}
    for file in set(places.values()):
        save_file({key: tensors[key] for key in names if places[key] == file}, path / "transformer" / file)
    (path / "transformer" / f"{name}.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_is_loaded_whole_or_in_shards(expert: SD3Denoiser, tmp_path: Path, shards: int) -> None:
    loaded = sd3.build({"checkpoint": str(folder(tmp_path, shards=shards))}, "cpu")
    torch.testing.assert_close(alone(loaded, 1, 2), alone(expert, 1, 2), rtol=0, atol=0)


LOST = "transformer_blocks.1.attn.to_out.0.bias"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(LOST), f"{LOST}' is missing"),
        (lambda t: t.update(extra=torch.zeros(1)), "'extra' and 0 others belong to no part"),
        (lambda t: t.update({LOST: torch.zeros(17)}), rf"{LOST}' has shape \(17,\)"),
        (lambda t: t.update({"proj_out.weight": t["proj_out.weight"].T.contiguous()[:15]}), "proj_out.weight' has shape"),
    ],
)
def test_every_parameter_is_accounted_for(tmp_path: Path, change: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        sd3.build({"checkpoint": str(folder(tmp_path, change))}, "cpu")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"qk_norm": "l2"}, "qk_norm='l2'"),
        ({"attention_bias": True}, "unknown key 'attention_bias'"),
        ({"caption_projection_dim": 32}, "caption_projection_dim=32"),
        ({"out_channels": 8}, "out_channels=8"),
        ({"pos_embed_max_size": None}, "pos_embed_max_size=None"),
        ({"num_layers": 0}, "num_layers=0"),
        ({"dual_attention_layers": [5]}, "layer 5"),
        ({"_class_name": "FluxTransformer2DModel"}, "FluxTransformer2DModel"),
    ],
)
def test_a_network_that_is_not_built_here_is_refused_by_name(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        sd3.build({"checkpoint": str(folder(tmp_path, **config))}, "cpu")


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        sd3.build({"checkpoint": str(tmp_path)}, "cpu")
    place = folder(tmp_path / "a") / "transformer"
    file = place / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="diffusion_pytorch_model"):
        FolderWeights(place, {})
    file.unlink()
    with pytest.raises(CheckpointError, match="neither"):
        FolderWeights(place, {})
    place = folder(tmp_path / "b", shards=2) / "transformer"
    next(place.glob("*-00002-*")).unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.safetensors', which is not in its folder"):
        FolderWeights(place, {})
    (place / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="JSON object"):
        sd3.build({"checkpoint": str(tmp_path / "b")}, "cpu")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"checkpoint": "x", "dtype": "bfloat16"}, CardError, "bfloat16"),
        ({"checkpont": "x"}, CardError, "did you mean 'checkpoint'"),
        ({"checkpoint": 3}, CardError, "a str is needed"),
        ({}, CheckpointError, "no checkpoint"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_options(options, "sd3")
