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
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from _load import HEADER, Outcome, Request, Served, differing, requests, row, silence
from msgspec import Struct
from omni_runtime.programs.speak import speak

from omni_runtime import Handle, Runtime
from omni_runtime.errors import OmniError, Overloaded
from omni_runtime.scheduler.cost import Costs
from omni_runtime.simulate.replay import Replay
from omni_runtime.simulate.workload import Arrival
from omni_runtime.work import Answer, RunBatch

OURS = "deadline"
PEERS = ("stages", "requests")
OTHERS = (*PEERS, "first_come")  # the last has our steps, so it shows what the order alone is worth
PROGRAM = speak()
ROUND = ("first_come", OURS, *PEERS)  # of saturation: who goes first meets a process that has never been so full
SOME = 70  # per cent of the requests, where all would pass the fifteen minutes
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
    """A run, the seconds in which its requests came, and what its executors did."""

    name: str
    policy: str
    outcome: Outcome
    span: float
    ops: dict[tuple[str, str], OpUse]


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
    served.prompt_tokens = result.usage["think"]["prompt_tokens"]
    served.first_token = late + times.first["text"]
    if chunks := times.chunks.get("audio"):
        rate = result.sample_rates["audio"]
        served.first_sound = late + chunks[0][0]
        served.sound, served.silence = sum(samples for _, samples in chunks) / rate, silence(chunks, rate)


class Bench:
    """One runtime per policy, that stays, and what was measured on them."""

    def __init__(self, args: argparse.Namespace, stack: ExitStack) -> None:
        self.args = args
        self.start = time.monotonic()
        self.runs: list[Measured] = []
        self.cut: list[str] = []
        self.yards: list[float] = []
        self.taken: list[float] = []  # cores that other processes used, on average over a run
        self.fitted: dict[str, Any] | None = None  # what ours had learned after its run at 80 %
        self.meters = {policy: Meter() for policy in (OURS, *args.against)}
        self.runtimes: dict[str, Runtime] = {}
        for policy, meter in self.meters.items():
            self.runtimes[policy] = stack.enter_context(
                Runtime(PROGRAM.cards.values(), threads=args.threads, prefix_cache=False, policy=policy, observers=[meter])
            )
            Client(self.runtimes[policy], None).play(requests(4, 0), 0.0)  # warm, and everybody has seen every op

    def run(
        self, name: str, policy: str, asked: list[Request], rate: float = 0.0, guarantee: str | None = None
    ) -> Outcome | None:
        """A load at so many requests a second; 0 is all at once. None if the time does not suffice any more."""
        expected = len(asked) / min(rate or 9.0, self.throughput(policy) or 2.0) + 8.0 * (rate > 0)
        spent = time.monotonic() - self.start
        if spent + expected > self.args.budget:
            print(f"cut: {name} {policy}, about {expected:.0f} s after {spent:.0f} of {self.args.budget:.0f} s", flush=True)
            self.cut.append(f"{name} {policy}")
            return None
        yard = yardstick()
        self.yards.append(yard)
        meter, runtime = self.meters[policy], self.runtimes[policy]
        meter.ops = {}
        span = len(asked) / rate if rate else 0.0
        before = others()
        outcome = Client(runtime, guarantee).play(asked, span)
        self.taken.append((others() - before) / outcome.wall)
        late = time.monotonic() + 5.0
        while not runtime.idle:
            assert time.monotonic() < late, f"{name} {policy}: all have ended, and the books are open"
            time.sleep(0.01)
        self.runs.append(Measured(name, policy, outcome, span, meter.ops))
        print(row(name, policy, outcome))
        taken = f"other processes {self.taken[-1]:.2f} cores, yardstick {yard * 1e3:.0f} ms"
        print(f"{'':<23} {_told(meter.ops, outcome.wall)}; {taken}", flush=True)
        return outcome

    def of(self, name: str, policy: str) -> Measured | None:
        return next((run for run in self.runs if (run.name, run.policy) == (name, policy)), None)

    def throughput(self, policy: str) -> float:
        """At saturation; 0 if that is not known."""
        run = self.of("saturation", policy)
        return run.outcome.throughput if run is not None else 0.0

    def ratios(self) -> list[float]:
        """Of each round of saturation: our throughput over the best of all others."""
        found = []
        for name in ("saturation", "saturation B"):
            theirs = [run.outcome.throughput for run in self.runs if run.name == name and run.policy != OURS]
            if (ours := self.of(name, OURS)) is not None and theirs:
                found.append(ours.outcome.throughput / max(theirs))
        return found


