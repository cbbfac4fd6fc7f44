"""The same as Trace Event Format, for Perfetto and chrome://tracing: a process per request with a thread per loop, and
a process per executor with a thread per op; arrows lead from a unit to the batch that it was computed in.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_runtime.observe.record import Record, RunFact, UnitFact
from omni_runtime.observe.recorder import Recorder

REQUESTS = 1000  # process ids of requests start here, those of executors at 1


def write(path: str | Path, what: Recorder | Record) -> None:
    """Writes a trace of all that is remembered.

    Raises:
        OSError: the file cannot be written.
    """
    Path(path).write_text(json.dumps(events(what)), encoding="utf-8")


def events(what: Recorder | Record) -> dict[str, Any]:
    """The trace as the object that is written; times are microseconds from the start of the record."""
    record = what.record() if isinstance(what, Recorder) else what
    start, out = record.start, _Out()
    for run in record.runs:
        _request(out, run, record, start)
    for unit in record.units:
        _unit(out, unit, record, start)
    other = {"tool": "omni_runtime", "dropped_units": record.dropped}
    return {"traceEvents": [*out.names, *out.events], "displayTimeUnit": "ms", "otherData": other}


class _Out:
    """Events, and the names of the processes and threads that they are on."""

    def __init__(self) -> None:
        self.names: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.processes: dict[str, int] = {}
        self.threads: dict[tuple[int, str], int] = {}
        self.counts: dict[int, int] = {}  # threads by process
        self.sent: set[int] = set()  # batches that have their bar

    def process(self, pid: int, name: str) -> int:
        self._name(pid, 0, "process_name", name)
        self.names.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}})
        return pid

    def executor(self, name: str) -> int:
        if name not in self.processes:
            self.processes[name] = self.process(len(self.processes) + 1, f"executor {name}")
        return self.processes[name]

    def thread(self, pid: int, name: str) -> int:
        key = (pid, name)
        if key not in self.threads:
            self.threads[key] = self.counts[pid] = self.counts.get(pid, 0) + 1
            self._name(pid, self.threads[key], "thread_name", name)
        return self.threads[key]

    def bar(self, pid: int, tid: int, name: str, category: str, begin: float, end: float, args: dict[str, Any]) -> None:
        ts, dur = round(begin * 1e6, 3), round(max(0.0, end - begin) * 1e6, 3)
        self.events.append({"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category, "ts": ts, "dur": dur, "args": args})

    def arrow(self, number: int, pid: int, tid: int, at: float, ends: bool) -> None:
        end: dict[str, Any] = {"bp": "e"} if ends else {}
        ts = round(at * 1e6, 3)
        self.events.append(
            {"ph": "f" if ends else "s", "id": number, "pid": pid, "tid": tid, "name": "dispatch", "cat": "flow", "ts": ts, **end}
        )

    def _name(self, pid: int, tid: int, what: str, name: str) -> None:
        self.names.append({"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}})


def title(run: RunFact) -> str:
    """What a request is called."""
    return run.label or f"request {run.id}"


def _request(out: _Out, run: RunFact, record: Record, start: float) -> None:
    pid = out.process(REQUESTS + run.id, f"{title(run)} ({run.program})")
    ended = record.now if run.ended is None else run.ended
    args: dict[str, Any] = {"reason": run.reason or "alive", "detail": run.detail, "outputs": list(run.outputs)}
    out.bar(pid, out.thread(pid, "request"), run.program, "request", run.arrival - start, ended - start, args)
    for loop in run.kinds:
        out.thread(pid, loop)
    for output, when in run.first.items():
        ts = round((when - start) * 1e6, 3)
        out.events.append({"ph": "i", "s": "p", "pid": pid, "tid": 1, "name": f"first {output}", "cat": "request", "ts": ts})


def _unit(out: _Out, unit: UnitFact, record: Record, start: float) -> None:
    batch = unit.batch
    begin = batch.started - start
    end = (record.now if batch.answered is None else batch.answered) - start
    args = {
        "request": title(unit.run),
        "run": unit.run.id,
        "batch": batch.number,
        "place": unit.place,
        "units_in_batch": batch.units,
        "size": unit.size,
        "offered": [unit.lo, unit.hi],
        "op": f"{batch.expert}.{batch.op}",
        "key": [str(part) for part in batch.key],
        "executor": batch.executor,
        "wait_us": round((batch.started - unit.ready) * 1e6, 3),
        "due_us": round((unit.due - start) * 1e6, 3),
        "why": unit.why,
        "outcome": unit.outcome,
    }
    pid = REQUESTS + unit.run.id
    tid = out.thread(pid, unit.loop)
    number = len(out.events)
    if batch.started > unit.ready:
        out.bar(pid, tid, "waits", "wait", unit.ready - start, begin, {"why": unit.why})
    out.bar(pid, tid, unit.told, "unit", begin, end, args)
    here = out.executor(batch.executor)
    ops = out.thread(here, f"{batch.expert}.{batch.op}")
    if batch.number not in out.sent:
        out.sent.add(batch.number)
        about = {"batch": batch.number, "units": batch.units, "size": batch.size, "outcome": batch.outcome or "in flight"}
        out.bar(here, ops, f"{batch.op} x{batch.units}", "batch", begin, end, about)
    out.arrow(number, pid, tid, begin, False)
    out.arrow(number, here, ops, begin, True)
