"""A million units through the simulator, everything counted: requests, decisions, ghosts, the report.

The load is `speak` (thinker, talker, vocoder) at about two thirds of what eight devices can do, with the prices of the cards.

    python benchmarks/simulate.py [--json] [--units N]
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from omni_runtime.scheduler.cost import Costs
from omni_runtime.simulate import report
from omni_runtime.simulate.generate import generate, mix
from omni_runtime.simulate.measures import measure
from omni_runtime.simulate.replay import Replay, cards_of

DEVICES, RATE = 8, 8.5
PER_REQUEST = 73  # units that a request comes to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--units", type=int, default=1_000_000)
    args = parser.parse_args()
    began = time.perf_counter()
    arrivals = generate(mix("speak"), rate=RATE, requests=max(1, args.units // PER_REQUEST))
    replay = Replay(cards_of(arrivals), Costs(), DEVICES, width=arrivals[-1].at / 400)
    outcomes = replay.play(arrivals)
    played = time.perf_counter()
    busy = {expert: sum(cells.values()) for expert, cells in replay.busy_by.by.items()}
    found = measure(outcomes, busy, replay.hosts())
    with tempfile.TemporaryDirectory() as folder:
        report.write(
            Path(folder) / "r.html", "benchmark", {}, found, outcomes, replay.busy_by.by, replay.busy_by.width, replay.hosts()
        )
        page = (Path(folder) / "r.html").stat().st_size
    seconds = time.perf_counter() - began
    numbers = {
        "units": replay.units,
        "seconds": round(seconds, 1),
        "seconds_per_million": round(seconds / replay.units * 1e6, 1),
        "cpu_seconds": round(time.process_time(), 1),
        "report_seconds": round(time.perf_counter() - played, 2),
        "report_kb": page // 1024,
        "batches": replay.core.scheduler.batches,
        "simulated_seconds": round(found.span),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    for name, value in numbers.items():
        print(f"{name:<22}{value:>12}")
    if args.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
