"""How far streamed sound of Qwen2.5-Omni's token2wav is from one call over all codes, for several windows of its chunks.

A random flow of the published depth and blocks (22 layers, of which 0 and 20 look back and 10 looks ahead, blocks of 24 frames),
128 wide, and a BigVGAN of the published rates. With random weights attention is nearly even and gates are nearly closed, so
blocks hardly matter to each other; `coupled` opens the gates of attention and sharpens it until they do. Nobody measured trained
weights.

    python benchmarks/token2wav_stream.py [--blocks 10]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

SIZES: dict[str, Any] = {
    "token2wav_config": {
        "dit_config": {"hidden_size": 128, "num_hidden_layers": 22, "num_attention_heads": 2, "head_dim": 64, "emb_dim": 128}
        | {"block_size": 24, "look_ahead_layers": [10], "look_backward_layers": [0, 20], "mel_dim": 80, "enc_dim": 128},
        "bigvgan_config": {"mel_dim": 80, "upsample_initial_channel": 128},
    }
}
GROWING = (2, 3, 4, 6, 8)
CHOICES = [(True, 0, 0, (2,)), (True, 0, 1, (1,)), (True, 0, 1, (2,)), (True, 0, 1, GROWING), (True, 0, 2, GROWING)]
CHOICES += [(False, back, ahead, GROWING) for back, ahead in ((0, 1), (1, 1), (2, 1), (3, 1), (4, 2))]


def coupled(weights: dict[str, torch.Tensor], queries: float, values: float, gates: float) -> dict[str, torch.Tensor]:
    """Attention that is sharper and counts for more."""
    found = {name: weight.clone() for name, weight in weights.items()}
    for name, weight in found.items():
        if name.endswith("attn_norm.linear.bias"):
            width = len(weight) // 6
            weight[2 * width : 3 * width] += gates
        elif name.endswith(("to_q.weight", "to_k.weight")):
            weight *= queries
        elif name.endswith(("to_v.weight", "to_out.0.weight")):
            weight *= values
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10, help="of 24 mel frames, 0.24 s each")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "experts"))
    from flow_driver import integrate, log_spectral_distance, noise, streamed

    from omni_runtime.experts.bigvgan import BigVGAN
    from omni_runtime.experts.qwen25_flow import Flow
    from omni_runtime.loops.flow_chunks import FlowChunks
    from omni_runtime.weights.qwen2_5_omni import Qwen25Folder
    from omni_runtime.weights.qwen2_5_omni_parts import FLOW, WAVES
    from omni_runtime.weights.toy_qwen2_5_omni import write_toy_qwen25

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as kept:
        folder = Qwen25Folder(write_toy_qwen25(Path(kept), SIZES, seed=1))
        c, speaker = folder.config, folder.speakers()["Chelsie"]
        assert c.flow is not None and c.waves is not None
        bigvgan = BigVGAN(c.waves, folder.named(WAVES))
        plain = dict(folder.named(FLOW))
        codes = torch.randint(0, 64, (12 * args.blocks,), generator=torch.Generator().manual_seed(2)).tolist()
        for kind, weights in (("plain", plain), ("coupled", coupled(plain, 2.5, 2.0, 1.0))):
            flow = Flow(c.flow, weights)
            voice = flow.voice(speaker.condition_K, speaker.mel_TM)
            start = time.perf_counter()
            whole, _ = integrate(flow, noise(flow, 7, 0, 24 * args.blocks), codes, voice)
            once = time.perf_counter() - start
            print(
                f"{kind}: one call {once:.1f} s; off in mel frames (rms, most), sound in dB, LSD in dB; work and time of one call"
            )
            for carry, back, ahead, sizes in CHOICES:
                plan = FlowChunks(24, ahead, back, sizes)
                start = time.perf_counter()
                mel = streamed(flow, plan, codes, voice, 7, carry=carry)
                spent = (time.perf_counter() - start) / once
                one, other = bigvgan.decode(torch.stack([whole, mel]))
                decibel = float(10 * ((one - other).square().mean() / one.var()).log10())
                off, most = ((mel - whole) / whole.std()).square().mean().sqrt(), (mel - whole).abs().max() / whole.std()
                share = sum(chunk.high - chunk.low for chunk in plan.chunks(24 * args.blocks)) / (24 * args.blocks)
                row = f"{off:8.1e} {most:8.1e} {decibel:7.1f} {log_spectral_distance(one, other):6.3f} {share:6.2f} {spent:5.2f}"
                print(f"  {'carried' if carry else f'back {back} '} ahead {ahead} sizes {sizes!s:16} {row}", flush=True)
            assert all(a.stop == b.start for a, b in pairwise(FlowChunks(24).chunks(24 * args.blocks)))


if __name__ == "__main__":
    main()
