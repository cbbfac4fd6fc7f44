"""Decode speed of SmolLM2-135M in float32, through the whole runtime, beside transformers on the same weights.

One request, and eight at once against transformers' eight in sequence. Prompts of 128 random tokens, 64 new tokens each,
greedy, no stop token. The peers take turns in one process, so that a slow spell of the machine meets both. Tokens of both are
compared. The floor is reading all weights once a step.

    python benchmarks/decode.py [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from typing import Any

import torch
from msgspec import Struct
from omni_runtime.cards.smollm2 import smollm2

from omni_runtime import ArDecode, ModelCard, Program, Runtime
from omni_runtime.weights.llama import LlamaWeights
from omni_runtime.weights.smollm2 import locate, open_file

PROMPT, NEW = 128, 64
WEIGHT_BYTES = 538e6  # 134.5 M parameters in float32
NOMINAL_READ = 36e9  # bytes a second of two threads, measured on the machine that the targets were set on


class Timing(Struct):
    """Seconds; `step` is the median time between two tokens of a request."""

    first: float
    step: float
    total: float
    tokens: list[list[int]]


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(100, 49_000) for _ in range(PROMPT)] for _ in range(count)]


def endless() -> tuple[ModelCard, Program]:
    """SmolLM2 without a stop token, on token ids."""
    base = smollm2()
    card = ModelCard(name="smollm2-endless", experts=base.experts, loops={"think": ArDecode(expert="thinker", context=8192)})
    program = Program("complete", card)
    program.output("tokens", program.loop("think", prompt=program.input("prompt")).tokens)
    return card, program


def ours(runtime: Runtime, program: Program, asked: list[list[int]]) -> Timing:
    start = time.perf_counter()
    handles = [runtime.submit(program, prompt=prompt, max_tokens=NEW, seed=0) for prompt in asked]
    stamps: list[float] = []
    first = 0.0
    for chunk in handles[0]:
        now = time.perf_counter()
        first = first or now - start
        stamps.append(now)
        assert chunk.tokens is not None
    results = [handle.result() for handle in handles]
    total = time.perf_counter() - start
    steps = [b - a for a, b in itertools.pairwise(stamps)]
    return Timing(first, statistics.median(steps), total, [r.outputs["tokens"] for r in results])


def theirs(model: Any, asked: list[list[int]]) -> Timing:
    from transformers import StoppingCriteria, StoppingCriteriaList

    firsts, steps, tokens = [], [], []
    start = time.perf_counter()
    for prompt in asked:
        stamps = [time.perf_counter()]

        class Clock(StoppingCriteria):  # type: ignore[misc]
            def __call__(self, ids: Any, scores: Any, _stamps: list[float] = stamps, **rest: Any) -> Any:
                _stamps.append(time.perf_counter())
                return torch.zeros(len(ids), dtype=torch.bool)

        ids = torch.tensor([prompt])
        settings = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 2}
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), stopping_criteria=StoppingCriteriaList([Clock()]), **settings
            )
        tokens.append(out[0, len(prompt) :].tolist())
        gaps = [b - a for a, b in itertools.pairwise(stamps)]
        firsts.append(gaps[0])
        steps += gaps[1:]
    return Timing(firsts[0], statistics.median(steps), time.perf_counter() - start, tokens)


def transformers_model() -> Any:
    """LlamaForCausalLM on the same dequantised weights, with its default attention (SDPA)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    weights = LlamaWeights(open_file(locate()))
    c = weights.config
    settings = LlamaConfig(
        vocab_size=c.vocab,
        hidden_size=c.width,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        intermediate_size=c.ffn,
        max_position_embeddings=c.positions,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        rms_norm_eps=c.eps,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(settings).eval()
    missing = model.load_state_dict(dict(weights), strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys, missing
    return model


def read_bandwidth() -> float:
    """Bytes a second of summing a tensor far larger than the cache; the best of ten."""
    big_N = torch.ones(1 << 28)
    best = 1e9
    for _ in range(10):
        start = time.perf_counter()
        big_N.sum()
        best = min(best, time.perf_counter() - start)
    return big_N.nbytes / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    read = read_bandwidth()
    model = transformers_model()
    card, program = endless()
    one, eight = prompts(1), prompts(8)
    found: dict[str, list[Timing]] = {"ours 1": [], "theirs 1": [], "ours 8": [], "theirs 8": []}
    with Runtime([card], threads=args.threads, prefix_cache=False) as runtime:  # or repeats would find their prompt cached
        ours(runtime, program, one)
        theirs(model, one)
        for _ in range(args.repeats):
            for _ in range(3):
                found["ours 1"].append(ours(runtime, program, one))
                found["theirs 1"].append(theirs(model, one))
            found["ours 8"].append(ours(runtime, program, eight))
            found["theirs 8"].append(theirs(model, eight))
    middle = {
        name: {key: statistics.median(getattr(t, key) for t in timings) for key in ("first", "step", "total")}
        for name, timings in found.items()
    }
    print(f"{'':<10} {'first token s':>14} {'step ms':>9} {'total s':>9} {'tokens/s':>9}")
    for name, row in middle.items():
        count = int(name[-1])
        print(
            f"{name:<10} {row['first']:>14.3f} {row['step'] * 1e3:>9.1f} {row['total']:>9.2f} {count * NEW / row['total']:>9.1f}"
        )
    same = {
        name: sum(
            a == b
            for x, y in zip(found[f"ours {name}"][0].tokens, found[f"theirs {name}"][0].tokens, strict=True)
            for a, b in zip(x, y, strict=True)
        )
        for name in ("1", "8")
    }
    b1_steps = middle["theirs 1"]["step"] / middle["ours 1"]["step"]
    b1 = middle["theirs 1"]["total"] / middle["ours 1"]["total"]
    c8 = middle["theirs 8"]["total"] / middle["ours 8"]["total"]
    floor = WEIGHT_BYTES / NOMINAL_READ / middle["ours 1"]["step"]
    measured = WEIGHT_BYTES / read / middle["ours 1"]["step"]
    print(f"one request: {b1:.2f} x transformers' tokens/s with the prompt, {b1_steps:.2f} x in the steps after it")
    print(f"eight at once against eight in sequence: {c8:.2f} x")
    print(f"floor (all weights once a step): {floor:.2f} of it at 36 GB/s, {measured:.2f} at the {read / 1e9:.1f} GB/s read here")
    print(f"equal tokens: {same['1']} of {NEW}, {same['8']} of {8 * NEW}")
    if args.json:
        numbers = {
            "vs_transformers_b1": round(b1, 3),
            "vs_transformers_b1_steps": round(b1_steps, 3),
            "vs_transformers_c8": round(c8, 3),
            "fraction_of_floor_b1": round(floor, 3),
            "fraction_of_measured_floor_b1": round(measured, 3),
            "step_ms_b1": round(middle["ours 1"]["step"] * 1e3, 2),
            "step_ms_b8": round(middle["ours 8"]["step"] * 1e3, 2),
            "equal_tokens_b1": same["1"],
            "equal_tokens_c8": same["8"],
            "prompt_tokens": PROMPT,
            "new_tokens": NEW,
            "prompt_seed": 0,
            "threads": args.threads,
            "dtype": "float32",
            "repeats": args.repeats,
        }
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
