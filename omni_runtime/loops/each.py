"""One call per item of a stream, or per clause of a stream of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_runtime.channel import Reader
from omni_runtime.loop import DONE, Context, Fixed
from omni_runtime.loops.clauses import clause_end
from omni_runtime.loops.items import checked, weight
from omni_runtime.work import CallStep, Done, Push, StepResult, Summary, Wait, WorkUnit


class EachState:
    """Which items or clauses were called for."""

    __slots__ = ("calls", "ctx", "cut", "kind", "offset", "pushed", "reader", "seen", "slot", "stale", "text")

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.kind = ctx.kind()
        self.slot = next(name for name, slot in ctx.spec.reads.items() if slot.mode == "stream")
        self.reader: Reader = ctx.readers[self.slot]
        self.calls = 0
        self.pushed = dict.fromkeys(sorted(ctx.wants), 0)
        self.text = ""  # of the items from the reader's cursor on
        self.seen = 0  # items that `text` covers
        self.offset = 0  # characters of it that are spoken for
        self.stale = False  # `text` or `offset` changed since it was last searched
        self.cut: int | None = None  # end of the clause that is offered


class EachLoop(Fixed):
    """Steps of one call each, in order."""

    def init(self, ctx: Context) -> EachState:
        return EachState(ctx)

    def next(self, s: EachState) -> WorkUnit | Wait | Done:
        if s.ctx.spec.segment == "clauses":
            self._segment(s)
            ready = s.cut is not None
        else:
            ready = s.reader.available > 0
        if ready:
            heavy = weight(s.ctx.readers, {s.slot: 1}) if s.cut is None else float(s.cut - s.offset)
            return WorkUnit(s.ctx.run, s.ctx.loop, s.kind, 1, 1, 0, s.calls, weight=heavy)
        return DONE if s.reader.ended else Wait(s.slot)

    @staticmethod
    def _segment(s: EachState) -> None:
        """Looks for a clause where anything changed since the last call, unless one is on offer already."""
        if s.cut is not None:
            return
        if s.reader.available > s.seen:
            s.text += "".join(s.reader.peek()[s.seen :])
            s.seen = s.reader.available
            s.stale = True
        if s.stale or s.reader.ended:
            spec = s.ctx.spec
            longest = spec.first if spec.first is not None and s.calls == 0 else spec.longest
            s.cut = clause_end(s.text, s.offset, s.reader.ended, longest)
            s.stale = False

    def bind(self, s: EachState, size: int, reused: int = 0) -> CallStep:
        host: dict[str, tuple[Any, ...]] = {}
        device: dict[str, tuple[Any, ...]] = {}
        for name, reader in s.ctx.readers.items():
            (device if reader.channel.device else host)[name] = reader.peek(1 if name == s.slot else None)
        if s.cut is not None:
            host[s.slot] = (s.text[s.offset : s.cut],)
        return CallStep(s.calls, host, device, s.ctx.params)

    def advance(self, s: EachState, size: int, result: StepResult) -> Sequence[Push]:
        s.calls += 1
        if s.cut is None:
            s.reader.take(1)
        else:
            s.offset, s.cut = s.cut, None
            for item in s.reader.peek(s.seen):  # an item is consumed when its last character is
                if len(item) > s.offset:
                    break
                s.reader.take(1)
                s.seen -= 1
                s.offset -= len(item)
                s.text = s.text[len(item) :]
            s.stale = True
        pushes = []
        for port, start in s.pushed.items():
            kind = s.ctx.spec.ports[port].type
            items = result.tensors[port] if port in result.tensors else checked(port, kind, result.items[port])
            pushes.append(Push(port, start, items))
            s.pushed[port] = start + len(items)
        return pushes

    def finalize(self, s: EachState) -> Summary:
        return Summary("done", {"calls": s.calls})
