"""`omni calibrate`: real requests, a few at a time and many at a time, so that prices and paces are known for a simulation."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from omni_runtime import costs_file
from omni_runtime.card import ModelCard
from omni_runtime.errors import RequestError
from omni_runtime.executors.lineup import Kind
from omni_runtime.find import find
from omni_runtime.program import Program
from omni_runtime.replay.log import Recording
from omni_runtime.runtime import Runtime
from omni_runtime.scheduler.cost import Costs
from omni_runtime.simulate import workload
from omni_runtime.simulate.generate import lengths
from omni_runtime.simulate.record import WorkloadRecorder

QUESTIONS = (
    "What is the capital of France, and what is it famous for?",
    "Why is the sky blue during the day and red in the evening?",
    "Tell me a short story about a fox that wanted to learn how to swim across the river.",
    "How do I make a good cup of tea?",
    "Explain in simple words what a scheduler does, and why anybody should care about it at all.",
    "Name three animals that live in the desert, and say for each of them how it finds water there.",
    "What should I pack for a trip?",
    "Describe the way from a grain of wheat to a loaf of bread, step by step, for a child of seven years.",
)


class Trial(Struct, frozen=True):
    """What `omni calibrate` is asked for; see its options."""

    program: str = "speak"
    out: Path = Path("costs.json")
    concurrency: tuple[int, ...] = (1, 4, 16, 32)
    requests: int = 16  # at each concurrency, and never fewer than that
    tokens: str = "24-72"
    seed: int = 0
    threads: int | None = None
    trace: Path | None = None
    record: Path | None = None
    redact: bool = False
    json: bool = False
    executor: Kind = "thread"
    batch_invariant: bool = False
    device: str = "cpu"


def calibrate(trial: Trial) -> None:
    """Runs the requests and writes what was learned, added to what the file already knows of other ops.

    Raises:
        OmniError: an option is wrong, a model cannot be loaded, or a request failed.
    """
    program = find(trial.program)
    if isinstance(program, ModelCard):
        raise RequestError(f"program={trial.program!r} is a card; give a program")
    for path in (trial.out, trial.trace):
        if path is not None and not path.resolve().parent.is_dir():
            raise RequestError(f"{path}: its folder does not exist; make it first")
    if not trial.concurrency or min(trial.concurrency) < 1:
        raise RequestError(f"concurrency={trial.concurrency}: whole numbers from 1 on are needed, such as 1,4,16,32")
    if trial.redact and trial.record is None:
        raise RequestError("redact: only a log is redacted; add --record FILE")
    drawn = lengths(trial.tokens, "tokens")
    recorder = WorkloadRecorder({program.name: trial.program})
    began = time.perf_counter()
    log = Recording(trial.record, trial.redact) if trial.record is not None else None
    cards = list(program.cards.values())
    how: Any = {"threads": trial.threads, "executor": trial.executor, "batch_invariant": trial.batch_invariant}
    how["device"] = trial.device
    with Runtime(cards, observers=[recorder], record=log, **how) as runtime:
        dice = np.random.default_rng([trial.seed, 11])
        number = 0
        for at_once in trial.concurrency:
            count = max(trial.requests if at_once > 1 else trial.requests // 4, at_once)
            asks = [asked(program, number + i, drawn.draw(dice)) for i in range(count)]
            number += count
            with ThreadPoolExecutor(at_once) as lanes:
                for _ in lanes.map(lambda given: runtime.submit(program, seed=trial.seed, **given).result(), asks):
                    pass
        learned = runtime.costs()
    costs = costs_file.read(trial.out) if trial.out.exists() else Costs()
    costs.load(learned)
    costs_file.write(trial.out, costs)
    if trial.trace is not None:
        workload.write(trial.trace, recorder.workload())
    told = {f"{expert}.{op}": model for (expert, op), model in sorted(costs.models.items()) if model.batches}
    if trial.json:
        print(json.dumps({name: _facts(model) for name, model in told.items()} | {"gap_s": costs.gap, "requests": number}))
        return
    print(f"{number} requests in {time.perf_counter() - began:.0f} s; prices and paces are in {trial.out}")
    for name, model in told.items():
        print(f"{name:<32} {model.mean * 1e3:7.1f} ms a batch, {model.batches} batches, usual error {model.spread:.0%}")


def _facts(model: Any) -> dict[str, Any]:
    return {"mean_s": model.mean, "batches": model.batches, "spread": model.spread, "theta": list(model.theta)}


def asked(program: Program, number: int, tokens: int) -> dict[str, Any]:
    """Inputs and lengths of one request: a question of its own for each, and every text input the same.

    Raises:
        RequestError: the program reads something that no question can stand for.
    """
    question = f"{QUESTIONS[number % len(QUESTIONS)]} (Question {number + 1}.)"
    given: dict[str, Any] = {}
    plan = program.plan(None)
    for step in plan.steps:
        for slot, edge, _ in step.reads:
            if edge.port.node:
                continue
            kind = step.spec.reads[slot].type
            if kind not in ("messages", "text", "prompt", "token"):
                raise RequestError(f"input {edge.port.port} is of type {kind!r}; give a program that reads text or token ids")
            given[edge.port.port] = [1 + (number + i) % 97 for i in range(48)] if kind == "token" else question
        if step.spec.kind == "ar_decode":
            mine: Mapping[str, Any] = {"max_tokens": tokens, "ignore_eos": True}
            given[step.name] = dict(mine)
    return given