def others() -> float:
    """CPU seconds that other processes of this machine have used; 0 where that cannot be read."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system = (int(x) for x in file.readline().split()[1:4])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()


def _told(ops: dict[tuple[str, str], OpUse], wall: float) -> str:
    busy = sum(use.seconds for use in ops.values())
    each = [
        f"{expert.split('/')[1]} {use.seconds:.1f} s in {use.batches} batches of {use.units / use.batches:.1f}"
        for (expert, _), use in sorted(ops.items(), key=lambda kv: -kv[1].seconds)
    ]
    return f"executors busy {busy / wall:.3f} of the time: {', '.join(each)}"


def yardstick() -> float:
    """Seconds of a fixed piece of work, to tell a slow machine from a slow policy."""
    torch.manual_seed(0)
    weight_ab, x_na = torch.randn(1536, 576), torch.randn(16, 576)
    start = time.perf_counter()
    for _ in range(500):
        torch.nn.functional.linear(x_na, weight_ab)
    return time.perf_counter() - start


def measure(bench: Bench) -> dict[str, float]:
    """The plan, in the order of what is needed first. Returns what goes into the JSON."""
    args = bench.args
    seen, fresh = requests(args.requests, args.seed), requests(args.requests, args.seed + 1)
    policies = sorted((OURS, *args.against), key=ROUND.index)
    for policy in policies:
        bench.run("saturation", policy, seen[: args.saturation])
    rates = {policy: bench.throughput(policy) for policy in policies}
    capacity = max(rates.values())
    found = {"capacity": capacity, **{f"throughput_{policy}": rate for policy, rate in rates.items()}}
    first: dict[str, float] = {}
    third = requests(SOME * args.requests // 100, args.seed + 2)

    def at_80(*policies: str) -> None:
        for policy in policies:
            if (run := bench.run("80 %", policy, seen, 0.8 * capacity)) is not None:
                first[policy] = run.numbers()["first_sound_p90_s"]

    at_80(OURS)
    bench.fitted = bench.runtimes[OURS].costs()
    bench.run("65 %", OURS, third, 0.65 * capacity)
    at_80(*(peer for peer in PEERS if peer in args.against))
    found |= promises(bench, fresh, 0.95 * capacity)
    at_80(*(other for other in args.against if other not in PEERS))
    best = max(args.against, key=rates.__getitem__)
    for policy in (OURS, best):  # the other way round, so that a machine that slows down steadily hurts both alike
        bench.run("saturation B", policy, fresh[: SOME * args.saturation // 100])
    if ratios := bench.ratios():
        found["throughput_ratio_sat"] = statistics.median(ratios)
        found |= {f"throughput_ratio_sat_{at}": ratio for at, ratio in enumerate(ratios, 1)}
    if {OURS, *PEERS} <= set(first):
        found["p90_first_sound_ratio_80"] = first[OURS] / min(first[peer] for peer in PEERS)
    if {OURS, "first_come"} <= set(first):
        found["p90_first_sound_ratio_80_first_come"] = first[OURS] / first["first_come"]
    return found | simulated(bench)


def promises(bench: Bench, asked: list[Request], rate: float) -> dict[str, float]:
    """At 95 % with and without the promise."""
    found: dict[str, float] = {}
    kept = bench.run("95 % kept", OURS, asked, rate, guarantee="no-underrun")
    free = bench.run("95 % free", OURS, asked, rate)
    if kept is not None:
        found |= {"underrun_fraction_95": kept.silent, "admitted_fraction_95": kept.admitted, "wait_error_95_s": kept.off}
    if kept is not None and free is not None:
        found |= {
            "goodput_ratio_95": kept.goodput / free.throughput,  # only ours must be free of gaps
            "goodput_ratio_95_good": kept.goodput / max(free.goodput, 1e-9),
            "completed_ratio_95": kept.throughput / free.throughput,
            "underrun_fraction_95_free": free.silent,
        }
    return found


def simulated(bench: Bench) -> dict[str, float]:
    """How far off the simulation is, fitted after our run at 80 %, on requests that it has not seen: at 65 %, and at 95 %, where
    a few per cent of capacity are tens of per cent of waiting."""
    found: dict[str, float] = {}
    for name, tail in (("65 %", ""), ("95 % free", "_95")):
        run = bench.of(name, OURS)
        if run is None or bench.fitted is None:
            continue
        costs = Costs()
        costs.load(bench.fitted)
        told = simulate(costs, run.outcome, run.span)
        print(f"{row(name, 'simulated', told)}", flush=True)
        said, came = told.numbers(), run.outcome.numbers()
        for error, number in (
            ("throughput", "throughput"),
            ("first_sound_p50", "first_sound_p50_s"),
            ("total_p50", "total_p50_s"),
        ):
            found[f"sim_error_{error}{tail}"] = abs(said[number] / came[number] - 1.0)
        found[f"sim_error_p50{tail}"] = max(found[f"sim_error_first_sound_p50{tail}"], found[f"sim_error_total_p50{tail}"])
    return found


def simulate(costs: Costs, real: Outcome, span: float) -> Outcome:
    """The same requests on no device: told when they come, what they ask for, and how many tokens go in and come out."""
    arrivals = [
        Arrival(
            at=request.at * span,
            program="speak",
            outputs=("text", "audio") if request.speaks else ("text",),
            characters=len(request.question),
            prompt_tokens=served.prompt_tokens or None,
            tokens=request.tokens,
        )
        for request, served in zip(real.asked, real.served, strict=True)
    ]
    heard = Replay(list(PROGRAM.cards.values()), costs, policy=OURS).play(arrivals)
    served = []
    for arrival, h in zip(arrivals, heard, strict=True):
        one = Served("done" if h.reason == "done" else "failed", ended=h.ended or arrival.at)
        one.total = one.ended - arrival.at
        one.first_token = None if h.first_token is None else h.first_token - arrival.at
        one.first_sound = None if h.first_sound is None else h.first_sound - arrival.at
        one.sound, one.silence = h.sound, h.silence
        served.append(one)
    return Outcome(real.asked, served, max(s.ended for s in served) - arrivals[0].at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="few requests, to see that it runs; the figures mean little")
    parser.add_argument("--against", nargs="+", choices=OTHERS, default=OTHERS)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--saturation", type=int, default=100, help="requests that come at once; at most --requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=890.0, help="seconds; a run that would pass them is cut, and said to be")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.quick:
        args.requests = args.saturation = 12
    print(HEADER)
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
            "requests": args.requests, "saturation_requests": args.saturation, "wall_s": wall, "cut_runs": len(bench.cut),
            "texts_differ": other, "answers": answers, "seed": args.seed, "threads": args.threads,
            "yardstick_slowest": max(bench.yards) / min(bench.yards), "other_processes_cores": max(bench.taken),
        }  # fmt: skip
        for run in bench.runs:
            name = f"{run.policy}_{run.name.replace(' %', '').replace(' ', '_')}"
            numbers |= {f"{name}_{key}": value for key, value in run.outcome.numbers().items()}
        print(json.dumps({name: round(value, 4) for name, value in numbers.items()}))


if __name__ == "__main__":
    main()
