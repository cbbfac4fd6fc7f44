"""A whole answer to text, pictures, a clip and sounds: thinker tokens, inner states, codes and wave equal those of `generate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_qwen3 import audio_encoder, folder, reference, talker, thinker, vision_encoder, vocoder  # noqa: E402

from omni_runtime.draw import Draw  # noqa: E402
from omni_runtime.experts.decoder import Given, Span  # noqa: E402
from omni_runtime.experts.insets import Medium, expand, given, insets, overlapping  # noqa: E402
from omni_runtime.experts.log_mel import log_mel  # noqa: E402
from omni_runtime.experts.multimodal_positions import Clip, Media, place  # noqa: E402
from omni_runtime.experts.patches import PatchRules, image_patches, video_patches  # noqa: E402
from omni_runtime.experts.qwen3_audio import audio_tokens  # noqa: E402
from omni_runtime.experts.qwen3_talker import user_turns  # noqa: E402
from omni_runtime.experts.talk_span import TalkSpan  # noqa: E402
from omni_runtime.weights.omni_parts import Timing  # noqa: E402

torch.set_num_threads(1)
T = folder().config.tokens
MEDIA = (T.image, T.video, T.audio)
RULES = PatchRules(patch=4, merge=2, least=64, most=2048)
THOUGHT, FRAMES = 10, 12


class Request:
    """A prompt with media, as we and as the reference take it."""

    def __init__(self, images: int, clips: int, sounds: int, sound_of_clip: bool) -> None:
        rng = np.random.default_rng(images + 10 * clips + 100 * sounds)
        picture = lambda *size: rng.integers(0, 256, (*size, 3)).astype(np.uint8)  # noqa: E731
        self.images = [image_patches(picture(17 + 8 * i, 30), RULES) for i in range(images)]
        self.clips = [video_patches(picture(5 + i, 24, 17), RULES) for i in range(clips)]
        mels = [log_mel((0.2 * rng.standard_normal(4000 + 9000 * i)).astype(np.float32)) for i in range(sounds)]
        self.mels = [torch.from_numpy(mel) for mel in mels]
        self.seconds = [2.0] * clips
        counts = [audio_tokens(mel.shape[1]) for mel in self.mels]
        self.media = Media(
            tuple(grid for _, grid in self.images),
            tuple(Clip(grid, s) for (_, grid), s in zip(self.clips, self.seconds, strict=True)),
            tuple(counts),
        )
        self.sound_of_clip = sound_of_clip
        end_seen, end_heard = T.vision_start + 1, T.audio_start + 1
        ids = [T.im_start, T.system, 10, *b"Be kind.", T.im_end, 10, T.im_start, T.user, 10, *b"See "]
        ids += [T.vision_start, T.image, end_seen, *b" and "] * images
        ids += [T.vision_start, T.video, end_seen] * clips
        ids += [T.audio_start, T.audio, end_heard] * (sounds - clips * sound_of_clip)
        ids += [*b" what?", T.im_end, 10, T.im_start, T.assistant, 10]
        self.ids = expand(ids, T, self.media, 2, Timing(13), end_heard, sound_of_clip)

    def for_generate(self) -> dict[str, Any]:
        ids = torch.tensor([self.ids])
        given: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "use_audio_in_video": self.sound_of_clip,
        }
        if self.images:
            given["pixel_values"] = torch.cat([torch.from_numpy(patches) for patches, _ in self.images])
            given["image_grid_thw"] = torch.tensor(self.media.images)
        if self.clips:
            given["pixel_values_videos"] = torch.cat([torch.from_numpy(patches) for patches, _ in self.clips])
            given["video_grid_thw"] = torch.tensor([clip.grid for clip in self.media.clips])
            given["video_second_per_grid"] = torch.tensor(self.seconds)
        if self.mels:
            longest = max(mel.shape[1] for mel in self.mels)
            given["input_features"] = torch.stack([torch.nn.functional.pad(m, (0, longest - m.shape[1])) for m in self.mels])
            lengths = torch.tensor([mel.shape[1] for mel in self.mels])
            given["feature_attention_mask"] = (torch.arange(longest) < lengths[:, None]).long()
        return given


class Heard:
    """Our prefill of a request: vectors, positions and features of its prompt."""

    def __init__(self, request: Request) -> None:
        pictures = [(torch.from_numpy(patches), grid) for patches, grid in (*request.images, *request.clips)]
        seen = vision_encoder().encode(pictures) if pictures else []
        heard = audio_encoder().encode(request.mels) if request.mels else []
        self.made = {("image" if i < len(request.images) else "video", i): Medium(*one) for i, one in enumerate(seen)}
        self.made = {(kind, i - len(request.images) * (kind == "video")): made for (kind, i), made in self.made.items()}
        self.made |= {("audio", i): Medium(vectors_ND) for i, vectors_ND in enumerate(heard)}
        self.request, self.insets = request, insets(request.ids, T, request.media, 2)
        self.placed = place(request.ids, T, request.media, 2, folder().config.timing)

    def span(self, cache: Any, start: int, stop: int, draw: bool) -> Span:
        own = [(inset, self.made[inset.kind, inset.item]) for inset in overlapping(self.insets, start, stop)]
        positions_3N = torch.from_numpy(self.placed.position_3N[:, start:stop].copy())
        return Span(cache, start, (), draw, given(thinker().embed(self.request.ids[start:stop]), start, own, positions_3N))


REQUESTS = [(1, 0, 0, False), (0, 0, 2, False), (2, 1, 1, False), (1, 1, 2, True)]


@pytest.mark.parametrize("asked", REQUESTS)
def test_whole_answers(asked: tuple[int, int, int, bool]) -> None:
    request = Request(*asked)
    sequence, wave = reference().generate(
        **request.for_generate(),
        speaker="Ethan",
        thinker_max_new_tokens=THOUGHT,
        thinker_do_sample=False,
        thinker_eos_token_id=T.im_end,
        talker_max_new_tokens=FRAMES + 1,
        talker_do_sample=False,
        talker_temperature=None,
        talker_top_k=None,
        talker_top_p=None,
        talker_repetition_penalty=1.0,
        return_audio=True,
    )
    # The thinker, its prompt in chunks.
    heard, cache, accept = Heard(request), thinker().cache(), folder().config.talker.accept
    inner, count = [], len(request.ids)
    for start in range(0, count, 23):
        stop = min(start + 23, count)
        ran = thinker().run([heard.span(cache, start, stop, stop == count)], taps=(accept,))
        inner.append(ran.taps[accept])
    answer = [int(ran.logits_RV[0].argmax())]
    while len(answer) < THOUGHT and answer[-1] != T.im_end:
        at = torch.full((3, 1), heard.placed.next + len(answer) - 1)
        ran = thinker().run([Span(cache, cache.length, answer[-1:], True, Given(positions_3N=at))])
        answer.append(int(ran.logits_RV[0].argmax()))
    assert answer == sequence[0, count:].tolist()
    # The talker: text through one projection, media through the other.
    inner_TD = torch.cat(inner)
    places = user_turns(request.ids, T)
    text = lambda ids: talker().text(thinker().embed(ids))  # noqa: E731
    user_TD = text([request.ids[i] for i in places]).clone()
    media = [n for n, i in enumerate(places) if request.ids[i] in MEDIA]
    user_TD[media] = talker().media(inner_TD[[places[n] for n in media]])
    pad_D, bos_D, eos_D = text([T.tts_pad, T.tts_bos, T.tts_eos])
    said_TD = text(answer)
    vectors_TD = torch.cat([user_TD, talker().opening(text(request.ids[-3:]), pad_D, bos_D, said_TD[0], "Ethan")])
    placed = place([*(request.ids[i] for i in places), *[T.tts_pad] * 9], T, request.media, 2, Timing(13), together=False)
    trailing = [*said_TD[1:-1], eos_D]
    frames: list[tuple[int, ...]] = []
    talking = talker().model.cache()
    positions_3T = torch.from_numpy(placed.position_3N.copy())
    while len(frames) < FRAMES:
        span = TalkSpan(talking, talking.length, vectors_TD, Draw(0, 1), len(frames), positions_3T=positions_3T)
        (talked,) = talker().talk([span])
        if not talked.frame:
            break
        text_D = trailing[len(frames)] if len(frames) < len(trailing) else pad_D
        vectors_TD = talker().frames([talked.frame], text_D[None])
        positions_3T = torch.full((3, 1), placed.next + len(frames))
        frames.append(talked.frame)
    assert len(set(frames)) > 6
    ((_, ours),) = vocoder().decode([vocoder().fresh()], [torch.tensor(frames)])
    torch.testing.assert_close(ours, wave[0, 0], rtol=0, atol=1e-5)
