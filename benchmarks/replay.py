"""What recording costs a WorkUnit, how large a log is, and how fast it is replayed.

The programs of `overhead.py` (text; thinker, talker, vocoder) are played once. What the core was fed is then fed
again, by turns without an observer, with one that does nothing, and with a recorder into a file. The least of five counts.

    python benchmarks/replay.py [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from overhead import CARD, speech_program, text_program

from omni_runtime.card import batch_limits
from omni_runtime.core import Core
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.program import Program
from omni_runtime.replay import Recording, RecordLog, play
from omni_runtime.sim import Simulation

History = list[tuple[float, tuple[Any, ...]]]


class Kept:
    """Keeps what a core is fed."""

    def __init__(self) -> None:
        self.history: History = []

    def see(self, now: float, inputs: Sequence[Any], said: Sequence[Any], commands: Sequence[Any]) -> None:
        self.history.append((now, tuple(inputs)))


class Nobody:
    """Looks on and does nothing."""

    def see(self, now: float, inputs: Sequence[Any], said: Sequence[Any], commands: Sequence[Any]) -> None:
        pass


def play_once(program: Program, live: int, tokens: int) -> tuple[History, int]:
    kept = Kept()
    sim = Simulation(SimulatedExecutor("x#1", CARD, stops=0), cards=(CARD,), observers=[kept])
    for i in range(live):
        params = {step.name: {"max_tokens": tokens} for step in program.plan(None).steps if step.spec.kind == "ar_decode"}
        sim.submit(program, seed=i, prompt=[1000 + (i + j) % 90 for j in range(8)], **params)
    sim.run()
    return kept.history, sim.units


def feed(history: History, watch: Callable[[Core], Any] | None) -> float:
    core = Core(batch_limits(CARD))
    log = watch(core) if watch is not None else None
    gc.collect()
    began = time.process_time()
    for now, inputs in history:
        core.feed(now, *inputs)
    seconds = time.process_time() - began
    if isinstance(log, RecordLog):
        log.close()
    return seconds


def measure(name: str, program: Program, live: int, tokens: int, folder: Path) -> dict[str, float]:
    history, units = play_once(program, live, tokens)
    path = folder / "log.jsonl"
    ways: dict[str, Callable[[Core], Any] | None] = {
        "bare": None,
        "looked_at": lambda core: core.observers.append(Nobody()),
        "recorded": lambda core: RecordLog(Recording(path), core, [CARD]),
        "redacted": lambda core: RecordLog(Recording(path, redact=True), core, [CARD]),
    }
    best = dict.fromkeys(ways, float("inf"))
    sizes = {}
    for _ in range(5):
        for way, watch in ways.items():
            best[way] = min(best[way], feed(history, watch))
            sizes[way] = path.stat().st_size if path.exists() else 0
    began = time.process_time()
    played = play(path)
    again = time.process_time() - began
    played.check()
    us = {way: seconds / units * 1e6 for way, seconds in best.items()}
    found = {
        "units": units,
        "feeds": len(history),
        "core_us": us["bare"],
        "looking_us": us["looked_at"] - us["bare"],
        "recording_us": us["recorded"] - us["bare"],
        "redacting_us": us["redacted"] - us["bare"],
        "bytes": sizes["recorded"] / units,
        "replaying_us": again / units * 1e6,
    }
    print(
        f"{name:<32} {units:>7} units {len(history):>6} feeds: core {found['core_us']:5.1f} us a unit, "
        f"recording +{found['recording_us']:.1f} (an observer +{found['looking_us']:.1f}), "
        f"redacted +{found['redacting_us']:.1f}; {found['bytes']:.0f} bytes a unit; replay {found['replaying_us']:.1f} us a unit"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, program, live, tokens in (
            ("text, 64 live", text_program(), 64, 300),
            ("text, 1 live", text_program(), 1, 4_000),
            ("thinker, talker, vocoder, 64", speech_program(), 64, 100),
        ):
            found[name] = measure(name, program, live, tokens, Path(folder))
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
