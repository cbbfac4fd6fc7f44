"""Positions of Qwen2.5-Omni's prompts with media against transformers' `get_rope_index`, on random mixes."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from media_mix import Mix  # noqa: E402
from media_request import Family  # noqa: E402
from tiny_qwen25 import folder, reference  # noqa: E402

from omni_runtime.experts.insets import expand, insets  # noqa: E402
from omni_runtime.experts.multimodal_positions import Clip, Media, interleaved, place  # noqa: E402
from omni_runtime.experts.qwen25_audio import LEAST, audio_tokens  # noqa: E402
from omni_runtime.weights.omni_parts import Timing  # noqa: E402

T, TIMING = folder().config.tokens, folder().config.timing
FAMILY = Family(T, TIMING, {}, audio_tokens, LEAST)


@pytest.mark.parametrize("with_sound", [False, True])
def test_random_mixes(with_sound: bool) -> None:
    assert Timing(25, whole=True, chunk=50, marks=1) == TIMING
    mixed = 0
    for seed in range(150):
        mix = Mix(seed, with_sound, FAMILY)
        ours, (positions, after) = mix.ours(), mix.theirs(reference())
        assert torch.equal(torch.from_numpy(ours.position_3N), positions.float()), seed
        assert ours.next == after, seed
        mixed += bool(mix.media.clips) and bool(mix.media.sounds) and bool(mix.media.images)
    assert mixed > 30


@pytest.mark.parametrize("with_sound", [False, True])
def test_placeholders_and_what_stands_behind_them(with_sound: bool) -> None:
    for seed in range(60):
        mix = Mix(seed, with_sound, FAMILY)
        assert expand(mix.short, T, mix.media, 2, TIMING, T.audio_start + 1, with_sound) == mix.ids
        found = insets(mix.ids, T, mix.media, 2)
        placeholders = [i for i, token in enumerate(mix.ids) if token in (T.image, T.video, T.audio)]
        assert [i for inset in found for i in range(inset.at, inset.at + inset.count)] == placeholders


def test_a_clip_and_its_sound_by_chunks() -> None:
    """As the processor writes placeholders: two steps of one vector each and four of sound in chunks of two positions."""
    timing = Timing(10, whole=True, chunk=2, marks=1)
    assert interleaved(Clip((2, 2, 2), 0.2), 4, 2, timing) == [True, False, False, True, False, False]
    assert interleaved(Clip((2, 2, 2), 0.1), 3, 2, timing) == [True, True, False, False, False]
    assert interleaved(Clip((1, 2, 2), 0.2), 0, 2, timing) == [True]


def test_times_are_cut_to_whole_positions() -> None:
    ids = [T.vision_start, *[T.video] * 3, T.vision_start + 1]
    media = Media(clips=(Clip((3, 2, 2), 0.5),))
    assert place(ids, T, media, 2, TIMING).position_3N[0].tolist() == [0, 1, 13, 26, 27]
    assert place(ids, T, media, 2, Timing(25)).position_3N[0].tolist() == [0, 1, 13.5, 26, 27]
