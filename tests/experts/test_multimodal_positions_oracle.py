"""Positions of prompts with media against transformers' `get_rope_index`, on random mixes."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from media_mix import Mix  # noqa: E402
from media_request import Family  # noqa: E402
from tiny_qwen3 import folder, reference  # noqa: E402

from omni_runtime.errors import RequestError  # noqa: E402
from omni_runtime.experts.insets import expand, insets, overlapping  # noqa: E402
from omni_runtime.experts.multimodal_positions import Clip, Media, interleaved, place, vectors  # noqa: E402
from omni_runtime.experts.qwen3_audio import audio_tokens  # noqa: E402
from omni_runtime.weights.omni_parts import Timing  # noqa: E402

T = folder().config.tokens
AUDIO_END, VISION_END = T.audio_start + 1, T.vision_start + 1
FAMILY = Family(T, Timing(13), {}, audio_tokens)


@pytest.mark.parametrize("with_sound", [False, True])
def test_random_mixes(with_sound: bool) -> None:
    mixed = 0
    for seed in range(150):
        mix = Mix(seed, with_sound, FAMILY)
        ours, (positions, after) = mix.ours(), mix.theirs(reference())
        assert torch.equal(torch.from_numpy(ours.position_3N), positions.float()), seed
        assert ours.next == pytest.approx(after, abs=1e-3), seed
        mixed += bool(mix.media.clips) and bool(mix.media.sounds) and bool(mix.media.images)
    assert mixed > 30


def test_a_talker_is_not_told_of_sounds_in_clips() -> None:
    different = 0
    for seed in range(150):
        mix = Mix(seed, True, FAMILY)
        ours, (positions, _) = mix.ours(told=False), mix.theirs(reference(), told=False)
        assert torch.equal(torch.from_numpy(ours.position_3N), positions.float()), seed
        different += not np.array_equal(ours.position_3N, mix.ours().position_3N)
    assert different > 30


@pytest.mark.parametrize("with_sound", [False, True])
def test_placeholders_and_what_stands_behind_them(with_sound: bool) -> None:
    for seed in range(60):
        mix = Mix(seed, with_sound, FAMILY)
        assert expand(mix.short, T, mix.media, 2, Timing(13), AUDIO_END, with_sound) == mix.ids
        rows: dict[tuple[str, int], list[int]] = {}
        placeholders = [i for i, token in enumerate(mix.ids) if token in (T.image, T.video, T.audio)]
        found = insets(mix.ids, T, mix.media, 2)
        assert [i for inset in found for i in range(inset.at, inset.at + inset.count)] == placeholders
        for inset in found:
            rows.setdefault((inset.kind, inset.item), []).extend(range(inset.first, inset.first + inset.count))
        sizes = [("image", vectors(grid, 2)) for grid in mix.media.images] + [("audio", count) for count in mix.media.sounds]
        sizes += [("video", vectors(clip.grid, 2)) for clip in mix.media.clips]
        assert sorted((kind, len(list_)) for (kind, _), list_ in rows.items()) == sorted(sizes)
        assert all(list_ == list(range(len(list_))) for list_ in rows.values())
        cut = len(mix.ids) // 2
        halves = [list(overlapping(found, 0, cut)), list(overlapping(found, cut, len(mix.ids)))]
        assert len(halves[0]) + len(halves[1]) - len(found) == any(i.at < cut < i.at + i.count for i in found)


def test_placeholders_without_media() -> None:
    with pytest.raises(RequestError, match="more placeholders than media"):
        expand([1, T.image], T, Media(), 2, Timing(13), AUDIO_END)
    with pytest.raises(RequestError, match="1 media have no placeholder"):
        expand([1], T, Media(sounds=(3,)), 2, Timing(13), AUDIO_END)


def test_plain_text_counts_on() -> None:
    placed = place([1, 2, 3], T, Media(), 2, Timing(13))
    assert placed.position_3N.tolist() == [[0, 1, 2]] * 3
    assert placed.next == 3
    assert place([T.vision_start, 7], T, Media(), 2, Timing(13)).next == 2  # a mark that somebody typed


def test_a_clip_and_its_sound_by_time() -> None:
    order = interleaved(Clip((2, 2, 2), 0.2), 4, 2, Timing(10))  # frames due at 0 and 2
    assert order == [True, False, False, True, False, False]


@pytest.mark.parametrize(
    ("ids", "media", "message"),
    [
        ([T.image], Media(), "token 0 is a placeholder that no medium belongs to"),
        ([T.vision_start, T.image, T.image, VISION_END], Media(((1, 2, 2),)), "token 2 is a placeholder that no medium"),
        ([T.vision_start, T.image, VISION_END], Media(((1, 2, 4),)), "at token 1 has 2 vectors"),
        ([T.vision_start, T.image, VISION_END], Media(), "no medium is left for the placeholder at token 0"),
        ([3], Media(sounds=(4, 5)), "2 media have no placeholder"),
    ],
)
def test_what_does_not_fit(ids: list[int], media: Media, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        place(ids, T, media, 2, Timing(13))
