"""Eight listeners whose workers are killed every few seconds: what they get is what they get undisturbed, or this program fails.

    python benchmarks/kills.py [--seconds 120] [--every 5] [--json]

SmolLM2 and the hibari voice run in a worker process each. Eight callers ask for spoken answers, one after the other; meanwhile
SIGKILL hits one of the workers, drawn, at a moment drawn from an exponential distribution. Every answer is compared with the same
request on an undisturbed runtime: text exactly, sound to 1e-4, every chunk once and in order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np

from omni_runtime.errors import OmniError
from omni_runtime.executors.lineup import lineup
from omni_runtime.executors.process import ProcessExecutor
from omni_runtime.runtime import Runtime

LISTENERS = 8
QUESTIONS = (
    "Name three colours.",
    "What is two plus two?",
    "Say hello in French.",
    "What do bees make?",
    "Count from one to five.",
    "Who wrote Hamlet?",
    "What is the capital of France?",
    "Write a sentence about the sea.",
)


def request(at: int) -> dict[str, Any]:
    """One of eight requests; all are sampled."""
    return {"messages": QUESTIONS[at], "temperature": 0.8, "top_p": 0.9, "seed": at, "max_tokens": 12 + 3 * at}


def rss() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def mine() -> set[int]:
    """Processes whose parent is this one."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


class Listener(threading.Thread):
    """Asks, listens, compares, and asks again."""

    def __init__(self, runtime: Runtime, program: Any, number: int, alone: list[Any], until: float) -> None:
        super().__init__()
        self.runtime, self.program, self.number, self.alone, self.until = runtime, program, number, alone, until
        self.done = 0
        self.rebuilt = 0
        self.wrong: list[str] = []
        self.seconds: list[float] = []

    def run(self) -> None:
        at = self.number
        while time.monotonic() < self.until:
            which = at % len(QUESTIONS)
            at += 3
            began = time.monotonic()
            try:
                self._one(which)
            except (OmniError, AssertionError) as error:
                self.wrong.append(f"{QUESTIONS[which]!r}: {error!r}"[:300])
            self.seconds.append(time.monotonic() - began)

    def _one(self, which: int) -> None:
        handle = self.runtime.submit(self.program, **request(which))
        got = 0
        sound = []
        for chunk in handle:
            if chunk.samples is not None:
                assert chunk.start == got, f"sound goes on at {chunk.start}, not at {got}"
                got += len(chunk.samples)
                sound.append(chunk.samples)
        result, alone = handle.result(), self.alone[which]
        assert result.text == alone.text, f"{result.text!r} is not {alone.text!r}"
        assert got == len(alone.audio), f"{got} samples, not {len(alone.audio)}"
        far = float(np.abs(np.concatenate(sound) - alone.audio).max())
        assert far < 1e-4, f"sound differs by {far}"
        self.done += 1
        self.rebuilt += result.rebuilt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills, on average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    from omni_runtime.programs.speak import speak

    program = speak()
    cards = list(program.cards.values())
    with Runtime(cards, threads=1) as runtime:
        alone = [runtime.submit(program, **request(at)).result() for at in range(len(QUESTIONS))]
    experts = [f"{c.name}/{n}" for c in cards for n, spec in c.experts.items() if spec.place == "device"]
    thinkers = [name for name in experts if name.startswith("smollm2")]
    workers = {"think": thinkers, "voice": [name for name in experts if name not in thinkers]}
    executors = lineup(cards, "process", workers=workers, threads=1)
    targets = [executor for executor in executors if isinstance(executor, ProcessExecutor)]
    dice = random.Random(args.seed)
    kills = 0
    with Runtime(cards, executors=list(executors)) as runtime:
        until = time.monotonic() + args.seconds
        listeners = [Listener(runtime, program, i, alone, until) for i in range(LISTENERS)]
        for listener in listeners:
            listener.start()
        memory = []
        while time.monotonic() < until:
            time.sleep(dice.expovariate(1.0 / args.every))
            pid = dice.choice(targets).pid
            if pid is not None and time.monotonic() < until:
                os.kill(pid, signal.SIGKILL)
                kills += 1
            memory.append((time.monotonic(), rss()))
        for listener in listeners:
            listener.join()
        deadline = time.monotonic() + 10
        while not runtime.idle and time.monotonic() < deadline:
            time.sleep(0.05)
        idle = runtime.idle
    left = mine()
    half = len(memory) // 2
    told = {
        "seconds": args.seconds,
        "kills": kills,
        "answers": sum(one.done for one in listeners),
        "wrong": [text for one in listeners for text in one.wrong],
        "begun_again": sum(one.rebuilt for one in listeners),
        "median_s": round(statistics.median(s for one in listeners for s in one.seconds), 2),
        "idle": idle,
        "processes_left": len(left),
        "rss_first_half_mib": round(statistics.median(m for _, m in memory[:half])) if half else 0,
        "rss_second_half_mib": round(statistics.median(m for _, m in memory[half:])) if half else 0,
    }
    print(json.dumps(told) if args.json else "\n".join(f"{name:20} {value}" for name, value in told.items()))
    return 1 if told["wrong"] or not idle or left else 0


if __name__ == "__main__":
    sys.exit(main())
