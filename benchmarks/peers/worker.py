"""One engine in a process of its own, as `peers.py` starts it: loads SmolLM2-135M, then serves what each line of JSON asks for.

Greedy, float32 (weights, activations, KV), no stop token, 2 threads. `most` is how many requests may run at a time: as a rule
the client holds back the others, and gives the next one when one has ended.

    ROOT/openvino/bin/python worker.py ROOT openvino
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import engines
import ours
from peer import Peer

PEERS: dict[str, type[Peer]] = {
    "ours": ours.Ours,
    "ours-all": ours.OursAll,
    "ours-free": ours.OursFree,
    "transformers": engines.Transformers,
    "vllm": engines.Vllm,
    "openvino": engines.OpenVino,
    "openvino-half": engines.OpenVinoHalf,
    "ort": engines.OnnxRuntime,
    "ort-engine": engines.OnnxRuntimeEngine,
    "llamacpp": engines.LlamaCpp,
}


def main() -> None:
    root, name = Path(sys.argv[1]), sys.argv[2]
    answers = os.fdopen(os.dup(1), "w")  # engines print what they like to the other one
    os.dup2(2, 1)
    peer = PEERS[name](root)
    print(json.dumps({"how": peer.how, "together": peer.together, "ragged": peer.ragged}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "margin" in asked:
            print(json.dumps(peer.margin(*asked["margin"])), file=answers, flush=True)  # type: ignore[attr-defined]
            continue
        cpu, start = time.process_time(), time.perf_counter()
        served = peer.serve(asked["prompts"], asked["new"], asked["most"])
        seconds = time.perf_counter() - start
        found = {
            "seconds": seconds,
            "cpu": time.process_time() - cpu,
            "first": [first - start for first, _, _ in served],
            "last": [last - start for _, last, _ in served],
            "tokens": [list(tokens) for _, _, tokens in served],
        }
        print(json.dumps(found), file=answers, flush=True)
    os._exit(0)  # some engines crash when Python takes them down


if __name__ == "__main__":
    main()
