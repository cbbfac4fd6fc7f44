"""What a span may bring to the decoder, against the text models inside Qwen3-Omni."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_qwen3 import folder, reference, talker, thinker  # noqa: E402

from omni_runtime.errors import CardError  # noqa: E402
from omni_runtime.experts.decoder import DecoderLM, Given, Span  # noqa: E402
from omni_runtime.experts.rotary import axis_of  # noqa: E402
from omni_runtime.weights.decoder_config import DecoderConfig  # noqa: E402

torch.set_num_threads(1)
WIDTH = 64


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Case:
    """A sequence with vectors at some places, odd positions, and features at two stretches."""

    def __init__(self, length: int, seed: int) -> None:
        rng = random.Random(seed)
        self.tokens = [rng.randrange(256) for _ in range(length)]
        self.vectors_ND = thinker().embed(self.tokens).clone()
        where = sorted(rng.sample(range(length), length // 3))
        self.rows = tuple(where)
        self.vectors_ND[where] = 0.5 * noise(len(where), WIDTH, seed=seed)
        steps = torch.tensor([[rng.choice([0, 1, 1, 2.5]) for _ in range(length)] for _ in range(3)])
        self.positions_3N = steps.cumsum(1)
        self.features_LMD = 0.5 * noise(2, len(where), WIDTH, seed=seed + 1)

    def span(self, start: int, stop: int, cache: Any, draw: bool = False) -> Span:
        inside = [i for i, row in enumerate(self.rows) if start <= row < stop]
        given = Given(
            self.vectors_ND[start:stop],
            self.positions_3N[:, start:stop],
            tuple(self.rows[i] - start for i in inside),
            self.features_LMD[:, inside],
        )
        return Span(cache, start, (), draw, given)

    @torch.inference_mode()
    def expected(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of the reference: logits after the last token, states after the last norm, and what feeds a layer."""
        mask = torch.zeros(1, len(self.tokens), dtype=torch.bool)
        mask[0, list(self.rows)] = True
        out = reference().thinker.model.language_model(
            inputs_embeds=self.vectors_ND[None],
            position_ids=self.positions_3N[:, None],
            visual_pos_masks=mask,
            deepstack_visual_embeds=list(self.features_LMD),
            output_hidden_states=True,
        )
        logits_TV = reference().thinker.lm_head(out.last_hidden_state[0])
        assert logits_TV.std() > 0.5
        return logits_TV[-1], out.last_hidden_state[0], out.hidden_states[layer][0]


def test_axes_take_turns() -> None:
    assert axis_of((4, 2, 2)).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]
    published = axis_of((24, 20, 20)).tolist()
    assert [published.count(axis) for axis in range(3)] == [24, 20, 20]
    assert published[60:] == [0] * 4
    with pytest.raises(CardError, match="rope_sections"):
        DecoderConfig(9, 8, 1, 1, 1, 8, 8, 9, 1e4, 1e-6, rope_sections=(2, 1, 0))


@pytest.mark.parametrize("layer", range(4))
def test_everything_at_once(layer: int) -> None:
    case = Case(23, seed=layer)
    ran = thinker().run([case.span(0, 23, thinker().cache(), draw=True)], taps=(layer,))
    logits_V, hidden_TD, inner_TD = case.expected(layer)
    torch.testing.assert_close(ran.hidden_TD, hidden_TD, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ran.taps[layer], inner_TD, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ran.logits_RV[0], logits_V, rtol=1e-5, atol=2e-5)


def test_in_chunks_among_plain_neighbours() -> None:
    """A neighbour that brings nothing is computed as if it were alone, up to rounding."""
    case, cache = Case(30, seed=9), thinker().cache()
    plain = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    alone = thinker().run([Span(thinker().cache(), 0, plain, draw=True), Span(thinker().cache(), 0, plain[:7])])
    parts = []
    for start, stop in ((0, 7), (7, 8), (8, 30)):
        spans = [case.span(start, stop, cache), Span(thinker().cache(), 0, plain, draw=True)]
        ran = thinker().run(spans, taps=(2,))
        parts.append((ran.hidden_TD[: stop - start], ran.taps[2][: stop - start]))
        torch.testing.assert_close(ran.logits_RV[0], alone.logits_RV[0], rtol=1e-5, atol=1e-5)
    _, hidden_TD, inner_TD = case.expected(2)
    torch.testing.assert_close(torch.cat([part for part, _ in parts]), hidden_TD, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat([part for _, part in parts]), inner_TD, rtol=1e-5, atol=1e-5)


def test_equal_rows_of_positions_are_plain_positions() -> None:
    tokens = list(range(40, 60))
    plain = thinker().run([Span(thinker().cache(), 0, tokens, draw=True)])
    same = Given(positions_3N=torch.arange(20).expand(3, -1))
    told = thinker().run([Span(thinker().cache(), 0, tokens, draw=True, given=same)])
    torch.testing.assert_close(told.logits_RV, plain.logits_RV, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("field", ["positions_3N", "features_LMD"])
def test_what_is_left_out_is_missed(field: str) -> None:
    """The mutants: each of the things that a span brings counts."""
    case = Case(23, seed=0)
    span = case.span(0, 23, thinker().cache())
    assert span.given is not None
    kept = {name: getattr(span.given, name) for name in ("vectors_ND", "positions_3N", "rows", "features_LMD") if name != field}
    ran = thinker().run([Span(span.cache, 0, (), given=Given(**kept))])
    assert (ran.hidden_TD - case.expected(1)[1]).abs().max() > 0.1


def test_greedy_tokens_of_the_thinker() -> None:
    prompts = [[3 * i % 256 for i in range(5 + 4 * j)] for j in range(4)]
    answers: list[list[int]] = [[] for _ in prompts]
    caches = [thinker().cache() for _ in prompts]
    for _ in range(16):
        spans = [
            Span(cache, cache.length, (prompt + answer)[cache.length :], draw=True)
            for prompt, answer, cache in zip(prompts, answers, caches, strict=True)
        ]
        for answer, logits_V in zip(answers, thinker().run(spans).logits_RV, strict=True):
            answer.append(int(logits_V.argmax()))
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt + answer])
        with torch.inference_mode():
            logits_TV = reference().thinker(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        assert logits_TV.argmax(-1).tolist() == answer
        top = logits_TV.topk(2, -1).values
        assert (top[:, 0] - top[:, 1]).min() > 1e-4


def test_states_of_the_talker() -> None:
    """A shared expert beside the chosen ones; a mutant without it is far off."""
    vectors_ND = 0.7 * noise(19, 48, seed=1)
    with torch.inference_mode():
        expected = reference().talker.model(inputs_embeds=vectors_ND[None]).last_hidden_state[0]
    model = talker().model
    cache = model.cache()
    found = [
        model.run([Span(cache, at, (), given=Given(vectors_ND[at : at + n]))]).hidden_TD for at, n in ((0, 6), (6, 1), (7, 12))
    ]
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-5, atol=1e-5)
    config, weights = folder().config.talker.decoder, dict(folder().talker())
    weights["model.layers.0.mlp.shared_expert_gate.weight"] = -weights["model.layers.0.mlp.shared_expert_gate.weight"]
    mutant = DecoderLM(config, weights)
    assert (mutant.run([Span(mutant.cache(), 0, (), given=Given(vectors_ND))]).hidden_TD - expected).abs().max() > 0.01
