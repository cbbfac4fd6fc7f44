"""A random omni model of middle size through the whole runtime, beside transformers' `generate` on the same files.

Greedy: both give the same tokens and codes, which is checked, alone and among eight; and the same wave to 1e-3, or, where a
stream is not quite one call (Qwen2.5-Omni), the difference is told in dB. They take turns.
Memory is the peak of a process that loads one side and answers once.

    python benchmarks/cascade.py [--family qwen2_5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from cascade_families import FAMILIES, Family, Said, decibel

QUESTIONS = [f"Tell me about number {i}, " + "slowly. " * i for i in range(8)]


def same(ours: Any, said: Said, family: Family) -> float:
    """Whether both gave the same answer; how far the waves are apart, in dB."""
    tokens, codes, wave = said
    assert list(ours.outputs["tokens"]) == tokens, "both must think the same"
    assert [tuple(frame) for frame in ours.outputs["codes"]] == codes, "both must say the same"
    assert len(ours.audio) == len(wave), "both must sound as long"
    assert not family.exact or np.abs(ours.audio - wave).max() < 1e-3, "both must sound the same"
    return decibel(ours.audio, wave)


def measure(folder: Path, family: Family, args: argparse.Namespace) -> dict[str, Any]:
    ours, theirs = (side(folder, args.threads, args.tokens, args.frames) for side in (family.ours, family.theirs))
    rows: dict[str, list[float]] = {}

    def timed(name: str, run: Any) -> Any:
        start = time.perf_counter()
        found = run()
        rows.setdefault(name, []).append(time.perf_counter() - start)
        return found

    ours.answer(*QUESTIONS[:2])  # warms up
    theirs.answer(QUESTIONS[0])
    apart, why = [], ""
    for _ in range(args.repeats):
        (one,) = timed("single", lambda: ours.answer(QUESTIONS[0]))
        apart.append(same(one, timed("single_theirs", lambda: theirs.answer(QUESTIONS[0])), family))
        rows.setdefault("first_sound", []).append(one.timings.first["audio"])
        if args.single:
            continue
        eight = timed("total8", lambda: ours.answer(*QUESTIONS))
        rows.setdefault("mean8", []).append(statistics.mean(each.timings.total for each in eight))
        rows.setdefault("first8", []).append(max(each.timings.first["audio"] for each in eight))
        said = timed("total8_theirs", lambda: [theirs.answer(question) for question in QUESTIONS])
        apart += [same(mine, their, family) for mine, their in zip(eight, said, strict=True)]
        why = timed("batched8_theirs", lambda: theirs.batched(QUESTIONS))
    ours.runtime.close()
    middle = {name: statistics.median(row) for name, row in rows.items()}
    found: dict[str, Any] = {
        "first_sound_ratio": middle["first_sound"] / middle["single_theirs"],
        "single_ratio": middle["single"] / middle["single_theirs"],
    }
    if not args.single:
        found["total8_ratio"] = middle["total8"] / middle["total8_theirs"]
        print(f"eight in one call of the reference: {why or 'it can'}")
    if not args.single and not why:
        found["total8_vs_batched_ratio"] = middle["total8"] / middle["batched8_theirs"]
        found["mean8_vs_batched_ratio"] = middle["mean8"] / middle["batched8_theirs"]
    found |= {f"{name}_s": value for name, value in middle.items()}
    found |= {"sound_s": len(one.audio) / 24_000, "apart_db": max(apart)}
    return found


def memory(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Peak resident memory of one side alone, MiB."""
    found = {}
    for side in ("ours", "theirs"):
        given = ["--tokens", str(args.tokens), "--frames", str(args.frames), "--threads", str(args.threads)]
        command = [sys.executable, __file__, "--family", args.family, "--alone", side, "--folder", str(folder), *given]
        found[side] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    return {"rss_ratio": found["ours"] / found["theirs"], "rss_mib": found["ours"], "rss_theirs_mib": found["theirs"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--family", choices=FAMILIES, default="qwen3")
    parser.add_argument("--single", action="store_true", help="one request only, and not eight")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, help="of text; 32 by default")
    parser.add_argument("--frames", type=int, help="of codes; 64 by default, of Qwen2.5-Omni 240")
    parser.add_argument("--alone", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    family = FAMILIES[args.family]
    args.tokens, args.frames = args.tokens or family.tokens, args.frames or family.frames
    if args.alone:
        side = {"ours": family.ours, "theirs": family.theirs}[args.alone](args.folder, args.threads, args.tokens, args.frames)
        side.answer(QUESTIONS[0])
        status = Path("/proc/self/status").read_text()  # getrusage also tells of the parent, before exec
        print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)
        os._exit(0)
    with tempfile.TemporaryDirectory() as kept:
        folder = family.write(Path(kept) / "omni")
        found = measure(folder, family, args) | memory(folder, args)
    for name, value in found.items():
        print(f"{name:<22} {value:>9.3f}")
    if args.json:
        asked = {name: getattr(args, name) for name in ("family", "tokens", "frames", "threads", "repeats")}
        print(json.dumps({name: round(value, 4) for name, value in found.items()} | asked))


if __name__ == "__main__":
    main()
