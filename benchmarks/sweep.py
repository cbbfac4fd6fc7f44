"""The policies against each other in simulation: 1, 4 and 16 devices, loads of 50 to 120 %, three mixes.

100 % is the best throughput that any of the policies reaches on the same devices when all requests come at once. A request is
good if it completes, is silent for at most 50 ms in all, and each of its outputs begins within three seconds (a picture within
thirty).

    python benchmarks/sweep.py COSTS.json [--out FOLDER] [--jobs 2] [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from omni_runtime import costs_file
from omni_runtime.scheduler.cost import Costs
from omni_runtime.simulate.charts import lines
from omni_runtime.simulate.generate import Kind, generate, lengths
from omni_runtime.simulate.measures import measure
from omni_runtime.simulate.replay import Replay, cards_of

DEVICES = {1: 100, 4: 240, 16: 480}  # and how many requests come
LOADS = (0.5, 0.7, 0.9, 1.0, 1.2)
POLICIES = ("deadline", "promise", "first_come", "stages", "requests")  # promise: deadline, and every sound is promised
SOON = {"first_output_s": 3.0}
LATER = {"first_output_s": 30.0}
SPEAK = Kind("speak", 6.0, fields=SOON)
CHAT = Kind("chat", 3.0, outputs=("text",), fields=SOON)
SMALL = Kind("paint", 1.0, outputs=("image",), params={"width": 512, "height": 512, "steps": 20}, fields=LATER)
LONG = Kind("paint", 1.0, outputs=("image",), params={"width": 1024, "height": 1024, "steps": 50}, fields=LATER)
MIXES = {"speech": [SPEAK], "mixed": [SPEAK, CHAT, SMALL], "long images": [SPEAK, CHAT, LONG]}
Cell = tuple[str, int, str, float]  # mix, devices, policy, requests a second


def one(cell: Cell, costs: str | None, scale: float) -> dict[str, Any]:
    """One simulation."""
    mix, devices, policy, rate = cell
    kinds = MIXES[mix]
    if policy == "promise":
        kinds = [
            Kind(k.program, k.share, k.outputs, params=k.params, fields={**k.fields, "guarantee": "no-underrun"})
            if k.program == "speak"
            else k
            for k in kinds
        ]
    arrivals = generate(kinds, rate=rate, requests=round(DEVICES[devices] * scale), tokens=lengths("24-72"), seed=3)
    known = costs_file.read(costs) if costs else Costs()
    replay = Replay(cards_of(arrivals), known, devices, seed=1, policy="deadline" if policy == "promise" else policy)
    outcomes = replay.play(arrivals)
    busy = {e: sum(c.values()) for e, c in replay.busy_by.by.items() if not e.endswith("tokenizer")}
    found = measure(outcomes, busy, replay.hosts())
    speech = measure([o for o in outcomes if o.program == "speak"])
    return {
        "throughput": found.throughput,
        "goodput": found.goodput,
        "good_share": found.good_share,
        "refused": found.refused,
        "first_token": found.first_token,
        "first_sound": found.first_sound,
        "total": speech.total,
        "silence": found.silence,
        "interrupted": found.interrupted,
        "busy": sum(found.utilisation.values()),
        "units": replay.units,
    }


def sweep(costs: str | None, jobs: int, scale: float) -> dict[str, Any]:
    """All of it: capacities by mix and devices, and a row for each simulation."""
    with ProcessPoolExecutor(jobs) as pool:
        full: list[Cell] = [(m, d, p, 1e6) for m in MIXES for d in DEVICES for p in POLICIES if p != "promise"]
        capacity: dict[str, float] = {}
        for (m, d, _, _), found in zip(full, pool.map(one, full, [costs] * len(full), [scale] * len(full)), strict=True):
            capacity[f"{m}/{d}"] = max(capacity.get(f"{m}/{d}", 0.0), found["throughput"])
        cells: list[Cell] = []
        loads = []
        for m in MIXES:
            for d in DEVICES:
                for p in POLICIES:
                    for load in LOADS:
                        cells.append((m, d, p, load * capacity[f"{m}/{d}"]))
                        loads.append(load)
        rows = []
        for cell, load, found in zip(cells, loads, pool.map(one, cells, [costs] * len(cells), [scale] * len(cells)), strict=True):
            rows.append({"mix": cell[0], "devices": cell[1], "policy": cell[2], "load": load, **found})
    return {"capacity": capacity, "rows": rows}


def draw(found: dict[str, Any], out: Path) -> list[str]:
    """The charts: by load on 4 devices, and by devices at 90 %; returns the names of their files."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for mix in MIXES:
        rows = [r for r in found["rows"] if r["mix"] == mix]
        four = [r for r in rows if r["devices"] == 4]
        most = [r for r in rows if r["load"] == 0.9]
        figures = {
            "goodput": ("good requests, share of all", four, "load", lambda r: r["good_share"], "load, share of capacity"),
            "first_sound_p50": ("first sound, median, seconds", four, "load", _at("p50"), "load, share of capacity"),
            "first_sound_p99": ("first sound, p99, seconds", four, "load", _at("p99"), "load, share of capacity"),
            "devices": ("good requests, share of all", most, "devices", lambda r: r["good_share"], "devices, at 90 % load"),
        }
        for name, (y_label, chosen, key, value, x_label) in figures.items():
            series = {p: [(r[key], value(r)) for r in chosen if r["policy"] == p] for p in POLICIES}
            top = 1.0 if y_label.startswith("good") else None
            where = "" if name == "devices" else ", 4 devices"
            chart = lines(f"{mix}{where}", x_label, y_label, series, dots=True, top=top, log=key == "devices")
            file = out / f"sweep-{mix.replace(' ', '-')}-{name.replace('_', '-')}.svg"
            file.write_text(chart + "\n", encoding="utf-8")
            made.append(file.name)
    return made


