"""The experts as an executor sees them: rows in, results out, state in slots, mistakes named."""

from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from tiny import CONFIGS, random_tokens, random_weights  # noqa: E402

from omni_runtime.errors import CardError, CheckpointError, RequestError  # noqa: E402
from omni_runtime.experts import chat, text_lm  # noqa: E402
from omni_runtime.experts.decoder import DecoderLM  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.experts.text_lm import TextLM  # noqa: E402
from omni_runtime.work import ArStep, CallStep, Draw, Row, StepResult, TensorRef  # noqa: E402

GREEDY = Draw(seed=0, node=1)
PIECES = [b"<%d>" % i for i in range(97)]


@pytest.fixture(scope="module")
def expert() -> TextLM:
    return TextLM(DecoderLM(CONFIGS["qwen3"], random_weights(CONFIGS["qwen3"])), PIECES)


def row(run: int, start: int, tokens: list[int], index: int, draw: Draw = GREEDY, **more: Any) -> Row:
    return Row(run, "think", len(tokens), 0, (), ArStep(start, tuple(tokens), index, draw, **more))


def one(expert: TextLM, slots: Slots, item: Row) -> StepResult:
    (result,) = expert.ops["forward"]([item], slots)
    return result


def generate(expert: TextLM, run: int, prompt: list[int], count: int, draw: Draw = GREEDY) -> list[int]:
    slots, tokens = Slots("cpu0#1"), [one(expert, Slots("x#1"), row(run, 0, prompt, 0, draw)).token]
    one(expert, slots, row(run, 0, prompt, -1, draw))
    while len(tokens) < count:
        tokens.append(one(expert, slots, row(run, len(prompt) + len(tokens) - 1, tokens[-1:], len(tokens), draw)).token)
    return tokens


def test_prompt_chunks_draw_nothing_and_decodes_draw(expert: TextLM) -> None:
    slots, prompt = Slots("cpu0#1"), random_tokens(9, seed=1)
    quiet = one(expert, slots, row(1, 0, prompt[:4], -1))
    assert (quiet.token, quiet.piece, quiet.items, quiet.tensors) == (-1, b"", {}, {})
    loud = one(expert, slots, row(1, 4, prompt[4:], 0))
    assert loud.piece == PIECES[loud.token]
    assert slots.counts == (1, 0)
    assert expert.ops["forward"]([], slots) == []
    slots.drop(1, "think")
    assert slots.counts == (0, 0)


@pytest.mark.parametrize("draw", [GREEDY, Draw(7, 1, 0.8, 0.95), Draw(2**64 - 1, 1, 1.3)])
def test_alone_and_in_a_crowd(expert: TextLM, draw: Draw) -> None:
    """Six requests of all ages together: prompts in chunks beside decodes, each as if alone."""
    prompts = [random_tokens(5 + 7 * i, seed=i) for i in range(6)]
    draws = [Draw(draw.seed - i if draw.seed else 0, 1, draw.temperature, draw.top_p) for i in range(6)]
    alone = [generate(expert, i, prompt, 12, how) for i, (prompt, how) in enumerate(zip(prompts, draws, strict=True))]
    slots, known, at, round_number = Slots("cpu0#1"), [list(prompt) for prompt in prompts], [0] * 6, 0
    while any(len(k) < len(p) + 12 for k, p in zip(known, prompts, strict=True)):
        rows = []
        for i in range(6):
            if len(known[i]) < len(prompts[i]) + 12 and round_number >= i:  # a newcomer every round
                part = known[i][at[i] : at[i] + 8]
                ends = at[i] + len(part) == len(known[i])
                rows.append(row(i, at[i], part, len(known[i]) - len(prompts[i]) if ends else -1, draws[i]))
        for item, result in zip(rows, expert.ops["forward"](rows, slots), strict=True):
            at[item.run] += item.size
            if result.token >= 0:
                known[item.run].append(result.token)
        round_number += 1
    assert [k[len(p) : len(p) + 12] for k, p in zip(known, prompts, strict=True)] == alone


def test_a_row_may_run_again(expert: TextLM) -> None:
    slots, prompt = Slots("cpu0#1"), random_tokens(9, seed=2)
    how = Draw(5, 1, 1.0)
    first = one(expert, slots, row(1, 0, prompt, 0, how, hidden=True))
    again = one(expert, slots, row(1, 0, prompt, 0, how, hidden=True))
    assert first == again  # the same token, and the same names of the same tensors
    assert slots.counts == (1, 9)


