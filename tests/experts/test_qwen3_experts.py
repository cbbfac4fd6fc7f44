"""Ops and builders of the Qwen3-Omni experts that need nothing of the contracts but what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from tiny_qwen3 import audio_encoder, folder, vision_encoder, vocoder  # noqa: E402

from omni_runtime.errors import CardError, CheckpointError, RequestError  # noqa: E402
from omni_runtime.experts import omni_encoders, qwen3_vocoder  # noqa: E402
from omni_runtime.experts.base import verified  # noqa: E402
from omni_runtime.experts.causal import CausalConv, CausalUpsample  # noqa: E402
from omni_runtime.experts.patches import video_patches  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.weights.preprocessor import PatchRules, read_patch_rules  # noqa: E402
from omni_runtime.weights.toy_folder import write_json  # noqa: E402
from omni_runtime.weights.toy_qwen3_omni import write_toy_omni  # noqa: E402
from omni_runtime.work import AudioStep, CallStep, Row  # noqa: E402

torch.set_num_threads(1)


def call(run: int, name: str, *items: Any, index: int = 0) -> Row:
    return Row(run, "media", 1, 0, (), CallStep(index, {name: items}, {}, {}))


def noise(*shape: int, seed: int = 0) -> Any:
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    array.flags.writeable = False  # as what came over a wire is
    return array


def test_hear_keeps_a_tensor_a_sound() -> None:
    expert, slots = omni_encoders.build_hearing({"checkpoint": str(folder().folder)}, "cpu"), Slots("cpu#1")
    rows = [call(1, "sounds", noise(128, 130)), call(2, "sounds", noise(128, 40, seed=1), index=3)]
    results = verified(expert.hear(rows, slots), rows)
    refs = [result.tensors["vectors"][0] for result in results]
    assert [(ref.index, ref.shape) for ref in refs] == [(0, (17, 64)), (3, (5, 64))]
    for row, ref in zip(rows, refs, strict=True):
        alone = audio_encoder().encode([torch.tensor(row.payload.inputs["sounds"][0])])[0]
        torch.testing.assert_close(slots.read(ref), alone, rtol=1e-5, atol=1e-5)
    assert slots.counts == (0, 2)
    slots.release(tuple(refs))
    assert slots.counts == (0, 0)
    assert expert.hear([], slots) == []


def test_see_keeps_vectors_and_features() -> None:
    expert, slots = omni_encoders.build_seeing({"checkpoint": str(folder().folder)}, "cpu"), Slots("cpu#1")
    clip = np.random.default_rng(1).integers(0, 256, (3, 20, 33, 3)).astype(np.uint8)
    patches, grid = video_patches(clip, PatchRules(patch=4, merge=2, least=64, most=4096))
    rows = [call(1, "pictures", noise(1, 4, 2, 96)), call(1, "pictures", patches.reshape(*grid, -1), index=1)]
    results = verified(expert.see(rows, slots), rows)
    seen = vision_encoder().encode([(torch.from_numpy(patches), grid)])[0]
    vectors, features = (slots.read(results[1].tensors[port][0]) for port in ("vectors", "features"))
    torch.testing.assert_close(vectors, seen.vectors_ND, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(features, seen.features_LND, rtol=1e-5, atol=1e-5)
    assert vectors.shape == (2 * 2 * 4, 64)
    assert features.shape == (2, *vectors.shape)


@pytest.mark.parametrize(
    ("op", "row", "message"),
    [
        ("hear", call(1, "sounds"), "one item of 'sounds' is needed"),
        ("hear", call(1, "pictures", noise(128, 9)), "one item of 'sounds' is needed"),
        ("hear", call(1, "sounds", noise(80, 9)), r"a sound of \(80, 9\), \[128, frames\] is needed, frames at least 1"),
        ("hear", call(1, "sounds", noise(128, 0)), r"a sound of \(128, 0\)"),
        ("hear", call(1, "sounds", np.full((128, 9), np.nan)), "2 axes of finite numbers"),
        ("see", call(1, "pictures", noise(24, 96)), r"shape \(24, 96\); 4 axes"),
        ("see", call(1, "pictures", noise(1, 3, 8, 96)), "rows and columns multiples of 2"),
        ("see", call(1, "pictures", noise(1, 4, 6, 95)), r"\[steps, rows, columns, 96\]"),
        ("see", Row(1, "media", 1, 0, (), AudioStep(0, 1, ((0,),), True)), "a CallStep is needed, got AudioStep"),
    ],
)
def test_what_cannot_be_encoded(op: str, row: Row, message: str) -> None:
    expert = {"hear": omni_encoders.Hearing(audio_encoder()), "see": omni_encoders.Seeing(vision_encoder())}[op]
    with pytest.raises(RequestError, match=message):
        expert.ops[op]([row], Slots("cpu#1"))


def test_build_the_vocoder(tmp_path: Path) -> None:
    expert = qwen3_vocoder.build({"checkpoint": str(folder().folder), "linear": "plain"}, "cpu")
    codes = torch.arange(24).view(6, 4)
    ours, theirs = (model.decode([model.fresh()], [codes])[0][1] for model in (expert.model, vocoder()))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    silent = write_toy_omni(tmp_path, {"enable_audio_output": False, "talker_config": None, "code2wav_config": None})
    with pytest.raises(CheckpointError, match="this checkpoint has no voice"):
        qwen3_vocoder.build({"checkpoint": str(silent)}, "cpu")


@pytest.mark.parametrize("build", [omni_encoders.build_hearing, omni_encoders.build_seeing, qwen3_vocoder.build])
def test_options(build: Any) -> None:
    with pytest.raises(CardError, match=r"unknown option 'checkpiont'.*did you mean 'checkpoint'"):
        build({"checkpiont": "x"}, "cpu")
    with pytest.raises(CardError, match="option linear=3, a text is needed"):
        build({"checkpoint": "x", "linear": 3}, "cpu")
    with pytest.raises(CheckpointError, match="names no checkpoint"):
        build({}, "cpu")


# -- The rules of pictures --------------------------------------------------------------------------------------------------


def test_patch_rules_of_a_folder(tmp_path: Path) -> None:
    write_toy_omni(tmp_path)
    assert read_patch_rules(tmp_path, folder().config) == PatchRules(4, 2, 2, 64, 16 * 1024)
    published = {"patch_size": 4, "min_pixels": 3136, "max_pixels": 12845056, "image_mean": [0.5] * 3, "dither": 0.0}
    write_json(tmp_path / "preprocessor_config.json", published)
    assert read_patch_rules(tmp_path, folder().config) == PatchRules(4, 2, 2, 3136, 12845056)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_size": 14}, "patch_size: 14, where 4 is what the encoder"),
        ({"feature_size": 80}, "feature_size: 80, where 128"),
        ({"hop_length": 128}, "hop_length: 128, where 160"),
        ({"do_resize": False}, "do_resize: false is not computed"),
        ({"resample": 2}, r"resample: only bicubic \(3\)"),
        ({"min_pixels": 99999}, "min_pixels: 99999 is more than max_pixels 16384"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std: 3 numbers of each"),
        ({"image_mean": ["a"]}, "image_mean: numbers are needed"),
    ],
)
def test_rules_that_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_toy_omni(tmp_path)
    size = {"size": {"shortest_edge": 64, "longest_edge": 16384}}
    write_json(tmp_path / "preprocessor_config.json", size | change)
    with pytest.raises(CheckpointError, match=message):
        read_patch_rules(tmp_path, folder().config)


# -- Convolutions in pieces, by their definitions ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["", "torch"])
@pytest.mark.parametrize("cuts", [(9,), (1, 8), (4, 3, 2), (1,) * 9])
def test_causal_convolution(cuts: tuple[int, ...], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_KERNELS", form)
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(3, 2, 5, generator=generator), torch.randn(3, generator=generator)
    x = torch.randn(1, 2, 9, generator=generator)
    conv, parts = CausalConv(weight, bias, dilation=2), []
    kept = conv.fresh()[None]
    for part in x.split(list(cuts), 2):
        y, kept = conv(part, kept)
        parts.append(y)
    for t in range(9):
        expected = bias + sum(weight[:, :, k] @ x[0, :, t - 2 * (4 - k)] for k in range(5) if t >= 2 * (4 - k))
        torch.testing.assert_close(torch.cat(parts, 2)[0, :, t], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["", "torch"])
@pytest.mark.parametrize("cuts", [(5,), (1, 4), (2, 1, 2), (1,) * 5])
def test_causal_upsampling(cuts: tuple[int, ...], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample j of block t: what input t adds with the first half of the kernel, input t - 1 with the second; from block 1 on."""
    monkeypatch.setenv("OMNI_KERNELS", form)
    generator = torch.Generator().manual_seed(2)
    weight, bias = torch.randn(2, 3, 8, generator=generator), torch.randn(3, generator=generator)
    x = torch.randn(1, 2, 5, generator=generator)
    up, parts, begins = CausalUpsample(weight, bias, 4), [], True
    kept = up.fresh()[None]
    for part in x.split(list(cuts), 2):
        y, kept = up(part, kept, begins)
        parts.append(y)
        begins = False
    found = torch.cat(parts, 2)[0]
    assert found.shape == (3, 4 * 4)
    for t in range(1, 5):
        for j in range(4):
            expected = bias + weight[:, :, j].T @ x[0, :, t] + weight[:, :, 4 + j].T @ x[0, :, t - 1]
            torch.testing.assert_close(found[:, 4 * (t - 1) + j], expected, rtol=1e-5, atol=1e-5)
