"""The trace keeps to the Trace Event Format: known phases, whole fields, nested or disjoint bars, arrows in pairs."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from scenes import busy

from omni_runtime.observe import trace
from omni_runtime.observe.recorder import Recorder

FIELDS = {  # phase -> what an event of it has
    "X": {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"},
    "M": {"ph", "pid", "tid", "name", "args"},
    "i": {"ph", "s", "pid", "tid", "name", "cat", "ts"},
    "s": {"ph", "id", "pid", "tid", "name", "cat", "ts"},
    "f": {"ph", "id", "pid", "tid", "name", "cat", "ts", "bp"},
}


def faults(found: dict[str, Any]) -> list[str]:
    """What is wrong with a trace."""
    events, wrong = found["traceEvents"], []
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    arrows: dict[int, list[Any]] = {}
    for e in events:
        if set(e) != FIELDS[e["ph"]]:
            wrong.append(f"fields of {e}")
        if not (isinstance(e["pid"], int) and isinstance(e["tid"], int) and isinstance(e["name"], str)):
            wrong.append(f"types of {e}")
        if e["ph"] != "M":
            if e["ts"] < 0 or e.get("dur", 0) < 0:
                wrong.append(f"time of {e}")
            if e["pid"] not in processes or (e["pid"], e["tid"]) not in named:
                wrong.append(f"nameless row of {e}")
        if e["ph"] == "X":
            rows.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
        if e["ph"] in "sf":
            arrows.setdefault(e["id"], []).append((e["ph"], e["ts"]))
    for row, bars in rows.items():
        bars.sort()
        wrong += [f"{row}: {a} runs into {b}" for a, b in pairwise(bars) if b[0] < a[1] - 0.002]
    wrong += [f"arrow {n}: {ends}" for n, ends in arrows.items() if [p for p, _ in ends] != ["s", "f"] or ends[0][1] > ends[1][1]]
    return wrong


@pytest.mark.parametrize("slots", [1, 2])
def test_the_trace_is_sound(slots: int, tmp_path: Path) -> None:
    recorder = Recorder()
    busy(recorder, slots=slots, label='"</script> {}')
    trace.write(tmp_path / "trace.json", recorder)
    found = json.loads((tmp_path / "trace.json").read_text())
    assert faults(found) == []
    record, events = recorder.record(), found["traceEvents"]
    units = [e for e in events if e.get("cat") == "unit"]
    assert len(units) == len(record.units)
    batches = [e for e in events if e.get("cat") == "batch"]
    assert sorted(e["args"]["batch"] for e in batches) == sorted({u.batch.number for u in record.units})
    assert len([e for e in events if e["ph"] == "s"]) == len(units)
    for e, u in zip(units, record.units, strict=True):
        assert (e["args"]["run"], e["name"], e["args"]["why"]) == (u.run.id, u.told, u.why)
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"executor gpu#1", '"</script> 0 (text)'} <= names


def test_faults_are_found() -> None:
    recorder = Recorder()
    busy(recorder, runs=3)
    for spoil in (
        lambda e: e.update(x=1),
        lambda e: e.update(ts=-1.0) if e["ph"] == "X" else None,
        lambda e: e.update(dur=1e9) if e["ph"] == "X" else None,
        lambda e: e.update(tid=999) if e["ph"] == "i" else None,
        lambda e: e.update(id=-1) if e["ph"] == "s" else None,
    ):
        found = trace.events(recorder)
        for event in found["traceEvents"]:
            spoil(event)
        assert faults(found)


def test_an_unfinished_run_has_bars_too() -> None:
    from scenes import CARD, PROGRAMS, device, host

    from omni_runtime.sim import Simulation

    recorder = Recorder()
    sim = Simulation(host(), device(), cards=(CARD,), observers=[recorder])
    sim.submit(PROGRAMS["cascade2"], messages="hi")
    sim.run(until=0.004)
    found = trace.events(recorder)
    assert faults(found) == []
    assert [e["args"]["outcome"] for e in found["traceEvents"] if e.get("cat") == "unit"][-1] == "in flight"
