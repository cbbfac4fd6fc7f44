"""Curses: loops and ops that raise on purpose, to see whom else it hurts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.loops import LOOPS
from omni_runtime.work import ArStep, AudioStep, DenoiseStep, FlowStep, Payload, Row, RunBatch, StepResult, TalkStep

HARM = ("op", "init", "claim", "next", "bind", "advance", "finalize")  # what a curse may break for good


class Curse(NamedTuple):
    """One loop of one run raises from a position on: always, or (`transient`) once, in company."""

    loop: str
    where: str
    at: int


CURSES: dict[int, Curse] = {}  # by run, of the world that plays now
SPENT: set[int] = set()  # transient curses that have struck


class Stricken(RuntimeError):
    """What a cursed loop or op raises."""


class CursedLoop:
    """A loop that looks into the book of curses before it does its work."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.loop, name)

        def ask(state: Any, *rest: Any) -> Any:
            ctx = getattr(state, "ctx", state)
            curse = CURSES.get(ctx.run)
            if curse and (curse.loop, curse.where) == (ctx.loop, name) and (state is ctx or self._at(state) >= curse.at):
                raise Stricken(f"{name} of {ctx.loop}")
            return method(state, *rest)

        return ask

    @staticmethod
    def _at(state: Any) -> int:
        if hasattr(state, "number"):  # a flow: call `call` of chunk `number`
            return int(state.number * len(state.calls) + state.call)
        for field in ("cached", "frames", "step", "calls", "ran"):
            value = getattr(state, field, None)
            if value is not None:
                return int(getattr(value, "cursor", value))
        raise AttributeError(state)


@contextmanager
def curses() -> Iterator[None]:
    """Loops may be cursed in here."""
    loops = dict(LOOPS)
    LOOPS.update({kind: CursedLoop(loop) for kind, loop in loops.items()})
    try:
        yield
    finally:
        LOOPS.update(loops)
        CURSES.clear()
        SPENT.clear()


def place(payload: Payload) -> tuple[int, int]:
    """Progress of a loop before a step, and the least that the step adds."""
    if isinstance(payload, ArStep):
        return payload.start, len(payload.tokens)
    if isinstance(payload, AudioStep | TalkStep):
        return payload.start, payload.size
    if isinstance(payload, FlowStep):
        return payload.chunk * payload.calls + payload.call, 1
    return (payload.step if isinstance(payload, DenoiseStep) else payload.index), 1


class Breakable(SimulatedExecutor):
    """A simulated executor whose rows may raise after their work is done, the worst moment."""

    company = 0
    hosted: tuple[str, ...] | None = None  # as its maker was told

    def run(self, message: Any) -> Any:
        self.company = len(message.rows) if isinstance(message, RunBatch) else 0
        return super().run(message)

    def _row(self, expert: str, spec: Any, row: Row) -> StepResult:
        result = super()._row(expert, spec, row)
        curse, (start, size) = CURSES.get(row.run), place(row.payload)
        if curse is None or curse.loop != row.loop or start + size <= curse.at:
            return result
        if curse.where == "op" or (curse.where == "transient" and self.company > 1 and row.run not in SPENT):
            SPENT.add(row.run)
            self.slots.release(tuple(ref for refs in result.tensors.values() for ref in refs))
            raise Stricken(f"op of {row.loop}")
        return result
