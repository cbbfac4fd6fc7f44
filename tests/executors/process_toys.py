"""Experts for worker processes: they answer, sleep, die, hang, raise, and refuse to load when a file says so."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from omni_runtime.card import ExpertSpec, ModelCard, OneShot, OpLimits, Port, Slot
from omni_runtime.errors import CheckpointError, CheckpointWarning, MissingExtra
from omni_runtime.program import Program
from omni_runtime.work import Answer, CallStep, Report, Row, RunBatch, StepResult

OPS = ("echo", "keep", "read", "sleep", "die", "leave", "raise", "odd", "pid", "count", "hold", "fly")


class Flown:
    """A batch that was launched: it tells, when it is collected, what has happened until then."""

    def __init__(self, row: Row, diary: list[str], results: list[StepResult]) -> None:
        self.row, self.diary, self.results = row, diary, results

    def collect(self) -> list[StepResult]:
        params: dict[str, Any] = self.row.payload.params  # type: ignore[union-attr]
        self.diary.append(f"collect {params['at']}")
        if "collects" in params:
            params["collects"](self)
        if params.get("fault") == "collect":
            raise ArithmeticError("found when it was read")
        if params.get("fault") == "exit":
            raise SystemExit(3)
        self.results[0].items["out"] = list(self.diary)
        return self.results


class Toy:
    """Ops by what `params` of a call say."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.diary: list[str] = []
        self.ops = {name: getattr(self, f"op_{name}") for name in OPS}

    def op_echo(self, rows: Any, slots: Any) -> Any:
        return [StepResult(items={"out": list(row.payload.inputs["in"])}) for row in rows]

    def op_keep(self, rows: Any, slots: Any) -> Any:
        import torch

        found = []
        for row in rows:
            made = torch.arange(row.payload.params["n"], dtype=getattr(torch, row.payload.params.get("dtype", "float32")))
            found.append(StepResult(tensors={"out": (slots.keep(row, "out", row.payload.index, made),)}))
        return found

    def op_read(self, rows: Any, slots: Any) -> Any:
        tensors = [slots.read(ref) for row in rows for ref in row.payload.tensors["in"]]
        return [StepResult(items={"out": [str(t.dtype), float(t.double().sum())]}) for t in tensors]

    def op_sleep(self, rows: Any, slots: Any) -> Any:
        time.sleep(rows[0].payload.params["s"])
        return self.op_pid(rows, slots)

    def op_die(self, rows: Any, slots: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def op_leave(self, rows: Any, slots: Any) -> Any:
        raise SystemExit(3)

    def op_raise(self, rows: Any, slots: Any) -> Any:
        import torch

        big = torch.zeros(1 << 20)
        for row in rows:
            slots.keep(row, "out", 0, big)
        raise RuntimeError(f"out of memory with {big.numel()} elements")

    def op_odd(self, rows: Any, slots: Any) -> Any:
        import torch

        row = rows[0]
        return [StepResult(items={"out": [object()]}, tensors={"kept": (slots.keep(row, "kept", 0, torch.ones(2)),)})]

    def op_hold(self, rows: Any, slots: Any) -> Any:
        return [StepResult(items={"out": [sum(range(10**10))]}) for _ in rows]  # minutes in which no other thread runs

    def op_fly(self, rows: Any, slots: Any) -> Any:
        params = rows[0].payload.params
        self.diary.append(f"call {params['at']}")
        if "calls" in params:
            params["calls"](self)
        time.sleep(params.get("s", 0.0))
        kept = (slots.keep(rows[0], "out", 0, np.ones(2, np.float32)),) if params.get("keep") else ()
        return Flown(rows[0], self.diary, [StepResult(tensors={"out": kept})])

    def op_pid(self, rows: Any, slots: Any) -> Any:
        return [StepResult(items={"out": [os.getpid()]}) for _ in rows]

    def op_count(self, rows: Any, slots: Any) -> Any:
        return [StepResult(items={"out": list(slots.counts)}) for _ in rows]


def build(options: Mapping[str, Any], device: str) -> Toy:
    if "flag" in options and Path(options["flag"]).exists():
        kind = Path(options["flag"]).read_text()
        if kind == "checkpoint":
            raise CheckpointError("toy.safetensors: tensor 'w' is missing; download it again")
        if kind == "extra":
            raise MissingExtra("toy needs teeth: pip install teeth")
        if kind == "file":
            raise FileNotFoundError("weights.bin is not there")
        if kind == "die":
            print("the weights are cursed", flush=True)
            os._exit(7)
        if kind == "slow":
            time.sleep(60)
        if kind == "warn":
            warnings.warn("an extra tensor", CheckpointWarning, stacklevel=2)
    return Toy(options)


def specs(**options: Any) -> dict[str, ExpertSpec]:
    ops = {name: OpLimits(units=64, size=64) for name in OPS}
    return {"toy/toy": ExpertSpec(build="process_toys:build", ops=ops, options=options)}


def call(
    name: str, batch: int, op: str, *, values: Any = (), refs: Any = (), brought: Any = (), rows: int = 1, **params: Any
) -> RunBatch:
    payload = CallStep(0, {"in": tuple(values)}, {"in": tuple(refs)}, params)
    made = [Row(1, f"loop{i}", 1, 0, (), payload) for i in range(rows)]
    return RunBatch(name, batch, "toy/toy", op, made, tuple(brought))


def workers(mark: str = "") -> set[int]:
    """Worker processes with that in their command line; without it, those of this process. Others may run tests beside us."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().rstrip(b"\0").split(b"\0")[-1].decode(errors="replace")
            parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if command.startswith("omni worker") and (mark in command if mark else parent == os.getpid()):
            found.add(int(path.parent.name))
    return found


def shared() -> set[str]:
    """Shared memory with a name that could be ours."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("omni", "psm_"))}


class Desk:
    """An executor and everything that it reported."""

    def __init__(self, executor: Any) -> None:
        self.executor, self._batch = executor, 0
        self.reports: list[Any] = []
        self.up = executor.start(self.reports.append)

    def send(self, op: str, **given: Any) -> int:
        self._batch += 1
        self.executor.send(call(self.executor.name, self._batch, op, **given))
        return self._batch

    def wait(self, wanted: Any, seconds: float = 20.0) -> Report:
        """The first report that is wanted: of this batch, or of this type."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for report in list(self.reports):
                if report.__class__ is wanted or (isinstance(wanted, int) and getattr(report, "batch", None) == wanted):
                    return report
            time.sleep(0.002)
        raise AssertionError(f"no {wanted} among {self.reports}")

    def ask(self, op: str, **given: Any) -> Any:
        """What the op gave for the first row."""
        report = self.wait(self.send(op, **given))
        assert isinstance(report, Answer), report
        return report.results[0]


def program(op: str, **options: Any) -> Program:
    """One call of an op, with a number `s` as its parameter."""
    loop = OneShot(
        expert="toy",
        op=op,
        reads={"in": Slot(type="any")},
        ports={"out": Port(type="any")},
        defaults={"s": 0.0},
        ranges={"s": (0.0, 1000.0)},
    )
    spec = specs(**options)["toy/toy"]
    loops = {name: loop.model_copy(update={"op": name}) for name in OPS}
    made = Program(op, ModelCard(name="toy", experts={"toy": spec}, loops=loops))
    made.output("out", made.call(op, made.input("in")))
    return made
