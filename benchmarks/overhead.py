"""Host cost of a WorkUnit: the core with real loops, detokenisation, channels and emits, on executors that answer at once.

Only `Core.feed` is timed: everything between an executor's answer and its next batch. Batches of 64; the executors' answers
are made outside the clock. Beside it, the same as a multiple of one msgspec record plus one heap push and pop, for machines
whose clocks differ, and the number of Python calls a unit, which is the same everywhere. Last, what a batch's
way to an executor and back costs: `_hop.py`.

    python benchmarks/overhead.py [--json] [--hop]
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import statistics
import sys
import time
from collections import deque
from typing import Any

from _hop import hops
from msgspec import Struct

from omni_runtime.card import ArDecode, AudioDecode, ExpertSpec, ModelCard, OpLimits, Slot, batch_limits
from omni_runtime.core import Core
from omni_runtime.program import Program
from omni_runtime.request import resolve
from omni_runtime.work import Answer, ArStep, Chunk, End, ExecutorUp, RunBatch, StepResult, TensorRef

PROMPT = list(range(1000, 1008))
BATCH = 64


def _expert(**ops: int) -> ExpertSpec:
    return ExpertSpec(
        build="none:none", ops={op: OpLimits(units=BATCH, size=size) for op, size in ops.items()}, bytes_per_position=1
    )


CARD = ModelCard(
    name="bench",
    experts={"llm": _expert(forward=2048), "talker": _expert(forward=2048), "voice": _expert(decode_audio=2048)},
    loops={
        "think": ArDecode(expert="llm", context=4096, stop_tokens=(2,)),
        "talk": ArDecode(
            expert="talker",
            context=4096,
            stop_tokens=(2,),
            reads={"prompt": Slot(type="token"), "conditioning": Slot(type="hidden", mode="stream")},
        ),
        "speak": AudioDecode(
            expert="voice", hop=1, ahead=1, sample_rate=50, state_blocks=1, reads={"frames": Slot(type="token", mode="stream")}
        ),
    },
)


def text_program() -> Program:
    p = Program("text", CARD)
    p.output("text", p.loop("think", prompt=p.input("prompt")).text)
    return p


def speech_program() -> Program:
    """Thinker, talker on its hidden rows, vocoder on the talker's codes."""
    p = Program("speech", CARD)
    thought = p.loop("think", prompt=p.input("prompt"))
    p.output("text", thought.text)
    talk = p.loop("talk", prompt=p.input("prompt"), conditioning=p.handoff(thought.hidden, capacity=8))
    p.output("audio", p.loop("speak", frames=p.handoff(talk.tokens, capacity=8)).samples)
    return p


def answer(batch: RunBatch) -> Answer:
    """What a device would say, made up."""
    results = []
    for row in batch.rows:
        p = row.payload
        if isinstance(p, ArStep):
            refs = [TensorRef(batch.executor, row.run, row.loop, "hidden", p.start + i) for i in range(len(p.tokens))]
            tensors = {"hidden": tuple(refs)} if p.hidden else {}
            results.append(StepResult(1005, b" word", {}, tensors) if p.index >= 0 else StepResult(tensors=tensors))
        else:
            results.append(StepResult(items={"samples": (0.0,) * row.size}))
    return Answer(batch.executor, batch.batch, results, 0.02 + 0.001 * len(results))


class Load:
    """So many live requests, started and past their prefills."""

    def __init__(self, program: Program, live: int, tokens: int, wishes: bool = False) -> None:
        self.core = Core(batch_limits(CARD), max_runs=1 << 30)
        self.flying: deque[RunBatch] = deque()
        self.chunks = 0
        for name, experts in (("gpu0#1", ("bench/llm", "bench/talker")), ("gpu1#1", ("bench/voice",))):
            self.feed(ExecutorUp(name, experts, dict.fromkeys(experts, 1 << 20)))
        for run in range(1, live + 1):
            given: dict[str, Any] = {"prompt": PROMPT, "think": {"max_tokens": tokens}}
            if "talk" in program.nodes:
                given["talk"] = {"max_tokens": tokens}
            fields: dict[str, Any] = {}
            if wishes:  # everything that a request can ask for, four tenants with a share each
                fields = {"tenant": "abcd"[run % 4], "deadline_s": 600.0, "first_output_s": 1.0}
            self.feed(resolve(run, program, run, given, **fields)[1])
        units = 0
        while units < 3 * live:
            units += self.step()[0]

    def feed(self, *items: Any) -> float:
        start = time.perf_counter()
        commands = self.core.feed(0.0, *items)
        spent = time.perf_counter() - start
        for c in commands:
            if type(c) is RunBatch:
                self.flying.append(c)
            elif type(c) is Chunk:
                self.chunks += 1
            elif type(c) is End:
                raise AssertionError(f"a request ended before the measurement did: {c}")
        return spent

    def step(self) -> tuple[int, float]:
        """Answers a batch; returns its units and the seconds that the core took."""
        batch = self.flying.popleft()
        return len(batch.rows), self.feed(answer(batch))


