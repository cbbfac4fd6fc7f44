"""`omni simulate`: from options to a table, JSON and a page."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from omni_runtime import costs_file
from omni_runtime.errors import MissingExtra, RequestError
from omni_runtime.scheduler.cost import Costs
from omni_runtime.simulate import report, workload
from omni_runtime.simulate.generate import generate, lengths, mix
from omni_runtime.simulate.measures import Measures, measure
from omni_runtime.simulate.replay import Replay, cards_of
from omni_runtime.simulate.workload import Arrival

STRETCHES = 400  # into which utilisation is cut


class Scene(Struct, frozen=True):
    """What `omni simulate` is asked for; see its options."""

    costs: Path | None = None
    trace: Path | None = None
    mix: str = "speak"
    rate: float = 1.0
    burst: float = 1.0
    requests: int = 200
    prompt: str = "24-80"
    tokens: str = "24-72"
    shared: int = 0
    seed: int = 0
    devices: int = 1
    policy: str | None = None
    guarantee: str | None = None
    tenants: int = 1
    deadline_s: float | None = None
    first_output_s: float | None = None
    noise: bool = True
    slots: int = 1
    json: bool = False
    report: Path | None = None
    save: Path | None = None


def simulate(scene: Scene) -> None:
    """Simulates, and shows what came of it.

    Raises:
        OmniError: an option is wrong, or a file is.
    """
    for path in (scene.report, scene.save):
        if path is not None and not path.resolve().parent.is_dir():
            raise RequestError(f"{path}: its folder does not exist; make it first")
    costs = costs_file.read(scene.costs) if scene.costs is not None else Costs()
    arrivals = workload.read(scene.trace) if scene.trace is not None else made(scene)
    if scene.save is not None:
        workload.write(scene.save, arrivals)
    began = time.perf_counter()
    last = arrivals[-1].at
    options: dict[str, Any] = {"policy": scene.policy} if scene.policy is not None else {}
    replay = Replay(
        cards_of(arrivals),
        costs,
        scene.devices,
        seed=scene.seed if scene.noise else None,
        slots=scene.slots,
        width=max(last / STRETCHES, 0.05),
        **options,
    )
    outcomes = replay.play(arrivals)
    took = time.perf_counter() - began
    hosts = replay.hosts()
    found = measure(outcomes, {e: sum(cells.values()) for e, cells in replay.busy_by.by.items()}, hosts)
    notes = warnings(scene, costs, replay)
    facts = told(scene, arrivals, replay)
    if scene.report is not None:
        title = f"{len(arrivals)} requests on {scene.devices} simulated device{'s' * (scene.devices > 1)}"
        report.write(scene.report, title, facts, found, outcomes, replay.busy_by.by, replay.busy_by.width, hosts, notes)
    if scene.json:
        print(json.dumps(facts | found.as_dict() | {"notes": notes, "seconds_taken": took, "units_run": replay.units}))
        return
    show(found, notes)
    print(f"{replay.units} units in {took:.1f} s" + (f"; the report is in {scene.report}" if scene.report else ""))


def made(scene: Scene) -> list[Arrival]:
    """Requests by dice."""
    fields: dict[str, Any] = {"tenants": scene.tenants}
    for name in ("guarantee", "deadline_s", "first_output_s"):
        if getattr(scene, name):
            fields[name] = getattr(scene, name)
    return generate(
        mix(scene.mix),
        rate=scene.rate,
        requests=scene.requests,
        burst=scene.burst,
        prompt=lengths(scene.prompt, "prompt"),
        tokens=lengths(scene.tokens, "tokens"),
        shared=scene.shared,
        seed=scene.seed,
        **fields,
    )


def told(scene: Scene, arrivals: list[Arrival], replay: Replay) -> dict[str, Any]:
    """The settings, as a report names them."""
    kinds: dict[str, int] = {}
    for arrival in arrivals:
        kinds[arrival.program] = kinds.get(arrival.program, 0) + 1
    span = arrivals[-1].at - arrivals[0].at
    facts: dict[str, Any] = {
        "devices": replay.count,
        "policy": replay.core.scheduler.policy.name,
        "programs": ", ".join(f"{name} {count}" for name, count in sorted(kinds.items())),
        "load": f"{(len(arrivals) - 1) / span:.3f} requests/s" if span > 0 else "all at once",
        "costs": str(scene.costs or "guesses of the cards"),
        "seed": scene.seed,
    }
    if scene.trace is not None:
        facts["trace"] = str(scene.trace)
    else:
        facts |= {"burst": scene.burst, "prompt": scene.prompt, "tokens": scene.tokens}
    return facts


def warnings(scene: Scene, costs: Costs, replay: Replay) -> list[str]:
    """What a reader must know."""
    found = []
    if replay.assumed:
        found.append(f"Not measured, so guessed as the card says: {', '.join(replay.assumed)}. `omni calibrate` measures.")
    if not costs.paces:
        found.append("No program was observed, so the items that a call gives are rough guesses.")
    return found


def show(found: Measures, notes: list[str]) -> None:
    """Prints tables to standard output and notes to standard error.

    Raises:
        MissingExtra: rich is not installed.
    """
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        raise MissingExtra("the table needs rich: pip install 'omni_runtime[cli]', or add --json") from None
    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in report.rows(found):
        table.add_row(*row)
    console.print(table)
    table = Table("seconds", "p50", "p90", "p99", box=None, pad_edge=False)
    for latency in report.latency_rows(found):
        table.add_row(*latency)
    console.print(table)
    table = Table("expert", "busy", box=None, pad_edge=False)
    for expert, share in found.utilisation.items():
        table.add_row(expert, f"{share:.1%}")
    console.print(table)
    for note in notes:
        print(note, file=sys.stderr)
