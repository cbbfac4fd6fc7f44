"""What is known of a unit that ran: plain records, in seconds of the clock that the core was fed with."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class RunFact(Struct, eq=False):
    """A request."""

    id: int
    label: str
    program: str
    arrival: float
    priority: int
    outputs: tuple[str, ...]
    kinds: dict[str, str]  # loop -> kind of loop
    rates: dict[str, int]  # Hz, of outputs that are sound
    admitted: float | None = None  # when it was let in, the last time
    rebuilt: int = 0  # how often it lost what executors kept for it
    ended: float | None = None
    reason: str = ""  # see work.End
    detail: str = ""
    first: dict[str, float] = field(default_factory=dict)  # output -> when its first items went out
    items: dict[str, int] = field(default_factory=dict)  # output -> items that went out


class BatchFact(Struct, eq=False):
    """A call of an op on an executor."""

    number: int
    executor: str
    expert: str
    op: str
    key: tuple[Any, ...]
    units: int
    size: int  # computed, summed over the units
    dispatched: float
    started: float  # when it began to compute: it may have lain in the mailbox for a while
    answered: float | None = None
    seconds: float = 0.0  # that the executor measured
    outcome: str = ""  # done | broken | lost; nothing while it runs


class UnitFact(Struct, eq=False):
    """A unit that was dispatched. `ready <= memory <= batch.dispatched <= batch.started <= batch.answered`."""

    run: RunFact
    loop: str
    batch: BatchFact
    place: int  # by rank within the batch; 0 was the most urgent
    size: int  # granted, of lo..hi
    copied: int  # of them, positions whose KV was copied from another loop and not computed
    lo: int
    hi: int
    at: int  # progress of the loop before the step
    index: int  # what the step is: see `told`
    goal: int  # how many steps there are, where that is known
    ready: float  # when it was offered
    due: float  # its rank
    memory: float  # until then it waited for memory
    alone: bool  # a batch with it broke, so it ran alone
    behind: int  # batch that its executor was busy with when it was ready; 0: it was free
    beaten: int  # batches of other groups that went first
    full: int  # batches of its own group that went first, without room for it
    blocked: str  # before it was ready, its loop waited for "input", or was held back by a "reader"
    on: tuple[str, ...]  # which loops
    since: float  # since when; `ready` if it never did

    @property
    def outcome(self) -> str:
        """done | broken | lost | discarded (its request had ended meanwhile) | in flight."""
        ended, answered = self.run.ended, self.batch.answered
        if answered is None:
            return "in flight"
        if self.batch.outcome == "done" and ended is not None and ended < answered:
            return "discarded"
        return self.batch.outcome

    @property
    def told(self) -> str:
        """The step, in a few words."""
        kind = self.run.kinds.get(self.loop, "")
        if kind == "ar_decode":
            copied = f", {self.copied} positions copied" if self.copied else ""
            return (f"token {self.index}" if self.index >= 0 else f"prompt, {self.size} positions") + copied
        if kind == "talk":
            return f"frame {self.index}" if self.index >= 0 else f"{self.size} positions"
        if kind == "flow_decode":
            return f"velocity {self.index + 1} of {self.goal}"
        if kind == "diffusion_denoise":
            return f"step {self.index + 1} of {self.goal}"
        if kind == "audio_decode":
            return f"frames {self.index}..{self.index + self.size - 1}"
        return f"call {self.index}"

    @property
    def why(self) -> str:
        """Why it ran when it did and not before, as one sentence."""
        parts = []
        if self.blocked and self.since < self.ready:
            how = "waited for items of" if self.blocked == "input" else "was held back by"
            parts.append(f"before, its loop {how} {', '.join(self.on)}")
        if self.memory > self.ready:
            parts.append("waited for memory")
        if self.batch.dispatched > self.memory:
            if self.behind:
                parts.append(f"waited for {self.batch.executor}, busy with batch {self.behind}")
            if self.beaten:
                parts.append(f"{self.beaten} {_batches(self.beaten)} of other groups went first")
            if self.full:
                parts.append(f"{self.full} {_batches(self.full)} of its group had no room for it")
        elif self.memory == self.ready:
            parts.append("ran at once")
        if self.alone:
            parts.append("alone, since a batch with it broke")
        return "; ".join(parts)


def _batches(n: int) -> str:
    return "batch" if n == 1 else "batches"


class Record(Struct):
    """A copy of what a recorder knew at a moment."""

    units: list[UnitFact]  # in the order of their dispatch
    runs: list[RunFact]  # those of the units, those alive, and the last that ended
    now: float  # of the last event
    dropped: int = 0  # older units that were forgotten, since the recorder is bounded

    @property
    def start(self) -> float:
        """The first moment that anything is known of."""
        return min([*(u.ready for u in self.units), *(r.arrival for r in self.runs)], default=self.now)
