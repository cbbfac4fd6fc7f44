"""The contract of a loop: a pure state machine over plain data, that says which step it needs next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from omni_runtime.channel import Reader
from omni_runtime.work import Done, Payload, Push, StepResult, Summary, UnitKind, Wait, WorkUnit

S = TypeVar("S")

DONE = Done()


class Context:
    """What a loop is told about its request. One per node of a run."""

    __slots__ = ("block", "expert", "loop", "node", "params", "readers", "room", "run", "seed", "spec", "wants")

    def __init__(
        self,
        *,
        run: int,
        loop: str,
        node: int,
        spec: Any,
        expert: str,
        block: int,
        readers: Mapping[str, Reader],
        params: Any,
        wants: frozenset[str],
        seed: int,
    ) -> None:
        self.run = run
        self.loop = loop  # name of the node
        self.node = node  # its number in the program: a coordinate of every random draw
        self.spec = spec  # the LoopSpec of the loop's own kind
        self.expert = expert  # qualified: "card/expert"
        self.block = block  # positions in a KV block
        self.readers = readers
        self.params = params  # of the request, for this loop: see request.py
        self.wants = wants  # ports that somebody reads
        self.seed = seed
        self.room = 1 << 62  # KV positions that were granted at admission; without bound where the expert has no pool

    def kind(self, key: tuple[Any, ...] = ()) -> UnitKind:
        """The kind of every unit of this loop."""
        return UnitKind(self.expert, self.spec.op, key, self.spec.state_blocks, self.block if self.spec.grows else 0)


class Loop(Protocol[S]):
    """One instance serves all requests; what belongs to a request is in its state.

    No method may block, draw random numbers, read a clock or keep anything outside the state. An exception in any of them
    fails the request, and only that.
    """

    def init(self, ctx: Context) -> S:
        """Called when every `full` input is complete."""
        ...

    def claim(self, ctx: Context) -> tuple[int, int]:
        """(least, most) KV blocks that the loop may ever hold; asked when the run's first loop on an expert with a pool has a
        step to do, so inputs may be there already or not."""
        ...

    def next(self, s: S) -> WorkUnit | Wait | Done:
        """The step needed now. A question: it may be asked any number of times and changes nothing."""
        ...

    def bind(self, s: S, size: int, reused: int = 0) -> Payload:
        """The data of a step of the granted size, of which the first `reused` positions are copied from another loop's KV.
        Peeks at channels and consumes nothing."""
        ...

    def advance(self, s: S, size: int, result: StepResult) -> Sequence[Push]:
        """Takes the result of the step that was bound."""
        ...

    def rebuild(self, s: S) -> None:
        """What the executor kept for the loop is gone: goes back to where it can be made again. Idempotent.

        What follows are units that begin earlier; what they push again lies where it lay before.
        """
        ...

    def finalize(self, s: S) -> Summary:
        """Usage and finish reason, once `next` has said Done."""
        ...

    def forkable(self, s: S) -> bool:
        """Whether other samples of the request may begin now, with what this one has computed so far."""
        ...

    def held(self, s: S) -> tuple[bytes, ...]:
        """Digests of all text whose KV the loop holds, block by block, if another loop may begin with it."""
        ...


class Fixed:
    """What loops have in common whose state does not grow."""

    def claim(self, ctx: Context) -> tuple[int, int]:
        return ctx.spec.state_blocks, ctx.spec.state_blocks

    def rebuild(self, s: Any) -> None:
        """Of calls no executor keeps anything."""

    def forkable(self, s: Any) -> bool:
        return True

    def held(self, s: Any) -> tuple[bytes, ...]:
        return ()
