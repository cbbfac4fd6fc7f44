"""Talker and code predictor against the reference: every code of every frame, greedy and drawn, alone and together."""

from __future__ import annotations

import random

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_qwen3 import folder, reference, talker, thinker, vocoder  # noqa: E402

from omni_runtime.draw import Draw, Edits  # noqa: E402
from omni_runtime.errors import RequestError  # noqa: E402
from omni_runtime.experts.decoder import Span  # noqa: E402
from omni_runtime.experts.edits import History  # noqa: E402
from omni_runtime.experts.kv_cache import KVCache  # noqa: E402
from omni_runtime.experts.qwen3_predictor import INNER, inner  # noqa: E402
from omni_runtime.experts.qwen3_talker import user_turns  # noqa: E402
from omni_runtime.experts.sampling import draw  # noqa: E402
from omni_runtime.experts.talk_span import TalkSpan  # noqa: E402

torch.set_num_threads(1)
GREEDY = Draw(0, 5)
T = folder().config.tokens


def prompt(text: str, system: str = "") -> list[int]:
    head = [T.im_start, T.system, 10, *system.encode(), T.im_end, 10] if system else []
    return [*head, T.im_start, T.user, 10, *text.encode(), T.im_end, 10, T.im_start, T.assistant, 10]


def think(tokens: list[int], count: int) -> list[int]:
    """Greedy tokens of the answer, the last of which is never fed."""
    cache, known = thinker().cache(), list(tokens)
    while len(known) < len(tokens) + count and known[-1] != T.im_end:
        known.append(int(thinker().forward([Span(cache, cache.length, known[cache.length :], draw=True)])[0][0].argmax()))
    return known[len(tokens) :]


class Speech:
    """One request: what its talker is fed, and the frames that came of it."""

    def __init__(self, tokens: list[int], answer: list[int], speaker: str = "Ethan", talk: Draw = GREEDY) -> None:
        speaks = lambda ids: talker().text(thinker().embed(ids))  # noqa: E731
        at = len(tokens) - 3
        user = [tokens[i] for i in user_turns(tokens[:at], T)]
        pad_D, bos_D, eos_D = speaks([T.tts_pad, T.tts_bos, T.tts_eos])
        said_TD = speaks(answer)
        opening = talker().opening(speaks(tokens[at:]), pad_D, bos_D, said_TD[0], speaker)
        self.vectors_TD = torch.cat([speaks(user), opening])
        self.trailing = [*said_TD[1:-1], eos_D]
        self.pad_D, self.talk = pad_D, talk
        self.history = History()
        self.cache: KVCache = talker().model.cache()
        self.frames: list[tuple[int, ...]] = []
        self.ended = False

    def span(self, size: int) -> TalkSpan:
        start = self.cache.length
        vectors_TD = self.vectors_TD[start : start + size]
        draws = start + size == len(self.vectors_TD)
        return TalkSpan(self.cache, start, vectors_TD, self.talk, len(self.frames) if draws else -1, history=self.history)

    def take(self, code: int, frame: tuple[int, ...]) -> None:
        if code < 0:
            return
        if not frame:
            self.ended = True
            return
        k = len(self.frames)
        self.history.write(k, [code])
        text_D = self.trailing[k] if k < len(self.trailing) else self.pad_D
        self.frames.append(frame)
        self.vectors_TD = torch.cat([self.vectors_TD, talker().frames([frame], text_D[None])])


def run(speeches: list[Speech], frames: int, seed: int = 0) -> None:
    """All at once, prefills cut at random places."""
    rng = random.Random(seed)
    while going := [s for s in speeches if not s.ended and len(s.frames) < frames]:
        spans = [s.span(rng.randrange(1, len(s.vectors_TD) - s.cache.length + 1)) for s in going]
        for speech, talked in zip(going, talker().talk(spans), strict=True):
            speech.take(talked.code, talked.frame)


PROMPTS = [prompt("Hello omni"), prompt("hi", system="Be brief."), prompt("How many are there, and where do they all go?")]


def generated(tokens: list[int], answer: list[int], speaker: str, penalty: float = 1.0) -> torch.Tensor:
    """The reference's wave of 20 frames, its thinker's tokens checked."""
    ids = torch.tensor([tokens])
    seq, wave = reference().generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        speaker=speaker,
        thinker_max_new_tokens=len(answer),
        thinker_do_sample=False,
        thinker_eos_token_id=T.im_end,
        talker_max_new_tokens=21,  # the last code 0 gets no other codes and is dropped: 20 frames
        talker_do_sample=False,
        talker_temperature=None,
        talker_top_k=None,
        talker_top_p=None,
        talker_repetition_penalty=penalty,
        return_audio=True,
    )
    assert seq[0, len(tokens) :].tolist() == answer
    return wave[0, 0]


@pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`")
def test_penalties_count_codes_of_the_answer() -> None:
    answer = think(PROMPTS[0], 6)
    penalised = Draw(0, 5, edits=Edits(repetition=1.6))
    speeches = [Speech(PROMPTS[0], answer, talk=how) for how in (GREEDY, penalised)]
    run(speeches, 20)
    assert speeches[0].frames != speeches[1].frames
    ((_, ours),) = vocoder().decode([vocoder().fresh()], [torch.tensor(speeches[1].frames)])
    torch.testing.assert_close(ours, generated(PROMPTS[0], answer, "ethan", 1.6), rtol=0, atol=1e-5)


def test_frames_and_waves_of_generate() -> None:
    speeches, expected = [], []
    for i, tokens in enumerate(PROMPTS):
        answer = think(tokens, 6 + 3 * i)
        speeches.append(Speech(tokens, answer, "Chelsie" if i else "ethan"))
        expected.append(generated(tokens, answer, "Chelsie" if i else "ethan"))
    run(speeches, 20)
    assert all(len(set(speech.frames)) > 10 for speech in speeches)  # not in a fixed point that anything would reach
    for speech, wave in zip(speeches, expected, strict=True):
        ((_, ours),) = vocoder().decode([vocoder().fresh()], [torch.tensor(speech.frames)])
        torch.testing.assert_close(ours, wave, rtol=0, atol=1e-5)  # so all codes are equal
        alone = Speech.__new__(Speech)
        alone.__dict__ |= speech.__dict__ | {"cache": talker().model.cache(), "frames": [], "ended": False}
        alone.history = History()
        alone.vectors_TD = speech.vectors_TD[: -len(speech.frames)]
        run([alone], 20, seed=4)
        assert alone.frames == speech.frames


def test_an_answer_of_one_word() -> None:
    """Its second token, here cut off by the limit, is never fed: only the first is spoken, then tts_eos."""
    answer = think(PROMPTS[1], 2)
    speech = Speech(PROMPTS[1], answer)
    assert len(speech.trailing) == 1
    run([speech], 20)
    ((_, ours),) = vocoder().decode([vocoder().fresh()], [torch.tensor(speech.frames)])
    torch.testing.assert_close(ours, generated(PROMPTS[1], answer, "ethan"), rtol=0, atol=1e-5)


@pytest.mark.parametrize("after", [0, 1, 7])
def test_a_lost_cache_is_a_longer_prefill(after: int) -> None:
    """What frames were fed as is made again from their codes; frames that were drawn are never drawn again."""
    answer = think(PROMPTS[0], 9)
    how = Draw(11, 5, temperature=0.9, top_k=50)
    whole, lost = Speech(PROMPTS[0], answer, talk=how), Speech(PROMPTS[0], answer, talk=how)
    run([whole], 14)
    run([lost], after)
    head = len(lost.vectors_TD) - after
    text_TD = torch.stack([*lost.trailing, *[lost.pad_D] * after][:after]) if after else torch.zeros(0, 48)
    if after:
        lost.vectors_TD = torch.cat([lost.vectors_TD[:head], talker().frames(lost.frames, text_TD)])
    lost.cache = talker().model.cache()
    run([lost], 14, seed=3)
    assert lost.frames == whole.frames


@torch.inference_mode()
def reference_logits(hidden_D: torch.Tensor, code: int, rest: list[int]) -> list[torch.Tensor]:
    """The reference's logits of each code of a frame, given those before it."""
    model, first = reference().talker.code_predictor, reference().talker.get_input_embeddings()
    fed = [hidden_D, first(torch.tensor(code))] + [
        model.model.codec_embedding[g](torch.tensor(c)) for g, c in enumerate(rest[:-1])
    ]
    states_TD = model.model(inputs_embeds=torch.stack(fed)[None]).last_hidden_state[0, 1:]
    return [head(state_D) for head, state_D in zip(model.lm_head, states_TD, strict=True)]


def test_predicted_codes_are_drawn_by_the_rules() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = 7
    hidden_RD = torch.randn(rows, 48, generator=generator)
    first = torch.randint(0, 64, (rows,), generator=generator).tolist()
    how = [Draw(seed, 3, temperature=t, top_k=50, top_p=p) for seed, (t, p) in enumerate([(0.0, 1.0), (1.0, 0.8)] * 4)][:rows]
    frames = list(range(10, 10 + rows))
    found = talker().predictor.predict(hidden_RD, talker().model.embed(first), how, frames)
    greedy = 0
    for r, codes in enumerate(found):
        for g, logits_V in enumerate(reference_logits(hidden_RD[r], first[r], codes)):
            assert logits_V.std() > 0.5
            assert codes[g] == draw(logits_V, how[r], frames[r] * 3 + g), f"row {r} code {g}"
            greedy += how[r].temperature > 0 and codes[g] == int(logits_V.argmax())
    assert greedy < 9  # draws that are no greedy choice
    for r in range(rows):
        args = hidden_RD[r : r + 1], talker().model.embed(first[r : r + 1]), how[r : r + 1], frames[r : r + 1]
        assert talker().predictor.predict(*args) == found[r : r + 1]


def test_drawn_speech_is_the_request_s_own() -> None:
    answer = think(PROMPTS[0], 6)
    how = [Draw(seed, 5, temperature=0.9, top_k=50) for seed in (7, 8, 7)]
    speeches = [Speech(PROMPTS[0], answer, talk=one) for one in how]
    run(speeches, 12, seed=2)
    assert speeches[0].frames == speeches[2].frames
    assert speeches[0].frames != speeches[1].frames
    assert inner(how[0]).node == 5 | INNER


def test_reserved_codes_are_never_drawn() -> None:
    hot = [Speech(PROMPTS[0], [65, 66, 67], talk=Draw(seed, 5, temperature=30.0)) for seed in range(6)]
    run(hot, 8)
    assert all(frame[0] < 64 for speech in hot for frame in speech.frames)
    assert sum(len(speech.frames) for speech in hot) > 20


def test_unknown_speaker() -> None:
    with pytest.raises(RequestError, match=r"unknown speaker 'Etan', known: chelsie, ethan; did you mean 'ethan'"):
        Speech(PROMPTS[0], [65, 66], "Etan")
