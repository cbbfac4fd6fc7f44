"""Audio and vision encoder of Qwen2.5-Omni against transformers: each alone there, all of them in one batch here."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_qwen25 import audio_encoder, reference, vision_encoder  # noqa: E402

from omni_runtime.experts.qwen25_audio import LEAST, audio_tokens  # noqa: E402
from omni_runtime.experts.qwen25_vision import windows  # noqa: E402

torch.set_num_threads(1)


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LENGTHS = [3, 4, 5, 38, 39, 40, 41, 42, 43, 79, 80, 81, 200, 333]  # a chunk is 40 frames


def test_tokens_of_frames() -> None:
    for frames in range(LEAST, 420):
        lengths = reference().thinker.model.audio_tower._get_feat_extract_output_lengths(torch.tensor(frames))
        assert audio_tokens(frames) == int(lengths[1])
    assert [audio_tokens(n) for n in range(LEAST)] == [0, 0, 0]


def test_sounds_together_are_sounds_alone() -> None:
    mels = [noise(128, length, seed=length) for length in LENGTHS]
    found = audio_encoder().encode(mels)
    for mel_BT, vectors in zip(mels, found, strict=True):
        with torch.inference_mode():
            expected = reference().thinker.model.audio_tower(mel_BT, feature_lens=torch.tensor([mel_BT.shape[1]]))
        assert len(vectors) == audio_tokens(mel_BT.shape[1])
        assert vectors.std() > 0.3
        torch.testing.assert_close(vectors, expected.last_hidden_state, rtol=1e-5, atol=1e-5)


def test_a_chunk_does_not_hear_the_next_one() -> None:
    """20 vectors a chunk before they are averaged in pairs: nothing crosses."""
    one, other = noise(128, 80, seed=1), noise(128, 80, seed=1)
    other[:, 40:] += 1
    ((first,), (second,)) = audio_encoder().encode([one]), audio_encoder().encode([other])
    assert torch.equal(first[:10], second[:10])
    assert (first[10:] - second[10:]).abs().max() > 0.1


GRIDS = [(1, 2, 2), (1, 4, 6), (3, 2, 8), (1, 10, 2), (2, 16, 14), (1, 12, 12)]  # a window is 3 x 3 vectors, 6 x 6 patches


def test_pictures_together_are_pictures_alone() -> None:
    pictures = [(noise(math.prod(grid), 96, seed=i), grid) for i, grid in enumerate(GRIDS)]
    for (patches, grid), seen in zip(pictures, vision_encoder().encode(pictures), strict=True):
        with torch.inference_mode():
            expected: Any = reference().thinker.model.visual(patches, grid_thw=torch.tensor([grid]))
        assert seen.vectors_ND.shape == (math.prod(grid) // 4, 64)
        assert seen.vectors_ND.std() > 0.3
        torch.testing.assert_close(seen.vectors_ND, expected.pooler_output, rtol=1e-5, atol=1e-5)


def test_order_of_windows() -> None:
    order, sizes = windows((1, 2, 5), 3)
    assert order.tolist() == [0, 1, 2, 5, 6, 7, 3, 4, 8, 9]
    assert sizes == [6, 4]


def test_a_turned_grid_is_another_picture() -> None:
    """The mutant: rows and columns exchanged."""
    patches = noise(24, 96, seed=1)
    one, other = vision_encoder().encode([(patches, (1, 4, 6)), (patches, (1, 6, 4))])
    assert (one.vectors_ND - other.vectors_ND).abs().max() > 0.1


def test_windows_matter() -> None:
    """The mutant: every layer sees the whole frame."""
    patches, encoder = noise(144, 96, seed=1), vision_encoder()
    (one,) = encoder.encode([(patches, (1, 12, 12))])
    config = encoder.config
    try:
        object.__setattr__(encoder.config, "full", frozenset(range(config.layers)))
        (other,) = encoder.encode([(patches, (1, 12, 12))])
    finally:
        object.__setattr__(encoder.config, "full", frozenset({1}))
    assert (one.vectors_ND - other.vectors_ND).abs().max() > 0.1
