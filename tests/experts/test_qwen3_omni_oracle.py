"""A whole answer to text, pictures, a clip and sounds: thinker tokens, inner states, codes and wave equal those of `generate`."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from media_request import Family, Heard, Request  # noqa: E402
from tiny_qwen3 import audio_encoder, folder, reference, talker, thinker, vision_encoder, vocoder  # noqa: E402

from omni_runtime.draw import Draw  # noqa: E402
from omni_runtime.experts.decoder import Given, Span  # noqa: E402
from omni_runtime.experts.multimodal_positions import place  # noqa: E402
from omni_runtime.experts.qwen3_audio import audio_tokens  # noqa: E402
from omni_runtime.experts.qwen3_talker import user_turns  # noqa: E402
from omni_runtime.experts.talk_span import TalkSpan  # noqa: E402
from omni_runtime.weights.omni_parts import Timing  # noqa: E402

torch.set_num_threads(1)
T = folder().config.tokens
TURN = {"im_start": T.im_start, "im_end": T.im_end, "system": T.system, "user": T.user, "assistant": T.assistant}
FAMILY = Family(T, folder().config.timing, TURN, audio_tokens)
MEDIA = (T.image, T.video, T.audio)
THOUGHT, FRAMES = 10, 12


REQUESTS = [(1, 0, 0, False), (0, 0, 2, False), (2, 1, 1, False), (1, 1, 2, True)]


@pytest.mark.parametrize("asked", REQUESTS)
def test_whole_answers(asked: tuple[int, int, int, bool]) -> None:
    request = Request(FAMILY, *asked)
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
    heard, cache, accept = (
        Heard(request, thinker(), vision_encoder().encode, audio_encoder().encode),
        thinker().cache(),
        folder().config.talker.accept,
    )
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
