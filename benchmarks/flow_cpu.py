"""One velocity of Qwen2.5-Omni's flow: torch's layers with our products, against all of it in C (`kernels/cpu_flow.c`).

A random flow of middle size, 6 layers of 256, blocks of 24 frames, both branches of guidance. The floor is what its products
alone would take at the speed of one of them, [144, 256] x [256, 768] with everything in cache, on as many threads. The time of
an ODE was seen before, as it was in every chunk but the first: what it says to the layers is remembered by the C path alone.

    python benchmarks/flow_cpu.py [--seconds 1]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

SIZES: dict[str, Any] = {
    "token2wav_config": {
        "dit_config": {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 64, "ff_mult": 2}
        | {"block_size": 24, "look_ahead_layers": [3], "look_backward_layers": [0, 5], "mel_dim": 80, "emb_dim": 128},
        "bigvgan_config": {"mel_dim": 80},
    }
}


def fastest(runs: list[Callable[[], object]], seconds: float) -> list[float]:
    """Of each, in turns, so that what the machine does besides meets them alike."""
    best = [float("inf")] * len(runs)
    for run in runs:
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    args = parser.parse_args()
    from omni_runtime.kernels import cpu

    from omni_runtime.experts.flow_window import Window
    from omni_runtime.experts.qwen25_flow import Flow
    from omni_runtime.weights.qwen2_5_omni import Qwen25Folder
    from omni_runtime.weights.qwen2_5_omni_parts import FLOW
    from omni_runtime.weights.toy_qwen2_5_omni import write_toy_qwen25

    with tempfile.TemporaryDirectory() as kept:
        folder = Qwen25Folder(write_toy_qwen25(Path(kept), SIZES, seed=1))
        c, weights = folder.config.flow, folder.named(FLOW)
        assert c is not None
        flow, torchs = (Flow(c, weights, layout="native") for _ in range(2))
        torchs._native = None
    voice, inner, h = torch.randn(2, c.width), c.heads * c.head_dim, torch.randn(144, c.width)
    product = cpu.linear(cpu.pack(torch.randn(3 * inner, c.width)))
    work = 2 * (c.layers * (4 * inner + 2 * c.ffn) + 1.5 * c.mels) * c.width  # of a frame; both branches share the first product
    print("threads blocks rows   torch ms     C ms    ratio  GFLOP/s  of the floor")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for rows in (1, 8):
            for blocks in (1, 3, 9):
                x, codes = torch.randn(c.block * blocks, c.mels), list(range(c.block * blocks // c.repeats))
                given = [Window(x, 0.3, [code % 64 for code in codes], voice, keep=blocks - 1) for _ in range(rows)]
                frames = 2 * rows * c.block * blocks
                runs = [lambda w=given: torchs.velocity(w), lambda w=given: flow.velocity(w)]
                (old, new), (alone,) = fastest(runs, args.seconds), fastest([lambda: product(h)], args.seconds / 4)
                floor = frames * work / (2 * len(h) * c.width * 3 * inner / alone)
                row = f"{old * 1e3:10.2f} {new * 1e3:8.2f} {old / new:8.2f} {frames * work / new / 1e9:8.1f} {floor / new:8.2f}"
                print(f"{threads:7} {blocks:6} {rows:4} {row}", flush=True)


if __name__ == "__main__":
    main()