def measure(program: Program, live: int, units: int, wishes: bool = False) -> tuple[float, float]:
    """(µs a unit, units a batch) over about so many units, in steady state."""
    per_run = units * 2 // live + 16
    load = Load(program, live, per_run, wishes)
    gc.collect()
    done = batches = 0
    spent = 0.0
    while done < units and load.flying:
        n, seconds = load.step()
        done, spent, batches = done + n, spent + seconds, batches + 1
    return spent / done * 1e6, done / batches


def calls(program: Program, live: int = 128, units: int = 4096) -> tuple[float, float]:
    """(Python, C) function calls a unit: the same on every machine."""
    load = Load(program, live, units * 2 // live + 16)
    count = {"call": 0, "c_call": 0}

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event in count:
            count[event] += 1

    done = 0
    gc.disable()  # its callbacks, which other modules may have hung in, are not ours
    while done < units:
        batch = load.flying.popleft()
        report = answer(batch)
        sys.setprofile(profile)
        commands = load.core.feed(0.0, report)
        sys.setprofile(None)
        load.flying.extend(c for c in commands if type(c) is RunBatch)
        done += len(batch.rows)
    gc.enable()
    return count["call"] / done, count["c_call"] / done


class Record(Struct):
    """As wide as a WorkUnit."""

    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    g: int


def yardstick() -> float:
    """µs of one msgspec record and one push and pop on a heap of 10,000."""
    heap = [(float(i), i) for i in range(10_000)]
    best = 1e9
    for _ in range(7):
        start = time.perf_counter()
        for i in range(20_000):
            Record(1, 2, 3, 4, 5, 6, i)
            heapq.heappush(heap, (10_000.0 + i, i))
            heapq.heappop(heap)
        best = min(best, (time.perf_counter() - start) / 20_000)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hop", action="store_true", help="only the way to an executor and back")
    args = parser.parse_args()
    if args.hop:
        hopped = hops()
        if args.json:
            print(json.dumps(hopped))
        return
    text, speech = text_program(), speech_program()
    cases = {
        "us_per_unit_100": (text, 100, 8_000),
        "us_per_unit_1000": (text, 1_000, 16_000),
        "us_per_unit_10000": (text, 10_000, 40_000),
        "us_per_unit_speech_1000": (speech, 1_000, 24_000),
        "us_per_unit_wishes_1000": (text, 1_000, 16_000, True),
        "us_per_unit_speech_wishes_1000": (speech, 1_000, 24_000, True),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    sizes: dict[str, float] = {}
    sticks = []
    for _ in range(args.repeats):  # interleaved: a slow spell of the machine meets every case
        sticks.append(yardstick())
        for name, case in cases.items():
            cost, sizes[name] = measure(*case)
            found[name].append(cost)
    stick = statistics.median(sticks)
    numbers: dict[str, float] = {name: round(statistics.median(costs), 2) for name, costs in found.items()}
    print(f"{'case':<26} {'µs a unit':>10} {'best':>7} {'x yardstick':>12} {'units a batch':>14}")
    for name, costs in found.items():
        print(f"{name:<26} {numbers[name]:>10.1f} {min(costs):>7.1f} {numbers[name] / stick:>12.1f} {sizes[name]:>14.1f}")
        numbers[name.replace("us_per_unit", "yardsticks_per_unit")] = round(numbers[name] / stick, 2)
    python_calls, c_calls = calls(text)
    speech_calls, _ = calls(speech)
    print(f"yardstick (record + heap push and pop): {stick:.2f} µs")
    print(f"calls a unit: text {python_calls:.1f} Python and {c_calls:.1f} C, speech {speech_calls:.1f} Python")
    numbers |= {
        "calls_per_unit": round(python_calls, 2),
        "c_calls_per_unit": round(c_calls, 2),
        "calls_per_unit_speech": round(speech_calls, 2),
        "yardstick_us": round(stick, 3),
        "batch": BATCH,
        "gc_enabled": int(gc.isenabled()),
    }
    numbers |= hops()
    if args.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
