"""The lines of the live view: what every loop does now, how fast it is, and how long it will take. Needs rich."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from omni_runtime.observe.record import RunFact
from omni_runtime.observe.recorder import LoopNow, Recorder, RunNow

WINDOW = 3.0  # seconds that a rate is taken over
SHOWN = 12  # loops that have a line; of more, those that are not done come first
STATES = {"input": "waits for {}", "reader": "held back by {}", "memory": "waits for memory", "ready": "queued", "runs": "runs"}


class Rates:
    """Tokens a second over the last moments, by loop of a run: a slow start is soon forgotten."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], deque[tuple[float, int]]] = {}

    def of(self, run: int, loop: LoopNow, now: float) -> float | None:
        """None until two tokens are there."""
        seen = self._seen.setdefault((run, loop.name), deque())
        if loop.drawn and (not seen or loop.drawn != seen[-1][1]):
            seen.append((loop.moved, loop.drawn))
        while len(seen) > 2 and seen[0][0] < now - WINDOW:
            seen.popleft()
        if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
            return None
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])

    def keep(self, runs: set[int]) -> None:
        """Forgets all others."""
        for key in [key for key in self._seen if key[0] not in runs]:
            del self._seen[key]


class Status:
    """Made anew of what a recorder knows whenever it is asked.

    Args:
        recorder: asked, never changed.
        clock: the one that the core is fed with.
    """

    def __init__(self, recorder: Recorder, clock: Callable[[], float] = time.monotonic) -> None:
        self.recorder = recorder
        self.clock = clock
        self.rates = Rates()
        self.spinner = Spinner("dots", style="cyan")

    def lines(self) -> RenderableType:
        """A line a loop, and one that sums up."""
        runs = self.recorder.live()
        now = self.clock()
        self.rates.keep({run.fact.id for run in runs})
        loops = [(run, loop) for run in runs for loop in run.loops]
        if len(loops) > SHOWN:
            loops = sorted(loops, key=lambda pair: pair[1].state == "done")[:SHOWN]
        table = Table.grid(padding=(0, 2, 0, 0))
        for style in ("", "bold", "", "dim", ""):
            table.add_column(style=style, no_wrap=True, overflow="ellipsis")
        for run, loop in loops:
            table.add_row(*self._row(run, loop, now, f"{run.fact.label or run.fact.id} " if len(runs) > 1 else ""))
        return Group(Rule(style="dim"), table, self._sum(runs, now))

    def _row(self, run: RunNow, loop: LoopNow, now: float, whose: str) -> tuple[RenderableType, ...]:
        over = loop.state == "done"
        mark: RenderableType = self.spinner if loop.state == "runs" else Text("✓" if over else "·", "green" if over else "dim")
        doing = "done" if over else STATES[loop.state].format(", ".join(loop.on) or "input")
        bar: RenderableType = ProgressBar(loop.goal, loop.units, width=16) if loop.goal else ""
        return mark, Text(whose + loop.name), Text(self._moved(run.fact, loop, now)), Text(doing), bar

    def _moved(self, fact: RunFact, loop: LoopNow, now: float) -> str:
        if loop.kind == "ar_decode":
            rate = self.rates.of(fact.id, loop, now)
            return f"{loop.drawn} tokens" + (f", {rate:.1f}/s" if rate is not None else "")
        if loop.kind == "diffusion_denoise" and loop.goal:
            left = left_of(loop)
            return f"step {loop.units} of {loop.goal}" + (f", {left:.1f} s left" if left else "")
        if loop.kind == "audio_decode":
            return sound(fact, now)
        return f"{loop.units} call{'s' * (loop.units != 1)}"

    @staticmethod
    def _sum(runs: list[RunNow], now: float) -> Text:
        states = [loop.state for run in runs for loop in run.loops]
        parts = [f"{states.count('runs')} running", f"{states.count('ready') + states.count('memory')} queued"]
        if len(runs) > 1:
            parts.insert(0, f"{len(runs)} requests")
        if len(states) > SHOWN:
            parts.append(f"{SHOWN} of {len(states)} loops shown")
        if runs:
            parts.append(f"{now - min(run.fact.arrival for run in runs):.1f} s")
        return Text(" · ".join(parts), "dim")


def left_of(loop: LoopNow) -> float | None:
    """Seconds until the last step of a denoise loop, at its pace so far; None before the first step is back."""
    if not loop.units or loop.moved <= loop.began:
        return None
    return (loop.goal - loop.units) * (loop.moved - loop.began) / loop.units


def sound(fact: RunFact, now: float) -> str:
    """Seconds of sound, and the time since the request came for each of them; below 1 keeps up."""
    rates = {name: fact.rates.get(name.partition("#")[0], 0) for name in fact.items}  # "audio#1" is its second sample
    made = sum(fact.items[name] / rate for name, rate in rates.items() if rate)
    return f"{made:.1f} s of sound, real-time factor {(now - fact.arrival) / made:.2f}" if made else "no sound yet"
