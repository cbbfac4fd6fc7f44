"""How far the simulator is off: fitted on one seed and load, tested on another, against the real runtime.

The prices and paces come from `omni calibrate` (closed loop, seed 0). The test is open: other questions' lengths, another seed,
Poisson arrivals at a share of the capacity, and once all at the same time. What the real runtime was given is recorded and
played to ghosts; the goal is 15 % for throughput and for every median.

    omni calibrate -o costs.json && python benchmarks/validate.py costs.json [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor

from omni_runtime.programs.speak import speak

from omni_runtime import Runtime, costs_file
from omni_runtime.calibrate import asked
from omni_runtime.simulate import workload
from omni_runtime.simulate.generate import generate, lengths, mix
from omni_runtime.simulate.measures import Measures, measure
from omni_runtime.simulate.record import WorkloadRecorder
from omni_runtime.simulate.replay import Replay
from omni_runtime.simulate.workload import Arrival


def real(arrivals: list[Arrival], costs: dict[str, object]) -> tuple[list[Arrival], Measures]:
    """Plays a workload to the real runtime in real time, after one request alone; returns what it was given and what came of all
    but the first."""
    recorder, program = WorkloadRecorder(), speak()
    with Runtime(list(program.cards.values()), observers=[recorder], costs=costs) as runtime:
        runtime.submit(program, **asked(program, 999, 8)).result()  # the first batch of a process is slow; and it leaves its KV
        begin = time.monotonic()
        with ThreadPoolExecutor(len(arrivals)) as callers:

            def call(number: int) -> None:
                time.sleep(max(0.0, begin + arrivals[number].at - time.monotonic()))
                runtime.submit(program, **asked(program, number, arrivals[number].tokens or 0)).result()

            list(callers.map(call, range(len(arrivals))))
    return recorder.workload(), measure(recorder.outcomes()[1:])


def compare(what: str, arrivals: list[Arrival], file: str, keep: str | None = None) -> dict[str, float]:
    """Relative errors of the simulation, by number."""
    costs = costs_file.read(file)
    given, found = real(arrivals, costs.save())
    told = measure(Replay(list(speak().cards.values()), costs, seed=1).play(given)[1:])
    if keep is not None:
        workload.write(f"{keep}.{what.split()[0].lower()}.jsonl", given)
    pairs = {
        "throughput": (found.throughput, told.throughput),
        "first_token_p50": (found.first_token["p50"], told.first_token["p50"]),
        "first_sound_p50": (found.first_sound["p50"], told.first_sound["p50"]),
        "total_p50": (found.total["p50"], told.total["p50"]),
        "total_p90": (found.total["p90"], told.total["p90"]),
        "sound_s": (found.sound, told.sound),
        "silence": (found.silence, told.silence),
    }
    print(f"{what}, {len(arrivals)} requests\n{'':<18}{'real':>9}{'simulated':>11}{'off':>8}")
    errors = {}
    for name, (one, other) in pairs.items():
        off = other / one - 1.0 if one else 0.0
        errors[name] = round(off, 4)
        print(f"{name:<18}{one:>9.3f}{other:>11.3f}" + (f"{off:>8.1%}" if name != "silence" else ""))
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("costs")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rate", type=float, default=0.45, help="requests a second of the open test")
    parser.add_argument("--keep", help="write what the real runtime was given into files that begin so")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    args = parser.parse_args()
    sizes = lengths("16-64")
    poisson = generate(mix("speak"), rate=args.rate, requests=args.requests, tokens=sizes, seed=21)
    burst = generate(mix("speak"), rate=1000.0, requests=args.requests, tokens=sizes, seed=22)
    found = {
        "poisson": compare(f"Poisson, {args.rate} requests/s", poisson, args.costs, args.keep),
        "at_once": compare("all at once", burst, args.costs, args.keep),
    }
    if args.json:
        print(json.dumps({f"{test}_{name}": value for test, errors in found.items() for name, value in errors.items()}))


if __name__ == "__main__":
    main()
