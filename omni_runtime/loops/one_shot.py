"""A single call once all inputs are there."""

from __future__ import annotations

from collections.abc import Sequence

from omni_runtime.loop import DONE, Context, Fixed
from omni_runtime.loops.items import checked, weight
from omni_runtime.work import CallStep, Done, Push, StepResult, Summary, Wait, WorkUnit


class OneShotState:
    """Whether the call was made."""

    __slots__ = ("ctx", "kind", "ran", "weight")

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.kind = ctx.kind()
        self.ran = False
        self.weight = weight(ctx.readers)


class OneShotLoop(Fixed):
    """One step of one call."""

    def init(self, ctx: Context) -> OneShotState:
        return OneShotState(ctx)

    def next(self, s: OneShotState) -> WorkUnit | Wait | Done:
        return DONE if s.ran else WorkUnit(s.ctx.run, s.ctx.loop, s.kind, 1, 1, weight=s.weight)

    def bind(self, s: OneShotState, size: int, reused: int = 0) -> CallStep:
        host = {name: reader.peek() for name, reader in s.ctx.readers.items() if not reader.channel.device}
        device = {name: reader.peek() for name, reader in s.ctx.readers.items() if reader.channel.device}
        return CallStep(0, host, device, s.ctx.params)

    def advance(self, s: OneShotState, size: int, result: StepResult) -> Sequence[Push]:
        s.ran = True
        return [
            Push(
                port,
                0,
                result.tensors[port]
                if port in result.tensors
                else checked(port, s.ctx.spec.ports[port].type, result.items[port]),
            )
            for port in sorted(s.ctx.wants)
        ]

    def finalize(self, s: OneShotState) -> Summary:
        return Summary("done", {"calls": int(s.ran)})
