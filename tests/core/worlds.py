"""Plays random worlds: `make worlds N=10000 SEED=0`, or `python tests/core/worlds.py 10000 0`.

A seed draws everything: programs, requests and how they are wanted, pools, speeds, and which kinds of trouble there are. Each
world goes through its trouble, every book checked after every event; then it is healed, and must drain. The first world of each
kind of failure is told with the command that plays it again.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from search import play

Told = tuple[int, str, str, dict[str, int]]  # seed, kind of failure or "", what it said, counts


def one(seed: int) -> Told:
    """A world, and what happened in it."""
    try:
        world = play(seed)
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return seed, f"{type(error).__name__} at {os.path.basename(at.filename)}:{at.lineno}", str(error)[:600], {}
    counts = Counter(world.happened)
    for handle in world.handles.values():
        assert handle.end is not None
        counts[handle.end.reason] += 1
        counts["begun again"] += handle.end.rebuilt
    counts["units"], counts["requests"] = world.units, len(world.handles)
    return seed, "", "", dict(counts)


def played(seeds: range) -> Iterator[Told]:
    jobs = len(os.sched_getaffinity(0))
    if len(seeds) < 50 or jobs == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(one, seeds, chunksize=20)


def main(n: int, first: int) -> int:
    began = time.monotonic()
    failures: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for seed, sign, said, found in played(range(first, first + n)):
        counts.update(found)
        if sign:
            if sign not in failures:
                print(f"{sign}: {said}\n  make worlds N=1 SEED={seed}", flush=True)
            failures[sign] += 1
    told = ", ".join(f"{value:,} {name}" for name, value in counts.most_common())
    print(f"{n:,} worlds in {time.monotonic() - began:.0f} s: {told}")
    print(f"broken promises: {sum(failures.values())}" + (f", {dict(failures)}" if failures else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
