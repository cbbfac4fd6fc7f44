"""Audio and vision encoder against transformers: each sound and picture alone there, all of them in one batch here."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_qwen3 import audio_encoder, reference, vision_encoder  # noqa: E402

from omni_runtime.experts.qwen3_audio import audio_tokens  # noqa: E402

torch.set_num_threads(1)


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LENGTHS = [1, 7, 8, 9, 57, 99, 100, 101, 160, 200, 333, 451]


def test_tokens_of_frames() -> None:
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import _get_feat_extract_output_lengths

    for frames in range(1, 420):
        assert audio_tokens(frames) == _get_feat_extract_output_lengths(frames)


def test_sounds_together_are_sounds_alone() -> None:
    mels = [noise(128, length, seed=length) for length in LENGTHS]
    found = audio_encoder().encode(mels)
    for mel_BT, vectors in zip(mels, found, strict=True):
        with torch.inference_mode():
            expected = reference().thinker.model.audio_tower(mel_BT, feature_lens=torch.tensor([mel_BT.shape[1]]))
        assert len(vectors) == audio_tokens(mel_BT.shape[1])
        assert vectors.std() > 0.3
        torch.testing.assert_close(vectors, expected.last_hidden_state, rtol=1e-5, atol=1e-5)


def test_the_reference_s_short_sound_depends_on_its_company() -> None:
    """Why ours is compared with the reference one by one: 57 frames beside 160 end otherwise there than alone."""
    one, other = noise(128, 57, seed=1), noise(128, 160, seed=2)
    with torch.inference_mode():
        tower = reference().thinker.model.audio_tower
        alone = tower(one, feature_lens=torch.tensor([57])).last_hidden_state
        beside = tower(torch.cat([one, other], 1), feature_lens=torch.tensor([57, 160])).last_hidden_state[: len(alone)]
    assert (alone - beside).abs().max() > 1e-3
    torch.testing.assert_close(audio_encoder().encode([other, one])[1], alone, rtol=1e-5, atol=1e-5)


GRIDS = [(1, 2, 2), (1, 4, 6), (3, 2, 8), (1, 10, 2), (2, 16, 14)]


def test_pictures_together_are_pictures_alone() -> None:
    pictures = [(noise(math.prod(grid), 96, seed=i), grid) for i, grid in enumerate(GRIDS)]
    for (patches, grid), seen in zip(pictures, vision_encoder().encode(pictures), strict=True):
        with torch.inference_mode():
            expected: Any = reference().thinker.model.visual(patches, grid_thw=torch.tensor([grid]))
        assert seen.vectors_ND.shape == (math.prod(grid) // 4, 64)
        assert seen.vectors_ND.std() > 0.3
        torch.testing.assert_close(seen.vectors_ND, expected.pooler_output, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(seen.features_LND, torch.stack(expected.deepstack_features), rtol=1e-5, atol=1e-5)


def test_a_turned_grid_is_another_picture() -> None:
    """The mutant: rows and columns exchanged."""
    patches = noise(24, 96, seed=1)
    one, other = vision_encoder().encode([(patches, (1, 4, 6)), (patches, (1, 6, 4))])
    assert (one.vectors_ND - other.vectors_ND).abs().max() > 0.1


def test_patches_that_do_not_fit() -> None:
    with pytest.raises(AssertionError, match=r"\(23, 96\) patches where \(24, 96\) are needed"):
        vision_encoder().encode([(noise(23, 96, seed=1), (1, 4, 6))])
