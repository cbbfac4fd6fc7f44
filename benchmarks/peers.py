"""Tokens a second of SmolLM2-135M beside other engines, all with the same float32 weights, greedy, 2 threads.

One, four and sixteen requests together (prompts of 128 tokens, 64 new ones), and sixteen ragged ones (prompts of 16 to 192,
answers of 8 to 96), of which at most eight run at a time. Time counts from the first submit to the last token, with the prompts.
Each engine is a process of its own, loaded and warm before; they take turns, case by case, in another order each round, and who
has no turn is stopped. Answers are compared with transformers' of one request at a time. `peers/setup.sh ROOT` installs what is
compared with and writes the weights.

    benchmarks/peers/setup.sh ROOT && python benchmarks/peers.py --root ROOT [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

HERE = Path(__file__).resolve().parent
HOMES = {"openvino-half": "openvino", "ort-engine": "ort"}  # those that share another's environment
INSTALLED = ("openvino", "openvino-half", "ort", "ort-engine", "vllm", "llamacpp")
NAMES = ("ours", "ours-all", "ours-free", "transformers", *INSTALLED)
PROMPT, NEW, MOST = 128, 64, 8
TICK = os.sysconf("SC_CLK_TCK")


class Case(Struct, frozen=True):
    """What is asked of everybody."""

    name: str
    prompts: list[list[int]]
    new: list[int]
    most: int  # at a time


class Turn(Struct):
    """What came of a case."""

    rate: float  # tokens a second
    first: float  # seconds to the first token, the median request
    last: float  # to the last one, the mean request
    others: float  # cores that other processes used
    tokens: list[list[int]]


def cases() -> list[Case]:
    draw, ragged = random.Random(0), random.Random(1)
    pool = [[draw.randrange(100, 49_000) for _ in range(PROMPT)] for _ in range(16)]
    mixed = [[ragged.randrange(100, 49_000) for _ in range(ragged.randrange(16, 193))] for _ in range(16)]
    lengths = [ragged.randrange(8, 97) for _ in mixed]
    together = [Case(str(n), pool[:n], [NEW] * n, n) for n in (1, 4, 16)]
    return [*together, Case("ragged", mixed, lengths, MOST)]


def busy() -> float:
    """Core seconds that the machine has worked."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK


class Worker:
    """A process of `peers/worker.py`, stopped while it has no turn."""

    def __init__(self, root: Path, name: str, threads: int) -> None:
        home = HOMES.get(name, name)
        python = root / home / "bin" / "python" if home in INSTALLED else Path(sys.executable)
        if not python.exists():
            raise RuntimeError(f"not installed: no {python}")
        path = str(HERE.parent) if home not in INSTALLED else ""
        env = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        env |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
        openmp = root / "vllm/lib/libiomp5.so"
        if name == "vllm" and openmp.exists():
            env["LD_PRELOAD"] = str(openmp)
        self.noise = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [str(python), str(HERE / "peers" / "worker.py"), str(root), name]
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.noise, text=True
        )
        self.how = self._read()["how"]
        self._signal(signal.SIGSTOP)

    def ask(self, **what: Any) -> Any:
        self._signal(signal.SIGCONT)
        assert self.process.stdin is not None
        print(json.dumps(what), file=self.process.stdin, flush=True)
        answer = self._read()
        self._signal(signal.SIGSTOP)
        return answer

    def turn(self, case: Case, new: list[int] | None = None) -> Turn:
        new = new or case.new
        before = busy()
        found = self.ask(prompts=case.prompts, new=new, most=case.most)
        assert [len(tokens) for tokens in found["tokens"]] == new, [len(tokens) for tokens in found["tokens"]]
        others = max(0.0, busy() - before - found["cpu"]) / found["seconds"]
        rate = sum(new) / found["seconds"]
        return Turn(rate, statistics.median(found["first"]), statistics.mean(found["last"]), others, found["tokens"])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _signal(self, which: int) -> None:
        self.process.send_signal(which)

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.noise.seek(0)
        said = [text.strip() for text in self.noise.read().splitlines() if text.strip()] or ["nothing"]
        raise RuntimeError(f"ended with {self.process.returncode}: {said[-1][:200]}")


def reference(root: Path, worker: Worker, asked: list[Case]) -> dict[str, list[list[int]]]:
    """Transformers' answers, one request at a time; kept beside the weights."""
    path = root / "reference.json"
    key = json.dumps([[case.prompts, case.new] for case in asked])
    if path.exists() and (known := json.loads(path.read_text()))["key"] == key:
        return dict(known["answers"])
    answers = {case.name: worker.ask(prompts=case.prompts, new=case.new, most=1)["tokens"] for case in asked}
    path.write_text(json.dumps({"key": key, "answers": answers}))
    return answers


