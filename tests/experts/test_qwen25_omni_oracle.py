"""A whole answer to text, pictures, a clip and sounds: thinker tokens, codes and wave equal those of `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from driven import Line, drive  # noqa: E402
from flow_driver import integrate  # noqa: E402
from media_request import Family, Heard, Request  # noqa: E402
from talk_driver import Thinker, Told, codes_alone, spec  # noqa: E402
from tiny_qwen25 import audio_encoder, bigvgan, flow, folder, reference, talker, thinker, vision_encoder, voice  # noqa: E402

from omni_runtime.draw import Draw, Edits  # noqa: E402
from omni_runtime.experts.decoder import Given, Span  # noqa: E402
from omni_runtime.experts.qwen25_audio import audio_tokens  # noqa: E402
from omni_runtime.experts.qwen25_talker import spoken  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.experts.state_voice import StateVoice  # noqa: E402
from omni_runtime.request import TalkParams  # noqa: E402
from omni_runtime.weights.toy_qwen2_5_omni import token_ids  # noqa: E402

torch.set_num_threads(1)
IDS = token_ids()
TURN = {name: IDS[name] for name in ("system", "user", "assistant")}
TURN |= {"im_start": IDS["<|im_start|>"], "im_end": IDS["<|im_end|>"]}
T, END = folder().config.tokens, TURN["im_end"]
FAMILY = Family(T, folder().config.timing, TURN, audio_tokens)
MEDIA = (T.image, T.video, T.audio)
THOUGHT, CODES, POINTS = 10, 24, 4


@contextmanager
def marked_prompts(model: Any) -> Iterator[None]:
    """transformers 5.24 drops a mask of ones, and its talker then leaves out the marks of the opening and counts positions as if
    there were no pictures. Giving it the mask again makes it what its makers published (and what 4.57 computes)."""

    def with_mask(_: Any, args: Any, told: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if told.get("attention_mask") is None:
            fed = told.get("inputs_embeds")
            told = dict(told, position_ids=None)
            if fed is not None:
                told["inputs_embeds"] = fed.clone()  # the marks are added in place
            cache, new = told.get("cache"), fed if fed is not None else told["input_ids"]
            before = 0 if cache is None else cache.get_seq_length()
            told["attention_mask"] = torch.ones(1, before + new.shape[1], dtype=torch.long)
        return args, told

    handle = model.talker.register_forward_pre_hook(with_mask, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


class Codes(list[int]):
    """What the reference's token2wav was called with."""


@contextmanager
def codes_of(model: Any) -> Iterator[Codes]:
    found = Codes()

    def note(_: Any, args: Any) -> None:
        found[:] = args[0][0].tolist()

    handle = model.token2wav.register_forward_pre_hook(note)
    try:
        yield found
    finally:
        handle.remove()


def generated(request: Request, who: str, penalty: float) -> tuple[list[int], Codes, torch.Tensor]:
    """The reference's tokens, codes and wave."""
    with marked_prompts(reference()), codes_of(reference()) as codes:
        torch.manual_seed(6)
        sequence, wave = reference().generate(
            **request.for_generate("thinker_"),
            speaker=who,
            thinker_max_new_tokens=THOUGHT,
            thinker_do_sample=False,
            thinker_eos_token_id=END,
            talker_max_new_tokens=CODES,
            talker_do_sample=False,
            talker_temperature=None,
            talker_top_k=None,
            talker_top_p=None,
            talker_repetition_penalty=penalty,
            talker_eos_token_id=[talker().config.pad, talker().config.eos],
            token2wav_num_steps=POINTS,
        )
    return sequence[0, len(request.ids) :].tolist(), codes, wave


REQUESTS = [(0, 0, 0, False), (1, 0, 0, False), (0, 0, 2, False), (2, 1, 1, False), (1, 1, 2, True), (0, 1, 1, True)]


@pytest.mark.parametrize("asked", REQUESTS)
@pytest.mark.parametrize(("who", "penalty"), [("Chelsie", 1.0), ("Ethan", 1.3)])
def test_whole_answers(asked: tuple[int, int, int, bool], who: str, penalty: float) -> None:
    request = Request(FAMILY, *asked)
    tokens, codes, wave = generated(request, who, penalty)
    # The thinker, its prompt in chunks; v is what its talker is fed.
    heard, cache = Heard(request, thinker(), vision_encoder().encode, audio_encoder().encode), thinker().cache()
    count, parts = len(request.ids), []
    for start in range(0, count, 23):
        stop = min(start + 23, count)
        ran = thinker().run([heard.span(cache, start, stop, stop == count)], taps=(0,))
        media = [i for i, token in enumerate(request.ids[start:stop]) if token in MEDIA]
        parts.append(spoken(ran.taps[0], ran.hidden_TD, media))
    answer, said = [int(ran.logits_RV[0].argmax())], []
    while len(answer) < THOUGHT and answer[-1] != END:
        at = torch.full((3, 1), heard.placed.next + len(answer) - 1)
        ran = thinker().run([Span(cache, cache.length, answer[-1:], True, Given(positions_3N=at))], taps=(0,))
        said.append(spoken(ran.taps[0], ran.hidden_TD)[0])
        answer.append(int(ran.logits_RV[0].argmax()))
    assert answer == tokens
    # The talker, at the level of its model and as an expert: positions count on from the thinker's.
    v_TW, placed = torch.cat([*parts, *(state_W[None] for state_W in said)]), heard.placed
    told = Told(v_TW, count, placed.position_3N, placed.next, who)
    embedding_VW, bos = folder().tensor("thinker.model.embed_tokens.weight"), folder().speakers()[who].bos
    how = Draw(0, 1, edits=Edits(repetition=penalty) if penalty != 1 else None)
    found = codes_alone(talker(), embedding_VW, bos, told, how, CODES)
    slots = Slots("cpu#1")
    thinker_of = Thinker(1, told, slots)
    params = TalkParams(max_frames=CODES, speaker=who, repetition_penalty=penalty)
    line = Line(1, spec(talker()), params, thinker_of.channels)
    drive(StateVoice(talker(), embedding_VW, {who: bos}).talk, [line], slots, len(tokens), 40, thinker_of.feed)
    assert [frame[0] for frame in line.pushed["codes"]] == codes
    assert found == codes
    assert len(set(found)) > (4 if penalty > 1 else 1)
    torch.manual_seed(6)
    noise_TM = torch.randn(1, 2 * len(found), flow().config.mels)[0]
    mel_TM, _ = integrate(flow(), noise_TM, found, voice(who), POINTS)
    torch.testing.assert_close(bigvgan().decode(mel_TM[None])[0], wave, rtol=0, atol=1e-5)


def test_without_the_marks_other_codes_come_out() -> None:
    """The regression of transformers 5.24 that `marked_prompts` mends: if this fails, it is mended there."""
    request = Request(FAMILY, 0, 0, 0, False)
    _, codes, _ = generated(request, "Chelsie", 1.0)
    with codes_of(reference()) as others:
        reference().generate(
            **request.for_generate(),
            speaker="Chelsie",
            thinker_max_new_tokens=THOUGHT,
            thinker_do_sample=False,
            thinker_eos_token_id=END,
            talker_max_new_tokens=CODES,
            talker_do_sample=False,
            talker_temperature=None,
            talker_top_k=None,
            talker_top_p=None,
            talker_repetition_penalty=1.0,
            talker_eos_token_id=[talker().config.pad, talker().config.eos],
            token2wav_num_steps=2,
        )
    assert list(codes) != list(others)
