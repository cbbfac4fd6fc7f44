"""A request at run time: its nodes, and how their ports and readers are wired."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from omni_runtime.channel import Channel, Reader
from omni_runtime.errors import ExecutorLost
from omni_runtime.loop import Context, Loop
from omni_runtime.loops import LOOPS
from omni_runtime.program import Plan, Step
from omni_runtime.request import as_items
from omni_runtime.scheduler.goal import Goal, Leg, Listener, Whole
from omni_runtime.work import Submit, Summary, TensorRef, WorkUnit


def key(name: str, sample: int) -> str:
    """Name of a sample's node."""
    return f"{name}#{sample}" if sample else name


class Route:
    """Where the items of a port go: to a channel if a node reads it, and to outputs of the request."""

    __slots__ = ("channel", "first", "listener", "outputs", "sent")

    def __init__(self, channel: Channel | None, outputs: tuple[str, ...]) -> None:
        self.channel = channel
        self.outputs = outputs
        self.sent = 0  # items that the outputs have had
        self.listener: Listener | None = None  # who hears them
        self.first: Goal | None = None  # by when the first of them is wanted


class Node:
    """A loop of a run."""

    __slots__ = (
        "asked",
        "busy",
        "counts",
        "ctx",
        "done",
        "full",
        "heard",
        "legs",
        "loop",
        "name",
        "offered",
        "primed",
        "queued",
        "readers",
        "routes",
        "run",
        "sample",
        "siblings",
        "size",
        "sources",
        "state",
        "step",
        "streams",
        "summary",
        "tensors",
        "twin",
        "unit",
        "units",
        "work",
    )

    def __init__(self, run: Run, step: Step, sample: int) -> None:
        self.run = run
        self.step = step
        self.sample = sample
        self.name = key(step.name, sample)
        self.twin: Node | None = None  # the first sample's node, where that computes what this one can begin with
        self.siblings: list[Node] = []  # whose twin this is, until they have begun
        self.loop: Loop[Any] = LOOPS[step.spec.kind]
        self.ctx: Context
        self.state: Any = None
        self.readers: dict[str, Reader] = {}
        self.routes: dict[str, Route] = {}
        self.full: list[Reader] = []  # must be complete before the first step
        self.sources: list[Reader] = []  # readers whose source may be held back by this node
        self.tensors: list[Reader] = []  # readers of tensors, which are given back once passed
        self.streams: list[Reader] = []  # readers that may hold this node back
        self.unit: WorkUnit | None = None  # the step it could take now
        self.offered: WorkUnit | None = None  # the offer that the scheduler has
        self.primed = False  # every full input is complete
        self.busy = False  # its unit is in flight
        self.queued = False  # is on the list of nodes to look at
        self.done = False
        self.units = 0
        self.size = 0  # granted to all of its units
        self.work = 0.0  # the same, times their weights
        self.counts: Reader | None = None  # of an `each` loop on the way to a listener: how many items does a step take?
        self.legs: list[Leg] = []  # what it is waited for
        self.heard: tuple[Listener, Leg, float] | None = None  # who hears what it gives, and seconds of sound for one of its size
        self.asked = (-1, 0)  # progress, and how much of an offer its listener wanted then
        self.summary = Summary()

    def held_back(self) -> bool:
        """Whether a reader throttles this node: it has a step to do or in flight, and what waits fills its capacity.

        Anything stricter deadlocks a program without cycles: a reader that waits for something else would hold back the
        source of what it waits for.
        """
        return any(r.attached and r.filled and (r.node.unit is not None or r.node.busy) for r in self.streams)


class Run:
    """One request."""

    __slots__ = (
        "arrival",
        "claimed",
        "copies",
        "deadline",
        "ended",
        "id",
        "late",
        "listeners",
        "nodes",
        "open",
        "plan",
        "priority",
        "rebuilt",
        "submit",
        "there",
        "waits",
        "whole",
    )

    def __init__(self, submit: Submit, now: float, whole: bool = False) -> None:
        plan: Plan = submit.plan
        self.id = submit.run
        self.plan = plan
        self.arrival = now
        self.priority = submit.priority
        self.open: dict[tuple[str, int], None] = {}  # outputs of samples that are not complete
        self.ended = ""
        self.waits = False  # until its promise can be kept
        self.late = False  # a first piece came after it was wanted
        self.claimed = False
        self.nodes: dict[str, Node] = {}
        self.submit = submit
        self.listeners: dict[tuple[str, int], Listener] = {}  # by output and sample
        self.deadline: Whole | None = None  # by when all of it is wanted
        self.whole = whole  # every hand-off waits for all of it
        self.copies: dict[TensorRef, Any] = {}  # on the host, of tensors that somebody still reads
        self.there: set[TensorRef] = set()  # those that were not let go by the executor incarnation which made them
        self.rebuilt = 0  # evictions
        self._wire(submit)

    def bring(self, refs: Iterable[TensorRef], executor: str) -> dict[TensorRef, Any]:
        """Copies of those tensors that an executor does not have.

        Raises:
            ExecutorLost: no copy of one of them ever came.
        """
        found = {}
        for ref in refs:
            if ref.home != executor or ref not in self.there:
                found[ref] = copy = self.copies.get(ref)
                if copy is None:
                    raise ExecutorLost(f"{ref.port!r} of {ref.loop!r} is needed on {executor!r} and was on {ref.home!r} only")
        return found

    def _wire(self, submit: Submit) -> None:
        """Nodes up to the first that draws serve all samples; from there on each sample has its own."""
        read = {(edge.port.node, edge.port.port) for step in self.plan.steps for _, edge, _ in step.reads}
        channels: dict[tuple[str, str], Channel] = {}
        parted: set[str] = set()
        for step in self.plan.steps:
            if step.apart or step.spec.draws:
                parted.add(step.name)
            for sample in range(submit.n if step.name in parted else 1):
                node = self.nodes[key(step.name, sample)] = Node(self, step, sample)
                for port in step.wants:
                    channel = None
                    if (step.name, port) in read:
                        channel = channels[node.name, port] = Channel(step.spec.ports[port].device, node)
                    node.routes[port] = Route(channel, step.outputs.get(port, ()))
                    self.open |= dict.fromkeys((output, sample) for output in step.outputs.get(port, ()))
                for slot, edge, full in step.reads:
                    source = key(edge.port.node, sample if edge.port.node in parted else 0)
                    channel = channels.get((source, edge.port.port))
                    if channel is None:  # an input of the request
                        channel = Channel()
                        channel.push(0, as_items(step.spec.reads[slot].type, submit.inputs[edge.port.port]))
                        channel.close("given")
                    self._attach(node, slot, Reader(channel, full or self.whole, None if self.whole else edge.capacity, node))
                node.ctx = Context(
                    run=self.id,
                    loop=node.name,
                    node=step.number,
                    spec=step.spec,
                    expert=step.expert,
                    block=step.block,
                    readers=node.readers,
                    params=submit.params[step.name],
                    wants=frozenset(step.wants),
                    seed=submit.seed + sample,
                )
                if sample and not step.apart:
                    node.twin = self.nodes[step.name]
                    node.twin.siblings.append(node)

    @staticmethod
    def _attach(node: Node, slot: str, reader: Reader) -> None:
        node.readers[slot] = reader
        source: Node | None = reader.channel.source
        if reader.full:
            node.full.append(reader)
        elif source is not None and reader.capacity is not None:
            node.sources.append(reader)
            source.streams.append(reader)
        if reader.channel.device:
            node.tensors.append(reader)