def differences(
    worker: Worker, asked: list[Case], right: dict[str, list[list[int]]], found: dict[str, list[list[int]]]
) -> list[float]:
    """For each answer that differs: by how much transformers' logit of its own token passes the other's, where they part."""
    gaps = []
    for case in asked:
        for prompt, mine, theirs in zip(case.prompts, right[case.name], found[case.name], strict=True):
            if mine != theirs:
                at = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
                own, other = worker.ask(margin=[prompt + mine[:at], mine[at], theirs[at]])
                gaps.append(own - other)
    return gaps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("~/.cache/omni-peers").expanduser())
    parser.add_argument("--peers", default=",".join(NAMES))
    parser.add_argument("--cases", default="1,4,16,ragged")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    args = parser.parse_args()
    if not (args.root / "models" / "hf").exists():
        print(f"no peers in {args.root}: run benchmarks/peers/setup.sh ROOT, then this with --root ROOT")
        return
    every = cases()
    asked = [case for case in every if case.name in args.cases.split(",")]
    workers: dict[str, Worker] = {}
    failed: dict[str, str] = {}
    turns: dict[str, dict[str, list[Turn]]] = {}
    try:
        for name in args.peers.split(","):
            try:
                worker = Worker(args.root, name, args.threads)
                workers[name] = worker
                for case in asked:
                    worker.turn(case, [min(n, 4) for n in case.new])
                turns[name] = {case.name: [] for case in asked}
                print(f"{name} is ready", file=sys.stderr, flush=True)
            except (RuntimeError, AssertionError) as error:
                failed[name] = str(error)
                print(f"{name}: {error}", file=sys.stderr, flush=True)
        draw = random.Random(2)
        for number in range(args.rounds):
            for case in asked:
                order = list(turns)
                draw.shuffle(order)
                for name in order:
                    try:
                        turn = workers[name].turn(case)
                    except (RuntimeError, AssertionError) as error:
                        failed[name] = f"{case.name}: {error}"
                        del turns[name]
                        continue
                    turns[name][case.name].append(turn)
                    told = f"{turn.rate:7.1f} tokens/s, others {turn.others:.2f}"
                    stamp = time.strftime("%H:%M:%S")
                    print(f"{stamp} round {number + 1} {case.name:>6} {name:<14} {told}", file=sys.stderr, flush=True)
        compared = [case for case in asked if case.name in ("16", "ragged")]
        gaps: dict[str, list[float]] = {}
        if "transformers" in turns and compared:
            right = reference(args.root, workers["transformers"], compared)
            for name, mine in turns.items():
                gaps[name] = differences(
                    workers["transformers"], compared, right, {c.name: mine[c.name][-1].tokens for c in compared}
                )
        report(args, turns, failed, {name: worker.how for name, worker in workers.items()}, gaps, compared)
    finally:
        for worker in workers.values():
            worker.close()


def report(
    args: argparse.Namespace,
    turns: dict[str, dict[str, list[Turn]]],
    failed: dict[str, str],
    how: dict[str, str],
    gaps: dict[str, list[float]],
    compared: list[Case],
) -> None:
    """The table, as it goes into README.md."""
    names = list(next(iter(turns.values()))) if turns else []
    middle = {who: {case: statistics.median(t.rate for t in mine[case]) for case in names} for who, mine in turns.items()}
    answers = sum(len(case.prompts) for case in compared)
    print("| tokens/s | " + " | ".join(names) + " | first token s | mean answer s | answers that differ | used |")
    print("|---" * (len(names) + 5) + "|")
    for who, mine in turns.items():
        cells = [
            f"{middle[who][case]:.1f} ({min(t.rate for t in mine[case]):.0f}-{max(t.rate for t in mine[case]):.0f})"
            for case in names
        ]
        last = mine[names[-1]]
        cells += [f"{statistics.median(t.first for t in last):.2f}", f"{statistics.median(t.last for t in last):.2f}"]
        cells.append(
            f"{len(gaps[who])} of {answers}" + (f", gap <= {max(gaps[who]):.4f}" if gaps[who] else "") if who in gaps else ""
        )
        print(f"| {who} | " + " | ".join(cells) + f" | {how[who]} |")
    for who, why in failed.items():
        print(f"| {who} | " + " | ".join(["-"] * len(names)) + f" | | | | failed: {why} |")
    others = max((t.others for mine in turns.values() for case in mine.values() for t in case), default=0.0)
    print(f"at most {others:.2f} cores were used by other processes in a turn")
    ratios = {}
    if "ours" in middle:
        for who in middle:
            if who != "ours":
                ratios[who] = {case: round(middle["ours"][case] / middle[who][case], 3) for case in names}
                print(f"ours / {who}: " + ", ".join(f"{case} {ratio:.2f}" for case, ratio in ratios[who].items()))
    if args.json:
        numbers = {
            "tokens_per_s": {who: {case: round(rate, 2) for case, rate in row.items()} for who, row in middle.items()},
            "rounds": {who: {case: [round(t.rate, 2) for t in mine[case]] for case in names} for who, mine in turns.items()},
            "ours_over": ratios,
            "answers": answers,
            "differ": {who: len(found) for who, found in gaps.items()},
            "failed": failed,
            "others": round(others, 3),
            "threads": args.threads,
            "dtype": "float32",
        }
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
