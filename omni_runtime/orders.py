"""What flow and scheduler say to each other: events one way, instructions the other."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from omni_runtime.work import ExecutorDown, ExecutorUp, Fork, WorkUnit


class Submitted(Struct, frozen=True):
    """A run asks to be let in."""

    run: int
    arrival: float
    priority: int
    together: tuple[tuple[str, ...], ...]  # its experts; those that hand tensors to each other share a tuple
    tenant: str = ""
    promised: tuple[Any, ...] = ()  # scheduler/goal.py: the listeners that must not run dry
    first_output: float | None = None
    rebuilds: bool = True  # what executors keep for it can be made again; else it is never taken back


class Claim(Struct, frozen=True):
    """KV blocks of one loop: with fewer than `least` it cannot end properly, more than `most` it cannot use."""

    loop: str
    expert: str
    least: int
    most: int


class Claimed(Struct, frozen=True):
    """All that a run will ever hold, told once, before its first unit that holds anything."""

    run: int
    claims: tuple[Claim, ...]


class UnitReady(Struct, frozen=True):
    """An offer. A second one for the same loop replaces the first and keeps its age."""

    unit: WorkUnit
    due: float


class Withdrawn(Struct, frozen=True):
    """The offer of a loop no longer stands."""

    run: int
    loop: str


class LoopDone(Struct, frozen=True):
    """A loop will offer nothing more. Its blocks are free, or kept for others that begin with the same text."""

    run: int
    loop: str
    chain: tuple[bytes, ...] = ()  # of all text whose KV it holds


class Closed(Struct, frozen=True):
    """The run has ended, whatever the reason; its books close when its last unit is back."""

    run: int


class Rebuilt(Struct, frozen=True):
    """The flow has heard of an eviction. What a run said between the two was stale."""

    run: int


class Preempted(Struct, frozen=True):
    """A run is to give back what it holds, whoever asked for that."""

    run: int


class BatchDone(Struct, frozen=True):
    """A batch is back."""

    batch: int
    seconds: float = 0.0


class BatchFailed(Struct, frozen=True):
    """A batch raised; nothing of it counts."""

    batch: int
    error: str


Event = (
    Submitted
    | Claimed
    | UnitReady
    | Withdrawn
    | LoopDone
    | Closed
    | Rebuilt
    | Preempted
    | BatchDone
    | BatchFailed
    | ExecutorUp
    | ExecutorDown
)


class Blocked(Struct, frozen=True):
    """Why a loop offers nothing now: told to observers, where there are any, and never to the scheduler."""

    run: int
    loop: str
    why: str  # input: it waits for items; reader: it is held back, since what its readers have not taken fills their capacity
    on: tuple[str, ...]  # loops: who makes the input, or who reads


class Grant(Struct, frozen=True):
    """How much of an offer runs, and which KV blocks are new with it."""

    run: int
    loop: str
    size: int  # positions of progress: those computed, and those copied by `fork`
    first: int
    blocks: tuple[int, ...]
    fork: Fork | None = None


class Forget(Struct, frozen=True):
    """The executor may drop the state of these (run, loop)."""

    executor: str
    slots: tuple[tuple[int, str], ...]


class Dispatch(Struct, frozen=True):
    """A batch, decided: one expert, one op, a grant for each unit."""

    batch: int
    executor: str
    expert: str
    op: str
    grants: list[Grant]


class Admitted(Struct, frozen=True):
    """The run is let in, perhaps again. It may hold this many blocks, by loop, which depends on the size of the pools only, never
    on who else is there."""

    run: int
    blocks: dict[str, int]


class Evict(Struct, frozen=True):
    """What executors kept for these loops of a run is gone; everything that the run offered must be offered again."""

    run: int
    loops: tuple[str, ...]
    why: str  # memory | preempted | lost


class Parked(Struct, frozen=True):
    """An offer waits for KV blocks, or for its executor to be back. Told to observers; nothing follows from it."""

    run: int
    loop: str


class Held(Struct, frozen=True):
    """The run waits until its promise can be kept: about so many seconds."""

    run: int
    seconds: float


class Refuse(Struct, frozen=True):
    """A run is not let in; nothing of it has run."""

    run: int
    reason: str  # too_large | too_slow | overloaded | lost
    detail: str
    retry_after: float = 0.0  # seconds


class Fail(Struct, frozen=True):
    """A run cannot go on."""

    run: int
    reason: str  # failed | lost
    detail: str


class Finish(Struct, frozen=True):
    """The last unit of a closed run is back: let go of everything it had on any executor."""

    run: int


Instruction = Dispatch | Forget | Evict | Parked | Admitted | Held | Refuse | Fail | Finish
