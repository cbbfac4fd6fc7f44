"""Tiny folders through the whole runtime: greedy answers are transformers', alone and in crowds, in chunks or whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from omni_runtime.cards.causal_lm import causal_lm  # noqa: E402
from omni_runtime.programs.chat import chat  # noqa: E402

from omni_runtime.card import OpLimits  # noqa: E402
from omni_runtime.experts.decoder import DecoderLM, Span  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402
from omni_runtime.weights.folder import FolderWeights  # noqa: E402
from omni_runtime.weights.toy_folder import write_toy  # noqa: E402

torch.set_num_threads(1)
ANSWER = 12
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
FOLDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, llama3 rope": ("llama", {"tie_word_embeddings": True, "shards": 3, "rope_theta": None, "rope_parameters": LLAMA3}),
    "llama, linear rope, biases": (
        "llama",
        {"rope_scaling": {"type": "linear", "factor": 2.5}, "attention_bias": True, "mlp_bias": True, "dtype": torch.float16},
    ),
    "qwen2": ("qwen2", {"dtype": torch.bfloat16, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"shards": 2, "rope_theta": 1e6}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True}),
    "qwen3_moe": ("qwen3_moe", {"shards": 2}),
    "qwen3_moe, not normalised": (
        "qwen3_moe",
        {"norm_topk_prob": False, "num_experts_per_tok": 3, "decoder_sparse_step": 2, "mlp_only_layers": []},
    ),
}
STARTS = ["hi", "What is the answer to the", "on and on " * 12, "größer 你好", "the the the", "\n", "a" * 70, "12345 * 6789 ="]
QUESTIONS = [f"{start} {i}" if i % 3 else start for i, start in enumerate(STARTS * 2)]


class Oracle(NamedTuple):
    """A folder, and what transformers makes of it."""

    folder: Path
    model: Any
    prompts: list[list[int]]
    answers: list[list[int]]


@pytest.fixture(scope="module", params=FOLDERS)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    kind, changes = FOLDERS[request.param]
    folder = write_toy(tmp_path_factory.mktemp("folders") / kind, kind, seed=3, **changes)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert {name: found for name, found in info.items() if found} == {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompts, answers = [], []
    for question in QUESTIONS:
        turns = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        given = torch.tensor([ids])
        out = model.eval().generate(given, attention_mask=torch.ones_like(given), max_new_tokens=ANSWER, do_sample=False)
        prompts.append(ids)
        answers.append(out[0, len(ids) :].tolist())
    assert len({tuple(answer) for answer in answers}) >= 8
    assert sum(len(set(answer)) > 4 for answer in answers) >= 8  # no fixed points
    return Oracle(folder, model, prompts, answers)


@torch.inference_mode()
def test_logits(oracle: Oracle) -> None:
    weights = FolderWeights(oracle.folder)
    ours = DecoderLM(weights.config, weights)
    together = [Span(ours.cache(), 0, prompt, draw=True) for prompt in oracle.prompts]
    crowd_RV, _ = ours.forward(together)
    for prompt, crowd_V in zip(oracle.prompts, crowd_RV, strict=True):
        theirs_V = oracle.model(torch.tensor([prompt])).logits[0, -1]
        alone_RV, _ = ours.forward([Span(ours.cache(), 0, prompt, draw=True)])
        assert theirs_V.std() > 0.5  # not flat
        torch.testing.assert_close(alone_RV[0], theirs_V, rtol=0, atol=1e-4)
        torch.testing.assert_close(crowd_V, theirs_V, rtol=0, atol=1e-4)


@pytest.mark.parametrize("reuse", [False, True], ids=["fresh", "reuse"])
@pytest.mark.parametrize("size", [7, 512], ids=["chunks", "whole"])
def test_greedy_answers(oracle: Oracle, size: int, reuse: bool) -> None:
    card = causal_lm(oracle.folder, limits=OpLimits(units=16, size=size))
    program = chat(card)
    with Runtime([card], executor="loopback", prefix_cache=reuse) as runtime:
        alone = [runtime.submit(program, messages=q, max_tokens=ANSWER).result(60) for q in QUESTIONS[:4]]
        handles = [runtime.submit(program, messages=q, max_tokens=ANSWER) for q in QUESTIONS]
        crowd = [handle.result(60) for handle in handles]
        assert runtime.idle
    assert [r.outputs["tokens"] for r in alone] == oracle.answers[:4]
    assert [r.outputs["tokens"] for r in crowd] == oracle.answers
    assert [r.usage["think"]["prompt_tokens"] for r in crowd] == [len(prompt) for prompt in oracle.prompts]
    cached = sum(r.usage["think"].get("cached_tokens", 0) for r in crowd)
    assert (cached > 100) == reuse
    units = max(r.units["think"] for r in alone)
    assert units > ANSWER + 8 if size == 7 else units == ANSWER


def test_what_transformers_saves_is_read(tmp_path: Path) -> None:
    """The other way round: a folder that it made, in its own layout of files."""
    write_toy(tmp_path / "toy", "qwen3_moe", seed=5)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "toy", dtype=torch.float32)
    model.save_pretrained(tmp_path / "saved", max_shard_size="200KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 1
    one, two = FolderWeights(tmp_path / "toy"), FolderWeights(tmp_path / "saved")
    assert one.config == two.config
    assert list(one) == list(two)
    assert all(torch.equal(one[name], two[name]) for name in one)
