"""What batch-invariant mode costs: a crowd of eight with it and without it, for each kind of loop, in turns.

Random models of middle size (those of `cascade.py`; encoders 6 x 256, a Stable Diffusion 3 of 4 x 256 with 93 tokens of text),
and hibari. Ratios are medians of the turns, with the mode over without: of seconds, and of processor seconds, which a busy
neighbour moves less. "alike" says in how many turns all eight gave the bits of the first one: in the mode that must be all, for
crowds never meet in the same way twice.

    python benchmarks/invariant.py [--threads 1 2] [--turns 3] [--only NAME ...] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from cascade_families import QWEN3, QWEN25

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "experts"))

ROOM = {"num_hidden_layers": 6, "encoder_layers": 6, "d_model": 256, "encoder_ffn_dim": 1024, "output_dim": 512}
SIGHT = {"depth": 6, "hidden_size": 256, "intermediate_size": 1024, "out_hidden_size": 512}
PAINTER = {"num_layers": 4, "attention_head_dim": 64, "num_attention_heads": 4, "caption_projection_dim": 256}
TEXT = "The sea is wide today, and the wind is cold; we sail at dawn. Bring bread, please, and number {} of the maps."


class Crowd(NamedTuple):
    """Eight requests to a program."""

    card: Any
    program: Any
    asked: Sequence[Mapping[str, Any]]


def questions(**more: Any) -> list[dict[str, Any]]:
    return [{"messages": f"Tell me about number {i}, " + "slowly. " * i, "seed": i, **more} for i in range(8)]


def looked_at(dice: np.random.Generator) -> list[dict[str, Any]]:
    """A picture and a sound each, of other sizes."""
    found = []
    for i in range(8):
        picture = dice.integers(0, 256, (64 + 16 * i, 96, 3)).astype(np.uint8)
        sound = (0.2 * dice.standard_normal(16_000 + 4_000 * i)).astype(np.float32)
        parts = [{"type": "image", "image": picture}, {"type": "audio", "audio": sound, "rate": 16_000}]
        content = [*parts, {"type": "text", "text": "And?"}]
        found.append({"messages": [{"role": "user", "content": content}], "seed": i, "think": {"max_tokens": 1}})
    return found


def crowds(kept: Path) -> dict[str, Crowd]:
    """By what is measured."""
    import tiny_sd3
    from omni_runtime.cards.hibari import hibari
    from omni_runtime.cards.qwen2_5_omni import qwen2_5_omni
    from omni_runtime.cards.qwen3_omni import qwen3_omni
    from omni_runtime.cards.sd3 import sd3
    from omni_runtime.programs.omni import omni
    from omni_runtime.programs.paint import paint
    from omni_runtime.programs.say import say

    from omni_runtime.weights.toy_qwen2_5_omni import write_toy_qwen25
    from omni_runtime.weights.toy_qwen3_omni import write_toy_omni

    changes: Any = {**QWEN3, "thinker_config": {**QWEN3["thinker_config"], "audio_config": ROOM, "vision_config": SIGHT}}
    codecs = qwen3_omni(str(write_toy_omni(kept / "qwen3", changes)))
    flow = qwen2_5_omni(str(write_toy_qwen25(kept / "qwen25", QWEN25)))
    painter = sd3(str(tiny_sd3.write(kept / "sd3", **PAINTER)), max_sequence_length=16)
    never: dict[str, Any] = {"stop_tokens": []}
    think = {"max_tokens": 12, **never}
    texts = [{"text": TEXT.format(i), "seed": i} for i in range(8)]
    small, large = (
        [{"prompt": f"{i} cats", "seed": i, "steps": steps, "width": side, "height": side, "outputs": "image"} for i in range(8)]
        for side, steps in ((32, 4), (64, 2))
    )
    seen = [one | {"outputs": "text"} for one in looked_at(np.random.default_rng(1))]
    return {
        "tokens": Crowd(codecs, omni(codecs), questions(think=think | {"max_tokens": 32}, outputs=["text", "tokens"])),
        "talker and codec vocoder": Crowd(codecs, omni(codecs), questions(think=think, talk={"max_frames": 12}, outputs="audio")),
        "talker, flow and mel vocoder": Crowd(flow, omni(flow), questions(think=think, talk={"max_frames": 16}, outputs="audio")),
        "pictures and sounds read": Crowd(codecs, omni(codecs), seen),
        "pictures of 64 tokens": Crowd(painter, paint(painter), small),
        "pictures of 256 tokens": Crowd(painter, paint(painter), large),
        "speech of hibari": Crowd(hibari(), say(), texts),
    }


def bits(results: Sequence[Any]) -> list[Any]:
    def plain(value: Any) -> Any:
        return (
            value.tobytes() if isinstance(value, np.ndarray) else [plain(v) for v in value] if isinstance(value, list) else value
        )

    return [{name: plain(value) for name, value in result.outputs.items()} for result in results]


def measure(crowd: Crowd, threads: int, turns: int) -> dict[str, float]:
    from omni_runtime import Runtime

    runtimes = [Runtime([crowd.card], threads=threads, prefix_cache=False, batch_invariant=mode) for mode in (False, True)]
    seconds: list[list[float]] = [[], []]
    busy: list[list[float]] = [[], []]
    alike = [0, 0]
    first: list[Any] = [None, None]
    for turn in range(turns + 1):
        for at, runtime in list(enumerate(runtimes))[:: 1 if turn % 2 else -1]:
            start, worked = time.perf_counter(), time.process_time()
            handles = [runtime.submit(crowd.program, **asked) for asked in crowd.asked]
            results = [handle.result() for handle in handles]
            taken, worked = time.perf_counter() - start, time.process_time() - worked
            if not turn:  # warms up
                first[at] = bits(results)
                continue
            seconds[at].append(taken)
            busy[at].append(worked)
            alike[at] += bits(results) == first[at]
    for runtime in runtimes:
        runtime.close()
    plain, mode, plain_cpu, mode_cpu = map(statistics.median, (*seconds, *busy))
    assert alike[1] == turns, "batch-invariant mode gave other bits"
    return {"plain_s": plain, "mode_s": mode, "ratio": mode / plain} | {
        "cpu_ratio": mode_cpu / plain_cpu,
        "alike": alike[0],
        "alike_mode": alike[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="beginnings of names")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    args = parser.parse_args()
    if min(args.threads) < 1 or args.turns < 1:
        parser.error(f"--threads {args.threads}, --turns {args.turns}: at least 1 of each")
    found: dict[str, Any] = {}
    print("| threads | a crowd of eight | without s | with s | ratio | of processor s | turns alike, without | with |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as kept, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = crowds(Path(kept))
        if args.only and not any(name.startswith(tuple(args.only)) for name in every):
            parser.error(f"--only {' '.join(args.only)}: nothing begins so; there are {', '.join(every)}")
        for threads in args.threads:
            for name, crowd in every.items():
                if args.only and not name.startswith(tuple(args.only)):
                    continue
                row = measure(crowd, threads, args.turns)
                found |= {f"{name}, {threads} threads, {what}": round(value, 4) for what, value in row.items()}
                cells = " | ".join(f"{row[what]:.2f}" for what in ("plain_s", "mode_s", "ratio", "cpu_ratio"))
                alike = " | ".join(f"{row[what]} of {args.turns}" for what in ("alike", "alike_mode"))
                print(f"| {threads} | {name} | {cells} | {alike} |", flush=True)
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
