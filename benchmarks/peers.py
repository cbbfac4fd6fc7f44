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
QUIET = 0.3  # core seconds of others in a second


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


def wait_for_quiet(patience: float) -> float:
    """Waits until others leave the machine alone for a second; returns what is left of the patience."""
    while patience > 0.0:
        before, start = busy(), time.monotonic()
        time.sleep(1.0)
        if busy() - before < QUIET:
            break
        patience -= time.monotonic() - start
    return patience


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
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.noise, text=True, start_new_session=True
        )
        self.about = self._read()
        self._signal(signal.SIGSTOP)

    def plays(self, case: Case) -> bool:
        """Whether it takes part in a case."""
        return bool(self.about["ragged" if case.name == "ragged" else "together"])

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
    known = json.loads(path.read_text()) if path.exists() else {}
    for case in asked:
        question = [case.prompts, case.new]
        if known.get(case.name, {}).get("question") != question:
            answers = worker.ask(prompts=case.prompts, new=case.new, most=1)["tokens"]
            known[case.name] = {"question": question, "answers": answers}
            path.write_text(json.dumps(known))
    return {case.name: known[case.name]["answers"] for case in asked}


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
    parser.add_argument(
        "--patience", type=float, default=300.0, help="seconds to wait in all for others to leave the machine alone"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    args = parser.parse_args()
    if not (args.root / "models" / "hf").exists():
        print(f"no peers in {args.root}: run benchmarks/peers/setup.sh ROOT, then this with --root ROOT")
        return
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, signal.default_int_handler)
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
                plays = [case for case in asked if worker.plays(case)]
                for case in plays[-2:]:
                    worker.turn(case, [min(n, 3) for n in case.new])
                turns[name] = {case.name: [] for case in plays}
                print(f"{name} is ready", file=sys.stderr, flush=True)
            except (RuntimeError, AssertionError, OSError) as error:
                failed[name] = str(error)
                print(f"{name}: {error}", file=sys.stderr, flush=True)
        whole = True
        try:
            rounds(args, asked, workers, turns, failed)
        except KeyboardInterrupt:
            whole = False
            print("stopped early: what there is, and no answers compared")
        turns = {name: held for name, mine in turns.items() if (held := {case: found for case, found in mine.items() if found})}
        compared = [case for case in asked if case.name in ("16", "ragged")]
        gaps: dict[str, list[float]] = {}
        if "transformers" in turns and compared and whole:
            right = reference(args.root, workers["transformers"], compared)
            for name, mine in turns.items():
                last = {case: found[-1].tokens for case, found in mine.items()}
                gaps[name] = differences(workers["transformers"], [c for c in compared if c.name in last], right, last)
        report(args, asked, turns, failed, {name: worker.about["how"] for name, worker in workers.items()}, gaps)
    finally:
        for worker in workers.values():
            worker.close()


def rounds(
    args: argparse.Namespace,
    asked: list[Case],
    workers: dict[str, Worker],
    turns: dict[str, dict[str, list[Turn]]],
    failed: dict[str, str],
) -> None:
    """All turns of all, into `turns`; who fails is out."""
    draw, patience = random.Random(2), args.patience
    for number in range(args.rounds):
        for case in asked:
            order = [name for name in turns if case.name in turns[name]]
            draw.shuffle(order)
            for name in order:
                patience = wait_for_quiet(patience)
                try:
                    turn = workers[name].turn(case)
                except (RuntimeError, AssertionError, OSError) as error:
                    failed[name] = f"{case.name}: {error}"
                    del turns[name]
                    continue
                turns[name][case.name].append(turn)
                told = f"{turn.rate:7.1f} tokens/s, others {turn.others:.2f}"
                stamp = time.strftime("%H:%M:%S")
                print(f"{stamp} round {number + 1} {case.name:>6} {name:<14} {told}", file=sys.stderr, flush=True)


def report(
    args: argparse.Namespace,
    asked: list[Case],
    turns: dict[str, dict[str, list[Turn]]],
    failed: dict[str, str],
    how: dict[str, str],
    gaps: dict[str, list[float]],
) -> None:
    """The tables, as they go into README.md."""
    names = [case.name for case in asked]
    middle = {
        who: {case: statistics.median(t.rate for t in found) for case, found in mine.items()} for who, mine in turns.items()
    }
    print("| tokens/s | " + " | ".join(names) + " | first token s | mean answer s | answers that differ |")
    print("|---" * (len(names) + 4) + "|")
    for who, mine in turns.items():
        cells = []
        for case in names:
            rates = [turn.rate for turn in mine.get(case, [])]
            cells.append(f"{middle[who][case]:.1f} ({min(rates):.0f}-{max(rates):.0f})" if rates else "")
        ragged = mine.get("ragged", [])
        cells += [
            f"{statistics.median(getattr(turn, key) for turn in ragged):.2f}" if ragged else "" for key in ("first", "last")
        ]
        answers = sum(len(case.prompts) for case in asked if case.name in mine and case.name in ("16", "ragged"))
        cells.append(
            f"{len(gaps[who])} of {answers}" + (f", gap {max(gaps[who]):.1e}" if gaps[who] else "") if who in gaps else ""
        )
        print(f"| {who} | " + " | ".join(cells) + " |")
    for who, why in failed.items():
        print(f"| {who} | failed: {why} |")
    for who in turns:
        print(f"{who}: {how[who]}")
    others = max((turn.others for mine in turns.values() for found in mine.values() for turn in found), default=0.0)
    print(f"at most {others:.2f} cores were used by other processes in a turn")
    ratios: dict[str, dict[str, dict[str, float]]] = {}
    for own in ("ours", "ours-all"):
        for who in middle if own in middle else ():
            shared = [case for case in middle[own] if case in middle[who]]
            if not who.startswith("ours") and shared:
                ratios.setdefault(own, {})[who] = found = {c: round(middle[own][c] / middle[who][c], 3) for c in shared}
                print(f"{own} / {who}: " + ", ".join(f"{case} {ratio:.2f}" for case, ratio in found.items()))
    if args.json:
        numbers = {
            "tokens_per_s": {who: {case: round(rate, 2) for case, rate in row.items()} for who, row in middle.items()},
            "rounds": {
                who: {case: [round(t.rate, 2) for t in found] for case, found in mine.items()} for who, mine in turns.items()
            },
            "over": ratios,
            "differ": {who: len(found) for who, found in gaps.items()},
            "failed": failed,
            "others": round(others, 3),
            "threads": args.threads,
            "dtype": "float32",
        }
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
