"""Sounds, pictures and clips as encoders take them: against transformers' processors on odd sizes, and by definition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

from omni_runtime.errors import RequestError  # noqa: E402
from omni_runtime.experts.log_mel import log_mel, mel_weights  # noqa: E402
from omni_runtime.experts.patches import PatchRules, chosen_frames, fitting, image_patches, resize, video_patches  # noqa: E402
from omni_runtime.experts.resample import mono, resample  # noqa: E402

torch.set_num_threads(1)


def dice(seed: int) -> Any:
    return np.random.default_rng(seed)


# -- Sound ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("count", [400, 401, 1599, 16000, 33333])
def test_log_mel_is_whisper_s(count: int, bins: int) -> None:
    samples = (0.3 * dice(count).standard_normal(count) * np.linspace(0, 1, count)).astype(np.float32)
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins)
    given = {"sampling_rate": 16000, "padding": True, "truncation": False, "return_attention_mask": True, "return_tensors": "np"}
    expected = extractor(samples, **given)
    found = log_mel(samples, bins)
    assert found.shape == (bins, count // 160) == (bins, int(expected["attention_mask"].sum()))
    np.testing.assert_allclose(found, expected["input_features"][0], rtol=0, atol=2e-5)
    assert found.std() > 0.1


def test_mel_weights_are_slaney_s() -> None:
    filters = transformers.WhisperFeatureExtractor(feature_size=128).mel_filters.T
    np.testing.assert_allclose(mel_weights(128), filters, rtol=0, atol=1e-9)


def test_silence_and_too_little_sound() -> None:
    assert np.unique(log_mel(np.zeros(1600, np.float32))).tolist() == [-1.5]
    assert log_mel(np.ones(160, np.float32)).shape == (128, 1)
    with pytest.raises(RequestError, match="at least one frame of 160"):
        log_mel(np.zeros(159, np.float32))
    with pytest.raises(RequestError, match="sample 7 is no finite number"):
        log_mel(np.where(np.arange(800) == 7, np.nan, 0).astype(np.float32))


RATES = [8000, 11025, 22050, 24000, 32000, 44100, 48000, 96000, 16001]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("hertz", [110.0, 1234.5, 3100.0])
def test_a_tone_stays_the_tone(rate: int, hertz: float) -> None:
    wave = np.sin(2 * np.pi * hertz * np.arange(rate // 2) / rate)
    found = mono(wave, rate)
    assert len(found) == math.ceil(len(wave) * 16000 / rate)
    expected = np.sin(2 * np.pi * hertz * np.arange(len(found)) / 16000)
    inside = slice(200, -200)
    np.testing.assert_allclose(found[inside], expected[inside], rtol=0, atol=2e-4)


@pytest.mark.parametrize("hertz", [8600.0, 12000.0, 20000.0])
def test_what_cannot_be_told_is_left_out(hertz: float) -> None:
    """A tone above 8 kHz would come back as another one; the mutant without a filter gives it whole."""
    wave = np.sin(2 * np.pi * hertz * np.arange(24000) / 48000)
    assert np.abs(mono(wave, 48000)[200:-200]).max() < 1e-3
    assert np.abs(wave[::3]).max() > 0.5


def test_there_and_back() -> None:
    wave = np.convolve(dice(1).standard_normal(16000), np.hanning(31), "same") / 8
    back = resample(resample(wave, 16000, 44100).astype(np.float64), 44100, 16000)
    np.testing.assert_allclose(back[300 : 16000 - 300], wave[300:-300], rtol=0, atol=1e-3)


def test_channels_and_kinds_of_numbers() -> None:
    wave = np.linspace(-0.9, 0.9, 500)
    expected = wave.astype(np.float32)
    for given in (wave, np.stack([wave, wave], 1), np.stack([wave + 0.1, wave - 0.1], 1), wave[:, None], wave.astype(np.float32)):
        np.testing.assert_allclose(mono(given, 16000), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(mono(np.round(wave * 32768).astype(np.int16), 16000), expected, rtol=0, atol=3e-5)
    np.testing.assert_allclose(mono(np.round(wave * 128 + 128).astype(np.uint8), 16000), expected, rtol=0, atol=8e-3)
    assert mono(wave, 16000).dtype == np.float32


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        ([0.0] * 9, 0, "a rate of 0 Hz"),
        ([0.0] * 9, 16000.0, r"a rate of 16000\.0 Hz"),
        ([], 16000, r"samples of shape \(0,\)"),
        (np.zeros((2, 9)), 16000, r"shape \(2, 9\), \[samples\] or \[samples, channels\]"),
        (["a"], 16000, "samples of type <U1"),
        ([0.0, math.inf], 8000, "sample 1 is no finite number"),
    ],
)
def test_what_is_no_sound(samples: Any, rate: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        mono(samples, rate)


# -- Pictures ---------------------------------------------------------------------------------------------------------------

RULES = PatchRules(patch=4, merge=2, least=256, most=4096)
SIZES = [(8, 8), (33, 47), (1, 90), (16, 16), (64, 65), (131, 29), (300, 201), (5, 3)]


def picture(rows: int, columns: int) -> Any:
    smooth = np.add.outer(np.linspace(0, 200, rows), np.linspace(0, 55, columns))[..., None] * [1.0, 0.5, 0.8]
    return np.clip(smooth + dice(rows).integers(-40, 40, (rows, columns, 3)), 0, 255).astype(np.uint8)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("to", [(8, 16), (40, 24), (120, 7)])
def test_resize_is_pillow_s_to_the_bit(rows: int, columns: int, to: tuple[int, int]) -> None:
    given = picture(rows, columns)
    expected = np.asarray(Image.fromarray(given).resize((to[1], to[0]), Image.Resampling.BICUBIC))
    assert np.array_equal(resize(given, *to), expected)


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_patches_are_those_of_the_image_processor(rows: int, columns: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, size={"shortest_edge": 256, "longest_edge": 4096}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    given = picture(rows, columns)
    expected = processor(Image.fromarray(given), return_tensors="np")
    patches, grid = image_patches(given, RULES)
    assert list(grid) == expected["image_grid_thw"][0].tolist()
    np.testing.assert_allclose(patches, expected["pixel_values"], rtol=0, atol=1e-6)


def test_sizes_fit() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    rng = dice(1)
    for _ in range(500):
        rows, columns = (int(n) for n in rng.integers(1, 3000, 2))
        if max(rows, columns) > 200 * min(rows, columns):
            with pytest.raises(RequestError, match="at most 200 times"):
                fitting(rows, columns, PatchRules())
            continue
        assert fitting(rows, columns, PatchRules()) == smart_resize(rows, columns, 32, 56 * 56, 28 * 28 * 1280)


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_clips_are_cut_as_pictures_are(frames: int) -> None:
    clip = np.stack([picture(33, 47) // (i + 1) for i in range(frames)])
    patches, (steps, rows, columns) = video_patches(clip, RULES)
    assert steps == (frames + 1) // 2
    # Channels, frames of the step, rows, columns: a picture's patches hold one frame twice.
    table = patches.reshape(steps, rows * columns, 3, 2, 16)
    for step in range(steps):
        for i in range(2):
            still = image_patches(clip[min(2 * step + i, frames - 1)], RULES)[0].reshape(rows * columns, 3, 2, 16)
            assert np.array_equal(table[step, :, :, i], still[:, :, 0])


CHOICES = [
    (90, 30.0, 2.0, 6),
    (90, 30.0, 4.7, 14),
    (7, 30.0, 2.0, 4),
    (3, 1.0, 9.0, 2),
    (2000, 25.0, 30.0, 768),
    (301, 29.97, 1.0, 10),
]


@pytest.mark.parametrize(("total", "rate", "wanted", "count"), CHOICES)
def test_frames_are_chosen_evenly(total: int, rate: float, wanted: float, count: int) -> None:
    """At the places that torch.arange gives the makers' processor, which needs torchvision and so cannot be asked here."""
    found = chosen_frames(total, rate, wanted, RULES)
    assert found == torch.arange(0, total, total / count).int().tolist()
    assert len(found) == count


def test_what_is_no_picture() -> None:
    for wrong in (np.zeros((8, 8), np.uint8), np.zeros((8, 8, 4), np.uint8), np.zeros((8, 8, 3)), np.zeros((0, 8, 3), np.uint8)):
        with pytest.raises(RequestError, match=r"uint8 \[rows, columns, 3\] is needed"):
            image_patches(wrong, RULES)
    with pytest.raises(RequestError, match="1 frames, 30 a second"):
        chosen_frames(1, 30.0, 2.0, RULES)
