"""Decode speed of the text expert alone, without a scheduler: what the runtime above it can at best deliver.

    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive python benchmarks/_decode_expert.py --reps 3

Prompts of 128 random tokens, greedy, no stop token, SmolLM2-135M in float32. Peers run in the same process and take turns,
because a machine may change by 20 % within an hour. Prints one JSON line per peer and number of requests; medians.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from omni_runtime.executors.memory import Slots
from omni_runtime.experts import text_lm
from omni_runtime.experts.text_lm import TextLM
from omni_runtime.weights import smollm2
from omni_runtime.weights.llama import LlamaWeights
from omni_runtime.work import ArStep, Draw, Row

Tokens = list[list[int]]


@dataclass(frozen=True)
class Timing:
    first: float  # until all requests have their first token
    total: float  # until all requests have all tokens
    steps: float  # a decode step in the middle: the median
    tokens: Tokens

    def report(self, new: int) -> dict[str, float]:
        count = len(self.tokens)
        figures = {"prefill_s": self.first, "step_ms": self.steps * 1e3, "total_s": self.total}
        figures["tokens_per_s"] = count * new / self.total
        return {name: round(value, 4) for name, value in figures.items()}


def prompts(count: int, length: int, vocab: int = 49152) -> Tokens:
    rng = random.Random(0)
    return [[rng.randrange(100, vocab) for _ in range(length)] for _ in range(count)]


def together(expert: TextLM, asked: Sequence[Sequence[int]], new: int, temperature: float = 0.0, top_p: float = 1.0) -> Timing:
    """All requests as one batch through op `forward`: one prefill, then new-1 decode steps."""
    slots, forward = Slots("bench#1"), expert.ops["forward"]
    tokens: Tokens = [[] for _ in asked]
    steps = []
    start = last = time.perf_counter()
    for index in range(new):
        rows = []
        for run, prompt in enumerate(asked):
            at, part = (len(prompt) + index - 1, tokens[run][-1:]) if index else (0, prompt)
            how = Draw(run, 0, temperature, top_p)
            rows.append(Row(run, "think", len(part), (), ArStep(at, tuple(part), index, how)))
        for run, result in enumerate(forward(rows, slots)):
            tokens[run].append(result.token)
        now = time.perf_counter()
        steps.append(now - last)
        last = now
    return Timing(steps[0], last - start, statistics.median(steps[1:]) if new > 1 else 0.0, tokens)


def in_sequence(model: Any, asked: Sequence[Sequence[int]], new: int) -> Timing:
    """transformers' generate, one request after the other."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    tokens, seen = [], []
    start = time.perf_counter()
    for prompt in asked:
        stamps = [time.perf_counter()]

        class Clock(StoppingCriteria):  # type: ignore[misc]
            def __call__(self, ids: Any, scores: Any, _stamps: list[float] = stamps, **rest: Any) -> Any:
                _stamps.append(time.perf_counter())
                return torch.zeros(len(ids), dtype=torch.bool)

        ids = torch.tensor([list(prompt)])
        settings = {"max_new_tokens": new, "do_sample": False, "eos_token_id": None, "pad_token_id": 2}
        settings |= {"attention_mask": torch.ones_like(ids), "stopping_criteria": StoppingCriteriaList([Clock()])}
        with torch.inference_mode():
            out = model.generate(ids, **settings)
        tokens.append(out[0, len(prompt) :].tolist())
        seen.append([after - before for before, after in pairwise(stamps)])
    total = time.perf_counter() - start
    return Timing(statistics.median(s[0] for s in seen), total, statistics.median(x for s in seen for x in s[1:]), tokens)


def transformers_model() -> Any:
    """LlamaForCausalLM on the same dequantised weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    weights = LlamaWeights(smollm2.open_file(smollm2.locate()))
    config = weights.config
    settings = LlamaConfig(
        vocab_size=config.vocab,
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        intermediate_size=config.ffn,
        max_position_embeddings=config.positions,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        rms_norm_eps=config.eps,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(settings).eval()
    model.load_state_dict(dict(weights), strict=False)
    return model


def compare(
    peers: dict[str, Callable[[Tokens], Timing]], counts: Sequence[int], length: int, new: int, reps: int
) -> list[dict[str, Any]]:
    """Every peer with every number of requests, `reps` times, peers taking turns. The tokens of all peers are compared."""
    lines = []
    for count in counts:
        asked, found = prompts(count, length), {name: [] for name in peers}  # type: dict[str, list[Timing]]
        for run in peers.values():
            run([prompt[:16] for prompt in asked[:2]])  # warm up
        for _ in range(reps):
            for name, run in peers.items():
                found[name].append(run(asked))
        first = next(iter(found.values()))[0].tokens
        for name, timings in found.items():
            figures = [timing.report(new) for timing in timings]
            line: dict[str, Any] = {key: round(statistics.median(f[key] for f in figures), 4) for key in figures[0]}
            agree = sum(a == b for x, y in zip(first, timings[0].tokens, strict=True) for a, b in zip(x, y, strict=True))
            line |= {"best_total_s": min(f["total_s"] for f in figures), "tokens_equal": f"{agree}/{count * new}"}
            lines.append({"peer": name, "requests": count, "threads": torch.get_num_threads(), "load": os.getloadavg()[0]} | line)
            print(json.dumps(lines[-1]), flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="1,4,8,16")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--peers", default="auto,plain,transformers")
    asked = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    peers: dict[str, Callable[[Tokens], Timing]] = {}
    for name in asked.peers.split(","):
        if name == "transformers":
            model = transformers_model()
            peers[name] = lambda prompts, model=model: in_sequence(model, prompts, asked.new)  # type: ignore[misc]
        else:
            layout, _, kind = name.partition("+")  # auto+sample: temperature 0.8, top_p 0.95
            expert = text_lm.build({"linear": layout}, "cpu")
            how = (0.8, 0.95) if kind == "sample" else (1.0, 1.0) if kind == "full" else (0.0, 1.0)
            peers[name] = lambda prompts, e=expert, h=how: together(e, prompts, asked.new, *h)  # type: ignore[misc]
    compare(peers, [int(count) for count in asked.counts.split(",")], asked.length, asked.new, asked.reps)


if __name__ == "__main__":
    main()
