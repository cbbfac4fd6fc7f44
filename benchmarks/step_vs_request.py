"""A service under load: steps by deadline against steps first come, stages and whole requests, on the same real experts.

SmolLM2 and hibari's voice, half the requests speaking, answers of 64 to 96 tokens. All policies get the same programs, questions,
seeds, lengths and arrivals, in one process. First all requests at once (saturation; the best of all policies is called the
capacity), then a Poisson process at 80 % of the capacity, then ours at 95 %, with and without the promise of no underrun. The
simulation is fitted on what ran until then and must tell how the run at 95 % went, whose requests it has not seen.

    python benchmarks/step_vs_request.py [--json] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from _load import Outcome, Request, Served, differing, requests, silence
from msgspec import Struct, field
from omni_runtime.programs.speak import speak

from omni_runtime import Handle, Runtime
from omni_runtime.errors import OmniError, Overloaded
from omni_runtime.work import Answer, RunBatch

OURS = "deadline"
POLICIES = (OURS, "stages", "requests", "first_come")
PEERS = ("stages", "requests")  # first_come has our steps, so it shows what the order alone is worth
PROGRAM = speak()
LOOK = 0.05  # seconds from one look at the queue of promises to the next


class OpUse(Struct):
    """What an op did in a run."""

    batches: int = 0
    units: int = 0
    seconds: float = 0.0


class Meter:
    """An observer that adds up what executors measured."""

    def __init__(self) -> None:
        self.ops: dict[tuple[str, str], OpUse] = {}
        self._flying: dict[tuple[str, int], RunBatch] = {}

    def see(self, now: float, inputs: Sequence[Any], said: Sequence[Any], commands: Sequence[Any]) -> None:
        for command in commands:
            if type(command) is RunBatch:
                self._flying[command.executor, command.batch] = command
        for report in inputs:
            if type(report) is Answer and (batch := self._flying.pop((report.executor, report.batch), None)) is not None:
                use = self.ops.setdefault((batch.expert, batch.op), OpUse())
                use.batches, use.units, use.seconds = use.batches + 1, use.units + len(batch.rows), use.seconds + report.seconds


class Measured(Struct):
    """A run and what its executors did."""

    name: str
    policy: str
    outcome: Outcome
    ops: dict[tuple[str, str], OpUse] = field(default_factory=dict)


class Client:
    """Sends requests when they are due and notes what comes of each. It sleeps in between: the cores belong to the runtime."""

    def __init__(self, runtime: Runtime, guarantee: str | None) -> None:
        self._runtime = runtime
        self._guarantee = guarantee
        self._watched: dict[int, tuple[Handle, Served, float]] = {}  # those that may wait for a promise

    def play(self, asked: Sequence[Request], span: float) -> Outcome:
        """
        Args:
            span: seconds in which they come; 0 sends all at once.
        """
        start = time.monotonic() + 0.02
        sent: list[tuple[Handle, Served, float, float]] = []
        for request in asked:
            due = start + request.at * span
            self._sleep(lambda due=due: time.monotonic() >= due, due)
            now = time.monotonic()
            extra = {"guarantee": self._guarantee} if self._guarantee and request.speaks else {}
            handle = self._runtime.submit(
                PROGRAM,
                messages=request.question,
                outputs=["text", "audio"] if request.speaks else ["text"],
                min_tokens=request.tokens,
                max_tokens=request.tokens,
                seed=request.seed,
                **extra,
            )
            served = Served("failed")
            sent.append((handle, served, due, now))
            if extra:
                self._watched[handle.id] = (handle, served, now)
        for handle, *_ in sent:
            self._sleep(lambda handle=handle: handle.done)
        for handle, served, due, now in sent:
            _note(handle, served, due, now)
        return Outcome(list(asked), [served for _, served, *_ in sent], max(s.ended for _, s, *_ in sent) - sent[0][3])

    def _sleep(self, over: Callable[[], bool], until: float = float("inf")) -> None:
        while not over():
            for key, (handle, served, since) in list(self._watched.items()):
                told = handle.waiting
                if told is not None:
                    served.told = told if served.told is None else served.told
                elif served.told is not None or handle.done:
                    served.waited = time.monotonic() - since if served.told is not None else None
                    del self._watched[key]
            time.sleep(max(0.0, min(LOOK, until - time.monotonic())))


def _note(handle: Handle, served: Served, due: float, now: float) -> None:
    late = now - due
    served.ended = now
    try:
        result = handle.result()
    except Overloaded:
        served.state = "refused"
        return
    except OmniError as error:
        print(f"  request {handle.id}: {error}")
        return
    times = result.timings
    served.state, served.total, served.ended, served.text = "done", late + times.total, now + times.total, result.text
    served.first_token = late + times.first["text"]
    if chunks := times.chunks.get("audio"):
        rate = result.sample_rates["audio"]
        served.first_sound = late + chunks[0][0]
        served.samples = sum(samples for _, samples in chunks)
        served.sound, served.silence = served.samples / rate, silence(chunks, rate)


class Bench:
    """One runtime per policy, that stays, and what was measured on them."""

    def __init__(self, args: argparse.Namespace, stack: ExitStack) -> None:
        self.args = args
        self.start = time.monotonic()
        self.runs: list[Measured] = []
        self.cut: list[str] = []
        self.yards: list[float] = []
        self.meters = {policy: Meter() for policy in args.policies}
        self.runtimes: dict[str, Runtime] = {}
        for policy, meter in self.meters.items():
            self.runtimes[policy] = stack.enter_context(
                Runtime(PROGRAM.cards.values(), threads=args.threads, prefix_cache=False, policy=policy, observers=[meter])
            )
            Client(self.runtimes[policy], None).play(requests(4, 0), 0.0)  # warm, and everybody has seen every op

    def run(self, name: str, policy: str, asked: list[Request], rate: float, guarantee: str | None = None) -> Measured | None:
        """A load at so many requests a second; 0 is all at once. None if the time does not suffice any more."""
        expected = len(asked) / min(rate or 9.0, self.throughput(policy) or 9.0) + 10.0
        spent = time.monotonic() - self.start
        if spent + expected > self.args.budget:
            print(f"cut: {name} of {policy}, {expected:.0f} s after {spent:.0f} of {self.args.budget:.0f} s", flush=True)
            self.cut.append(f"{name} {policy}")
            return None
        self.yards.append(yardstick())
        meter, runtime = self.meters[policy], self.runtimes[policy]
        meter.ops = {}
        outcome = Client(runtime, guarantee).play(asked, len(asked) / rate if rate else 0.0)
        late = time.monotonic() + 5.0
        while not runtime.idle:
            assert time.monotonic() < late, f"{name} of {policy}: all have ended, and the books are open"
            time.sleep(0.01)
        found = Measured(name, policy, outcome, meter.ops)
        self.runs.append(found)
        _tell(found, self.yards[-1])
        return found

    def of(self, name: str, policy: str) -> list[Outcome]:
        return [run.outcome for run in self.runs if (run.name, run.policy) == (name, policy)]

    def throughput(self, policy: str) -> float:
        """At saturation, over all rounds."""
        found = self.of("saturation", policy)
        return sum(len(o.done) for o in found) / sum(o.wall for o in found) if found else 0.0


def yardstick() -> float:
    """Seconds of a fixed piece of work, to tell a slow machine from a slow policy."""
    torch.manual_seed(0)
    weight_ab, x_na = torch.randn(1536, 576), torch.randn(16, 576)
    start = time.perf_counter()
    for _ in range(500):
        torch.nn.functional.linear(x_na, weight_ab)
    return time.perf_counter() - start


def _tell(run: Measured, yard: float) -> None:
    numbers = run.outcome.numbers()
    print(
        f"{run.name:<12} {run.policy:<10} {numbers['requests']:>4.0f} in {numbers['wall_s']:6.1f} s, {numbers['throughput']:5.3f}/s"
        f" | first sound {numbers['first_sound_p50_s']:6.2f} {numbers['first_sound_p90_s']:6.2f} {numbers['first_sound_p99_s']:6.2f}"
        f" | first token {numbers['first_token_p50_s']:5.2f} {numbers['first_token_p90_s']:5.2f} {numbers['first_token_p99_s']:5.2f}"
        f" | total {numbers['total_p50_s']:6.2f} {numbers['total_p90_s']:6.2f} {numbers['total_p99_s']:6.2f}"
        f" | silence {numbers['silence']:.4f}, {numbers['gaps']:.0f} with gaps, good {numbers['goodput']:.3f}/s"
        f" | refused {numbers['refused']:.0f}, waited {numbers['waited']:.0f} for {numbers['waited_mean_s']:.1f} s"
        f" (told {numbers['wait_error_s']:.1f} off) | yardstick {yard * 1e3:.0f} ms"
    )
    busy = sum(use.seconds for use in run.ops.values())
    ops = [
        f"{expert.split('/')[1]} {use.seconds:.1f} s in {use.batches} of {use.units / use.batches:.1f}"
        for (expert, _), use in sorted(run.ops.items(), key=lambda kv: -kv[1].seconds)
    ]
    print(f"{'':<23} executors {busy:.1f} s of {numbers['wall_s']:.1f}: {', '.join(ops)}", flush=True)


def measure(bench: Bench) -> dict[str, float]:
    """The plan, in the order of what is needed first. Returns what goes into the JSON."""
    args = bench.args
    seen, fresh = requests(args.requests, args.seed), requests(args.requests, args.seed + 1)
    for policies in _rounds(args):
        for policy in policies:
            bench.run("saturation", policy, requests(args.saturation, args.seed), 0.0)
    rates = {policy: bench.throughput(policy) for policy in args.policies}
    capacity = max(rates.values())
    found = {"capacity": capacity, **{f"throughput_{policy}": rate for policy, rate in rates.items()}}
    others = [rate for policy, rate in rates.items() if policy != OURS]
    if others and OURS in rates:
        found["throughput_ratio_sat"] = rates[OURS] / max(others)
    first = {}
    for policy in (*(p for p in args.policies if p != "first_come"), "95", "first_come"):
        if policy == "95":
            found |= _promises(bench, fresh, 0.95 * capacity)
        elif policy in args.policies and (run := bench.run("80 %", policy, seen, 0.8 * capacity)) is not None:
            first[policy] = run.outcome.numbers()["first_sound_p90_s"]
    if OURS in first and all(peer in first for peer in PEERS):
        found["p90_first_sound_ratio_80"] = first[OURS] / min(first[peer] for peer in PEERS)
    if OURS in first and "first_come" in first:
        found["p90_first_sound_ratio_80_first_come"] = first[OURS] / first["first_come"]
    return found


def _rounds(args: argparse.Namespace) -> Iterator[Sequence[str]]:
    """There and back again, so that a machine that slows down steadily slows everybody alike."""
    for at in range(args.rounds):
        yield args.policies if at % 2 == 0 else args.policies[::-1]


def _promises(bench: Bench, asked: list[Request], rate: float) -> dict[str, float]:
    found: dict[str, float] = {}
    if OURS not in bench.args.policies:
        return found
    kept = bench.run("95 % kept", OURS, asked, rate, guarantee="no-underrun")
    free = bench.run("95 % free", OURS, asked, rate)
    if kept is not None:
        a = kept.outcome
        found |= {"underrun_fraction_95": a.silent, "admitted_fraction_95": a.admitted, "wait_error_95_s": a.off}
        if free is not None:
            b = free.outcome
            found["goodput_ratio_95"] = a.goodput / b.throughput  # only ours must be free of gaps
            found["goodput_ratio_95_good"] = a.goodput / b.goodput if b.goodput else float("inf")
            found["completed_ratio_95"] = a.throughput / b.throughput
            found["underrun_fraction_95_free"] = b.silent
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="few requests, to see that it runs; the figures mean little")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--saturation", type=int, default=50, help="requests of a round of saturation")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of saturation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=890.0, help="seconds; a run that would pass them is cut, and said to be")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.quick:
        args.requests, args.saturation, args.rounds = 12, 12, 1
    with ExitStack() as stack:
        bench = Bench(args, stack)
        found = measure(bench)
    wall = time.monotonic() - bench.start
    other = differing(run.outcome for run in bench.runs)
    answers = sum(len(run.outcome.done) for run in bench.runs)
    print(f"{wall:.0f} s in all; {other} of {answers} texts are not what the same request got first")
    for name, value in found.items():
        print(f"{name:<40} {value:.4f}")
    if args.json:
        numbers = found | {
            "requests": args.requests, "saturation_requests": args.saturation * args.rounds, "wall_s": wall, "cut_runs": len(bench.cut),
            "texts_differ": other, "answers": answers, "seed": args.seed, "threads": args.threads,
            "yardstick_slowest": max(bench.yards) / min(bench.yards),
        }  # fmt: skip
        for run in bench.runs:
            name = f"{run.policy}_{run.name.replace(' %', '').replace(' ', '_')}"
            numbers |= {f"{name}_{key}": value for key, value in run.outcome.numbers().items()}
        print(json.dumps({name: round(value, 4) for name, value in numbers.items()}))


if __name__ == "__main__":
    main()