def _at(share: str) -> Any:
    return lambda r: r["first_sound"].get(share, 0.0)


def table(found: dict[str, Any], load: float) -> str:
    """Markdown: every mix and number of devices at one load, a column for each policy."""
    out = [f"| mix, devices | requests/s | {' | '.join(POLICIES)} |", "|---|---|" + "---|" * len(POLICIES)]
    for mix in MIXES:
        for devices in DEVICES:
            cells = []
            for policy in POLICIES:
                row = next(
                    r for r in found["rows"] if (r["mix"], r["devices"], r["policy"], r["load"]) == (mix, devices, policy, load)
                )
                first = row["first_sound"]
                cells.append(f"{row['good_share']:.0%} · {first['p50']:.2f} / {first['p99']:.2f}")
            out.append(f"| {mix}, {devices} | {load * found['capacity'][f'{mix}/{devices}']:.2f} | {' | '.join(cells)} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("costs", nargs="?", help="what `omni calibrate` measured; guesses of the cards by default")
    parser.add_argument("--out", type=Path, help="folder for charts and for sweep.json")
    parser.add_argument("--jobs", type=int, default=2, help="simulations at a time")
    parser.add_argument("--quick", action="store_true", help="a sixth of the requests")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    args = parser.parse_args()
    began = time.perf_counter()
    found = sweep(args.costs, args.jobs, 1 / 6 if args.quick else 1.0)
    seconds = time.perf_counter() - began
    print("good share · first sound p50 / p99, seconds")
    for load in LOADS:
        print(f"\nload {load:.0%}\n\n{table(found, load)}")
    print(f"\n{sum(r['units'] for r in found['rows'])} units in {seconds:.0f} s")
    if args.out is not None:
        draw(found, args.out)
        (args.out / "sweep.json").write_text(json.dumps(found), encoding="utf-8")
    if args.json:
        print(json.dumps({"seconds": round(seconds), **{f"capacity {k}": round(v, 3) for k, v in found["capacity"].items()}}))


if __name__ == "__main__":
    main()
