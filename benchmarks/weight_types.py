"""What weights of fewer bits cost and save on a CPU: SmolLM2-135M with `linear="native"`, "bfloat16" and "int8".

Quality is the mean negative log-likelihood a token of a fixed text: the first 1,500 tokens of this repository's LICENSE. Speed is
the median decode step of one row and of eight behind prompts of 128 tokens; the types take turns, so that a slow spell meets all.

    python benchmarks/weight_types.py [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import torch

from omni_runtime.experts.decoder import DecoderLM, Span
from omni_runtime.weights.llama import LlamaWeights
from omni_runtime.weights.smollm2 import locate, open_file, open_tokenizer

TYPES = ("native", "bfloat16", "int8", "plain")
TOKENS, CHUNK, PROMPT = 1500, 100, 128


def likelihood(model: DecoderLM, tokens: list[int]) -> float:
    """Nats a token. The head sees all positions of a chunk: logits of a span that draws are those of its last one only."""
    cache, total = model.cache(), 0.0
    for at in range(0, len(tokens) - 1, CHUNK):
        part = tokens[at : at + CHUNK]
        hidden_TD = model.run([Span(cache, at, part)]).hidden_TD
        assert model._head is not None
        want = torch.tensor(tokens[at + 1 : at + 1 + len(part)])
        logits_TV = model._head(hidden_TD[: len(want)])
        total += float(torch.nn.functional.cross_entropy(logits_TV.double(), want, reduction="sum"))
    return total / (len(tokens) - 1)


def step(model: DecoderLM, rows: int, steps: int) -> float:
    """Seconds of the median of some steps."""
    draw = random.Random(0)
    caches = [model.cache() for _ in range(rows)]
    for cache in caches:
        model.run([Span(cache, 0, [draw.randrange(100, 49_000) for _ in range(PROMPT)])])
    took = []
    for at in range(PROMPT, PROMPT + steps):
        start = time.perf_counter()
        model.run([Span(cache, at, [draw.randrange(100, 49_000)], draw=True) for cache in caches])
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    weights = LlamaWeights(open_file(locate()))
    tokens = open_tokenizer(locate()).encode(Path(__file__).parents[1].joinpath("LICENSE").read_text())[:TOKENS]
    models = {kind: DecoderLM(weights.config, weights, layout=kind) for kind in TYPES}
    with torch.inference_mode():
        nats = {kind: likelihood(model, tokens) for kind, model in models.items()}
        rounds = [{(kind, n): step(model, n, 12) for n in (1, 8) for kind, model in models.items()} for _ in range(args.repeats)]
    steps = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
    print(f"{'weights':<10} {'nats a token':>13} {'step of 1':>10} {'of 8':>8}")
    for kind in TYPES:
        print(f"{kind:<10} {nats[kind]:>13.4f} {1e3 * steps[kind, 1]:>7.1f} ms {1e3 * steps[kind, 8]:>5.1f} ms")
    if args.json:
        found = {f"nats_{kind}": round(value, 4) for kind, value in nats.items()}
        found |= {f"step{n}_{kind}_vs_plain": round(steps[kind, n] / steps["plain", n], 3) for kind, n in steps}
        print(json.dumps(found | {"threads": args.threads, "tokens": len(tokens)}))


if __name__ == "__main__":
    main()