def test_hidden_states_lie_one_per_position_in_their_own_memory(expert: TextLM) -> None:
    slots, prompt = Slots("cpu0#1"), random_tokens(9, seed=3)
    whole = one(expert, slots, row(1, 0, prompt, 0, hidden=True)).tensors["hidden"]
    assert [(ref.run, ref.loop, ref.port, ref.index) for ref in whole] == [(1, "think", "hidden", i) for i in range(9)]
    assert all(ref.shape == (48,) and ref.dtype == "float32" and ref.home == "cpu0#1" for ref in whole)
    assert all(slots.read(ref).untyped_storage().nbytes() == ref.nbytes for ref in whole)
    mixed = expert.ops["forward"](
        [row(2, 0, prompt[:5], -1, hidden=True), row(3, 0, prompt, -1), row(4, 0, prompt[:2], 0, hidden=True)], slots
    )
    assert [len(result.tensors.get("hidden", ())) for result in mixed] == [5, 0, 2]
    for refs, count in ((mixed[0].tensors["hidden"], 5), (mixed[2].tensors["hidden"], 2)):
        for i in range(count):
            torch.testing.assert_close(slots.read(refs[i]), slots.read(whole[i]), rtol=2e-5, atol=5e-5)
    tail = one(expert, slots, row(2, 5, prompt[5:], -1, hidden=True)).tensors["hidden"]
    assert [ref.index for ref in tail] == [5, 6, 7, 8]
    slots.release(whole)
    slots.release(mixed[0].tensors["hidden"] + mixed[2].tensors["hidden"] + tail)
    assert slots.counts[1] == 0


REF = TensorRef("cpu0#1", 1, "other", "hidden", 0)


@pytest.mark.parametrize(
    ("bad", "error", "clause"),
    [
        (Row(9, "think", 1, 0, (), CallStep(0, {}, {}, {})), RequestError, "needs an ArStep, got CallStep"),
        (row(9, 0, [1], 0, conditioning=(REF,)), RequestError, "conditioning is not supported by this expert"),
        (row(9, 0, [97], 0), RequestError, "97 is not in the vocabulary"),
        (row(9, 0, [], 0), RequestError, "at least one token"),
        (row(9, 0, [1] * 257, 0), RequestError, "257 positions"),
        (row(9, 3, [1], 0), AssertionError, "starts at 3"),
    ],
)
def test_a_bad_row_leaves_its_neighbours_usable(expert: TextLM, bad: Row, error: type[Exception], clause: str) -> None:
    slots, prompt = Slots("cpu0#1"), random_tokens(9, seed=4)
    expected = one(expert, Slots("x#1"), row(1, 0, prompt, 0))
    good = row(1, 5, prompt[5:], 0)
    one(expert, slots, row(1, 0, prompt[:5], -1))
    with pytest.raises(error, match=clause):
        expert.ops["forward"]([good, bad], slots)
    assert one(expert, slots, good) == expected  # as the scheduler does: everybody again, alone


def test_broken_weights_are_an_error_of_the_row() -> None:
    weights = random_weights(CONFIGS["llama"])
    weights["lm_head.weight"][3] = torch.nan
    expert = TextLM(DecoderLM(CONFIGS["llama"], weights), PIECES)
    with pytest.raises(FloatingPointError, match="token 3 has nan"):
        one(expert, Slots("cpu0#1"), row(1, 0, [1, 2], 0))


@pytest.mark.parametrize("module", [text_lm, chat])
def test_options_are_checked(module: Any) -> None:
    with pytest.raises(CardError, match=r"unknown option 'weight'.*did you mean 'weights'"):
        module.build({"weight": "x"}, "cpu")
    with pytest.raises(CardError, match="weights=3, a text is needed"):
        module.build({"weights": 3}, "cpu")
    with pytest.raises(CheckpointError, match=r"/nowhere/model\.gguf"):
        module.build({"weights": "/nowhere/model.gguf"}, "cpu")


def call(messages: Any, **more: Any) -> Row:
    return Row(1, "tokenize", 1, 0, (), CallStep(0, {"messages": (messages,)} | more, {}, {}))


@pytest.mark.oracle
def test_the_real_experts_chat() -> None:
    tokenizer, expert = chat.build({}, "cpu"), text_lm.build({"linear": "plain"}, "cpu")
    assert chat.build({}, "cpu").tokenizer is tokenizer.tokenizer  # the file is read once
    slots, question = Slots("cpu0#1"), "What is the capital of France? Answer in one sentence."
    plain, turns = tokenizer.ops["encode_chat"]([call(question), call([{"role": "user", "content": question}])], slots)
    assert plain == turns
    ids = plain.items["tokens"]
    text, start, index = b"", 0, 0
    while index < 12:
        result = one(expert, slots, row(1, start, ids, index))
        if result.token in tokenizer.tokenizer.stop:
            break
        start, ids, index, text = start + len(ids), [result.token], index + 1, text + result.piece
    assert text == b"The capital of France is Paris."
    assert result.piece == b""
    for bad, clause in [
        (call([]), "messages"),
        (call("x", other=(1,)), "'other': 1"),
        (
            Row(1, "t", 1, 0, (), CallStep(0, {"messages": ("x",)}, {}, {"temperature": 1})),
            "takes no parameters, got temperature",
        ),
        (row(1, 0, [1], 0), "needs a CallStep"),
    ]:
        with pytest.raises(RequestError, match=clause):
            tokenizer.ops["encode_chat"]([bad], slots)
