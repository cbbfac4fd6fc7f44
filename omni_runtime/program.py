"""How loops are wired for a task: a DAG of nodes, hand-offs and outputs, checked while it is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import networkx as nx
from msgspec import Struct
from pydantic import Field

from omni_runtime.card import LoopSpec, ModelCard, Value
from omni_runtime.errors import ProgramError, unknown

RESERVED = frozenset(
    ("program", "self", "outputs", "seed", "n", "priority", "label", "tenant", "deadline_s", "first_output_s", "guarantee")
)  # what `submit` itself takes


class PortRef(Value):
    """A port of a node; `node` "" is the request itself."""

    error: ClassVar[type[ValueError]] = ProgramError

    node: str
    port: str

    def __str__(self) -> str:
        return f"{self.node}.{self.port}" if self.node else f"input {self.port}"


class HandOff(Value):
    """How a node reads a port. `capacity` bounds how many items the source may run ahead; None leaves it free."""

    error: ClassVar[type[ValueError]] = ProgramError

    port: PortRef
    mode: Literal["full", "stream"] | None = None  # None: as the slot says
    capacity: int | None = Field(default=None, ge=1)


class Node(Value):
    """A loop of a card at a place in a program."""

    error: ClassVar[type[ValueError]] = ProgramError

    loop: str  # "card/loop"
    reads: Mapping[str, HandOff] = {}


class NodePorts:
    """What `Program.loop` returns: the ports of the node as attributes."""

    def __init__(self, name: str, spec: LoopSpec) -> None:
        self._name, self._spec = name, spec

    def __getattr__(self, port: str) -> PortRef:
        if port.startswith("__"):
            raise AttributeError(port)
        if port not in self._spec.ports:
            raise ProgramError(f"node {self._name!r}: " + unknown("port", port, self._spec.ports))
        return PortRef(node=self._name, port=port)


class Step(Struct, frozen=True):
    """A node of a plan, with all that a run looks up about it."""

    name: str
    number: int  # place in the whole program, whatever is pruned: random draws depend on it
    spec: Any  # LoopSpec
    expert: str  # "card/expert"
    block: int
    pooled: bool  # its expert keeps KV blocks
    apart: bool  # reads from a node that draws at random, so that every sample of a request has one of its own
    reads: tuple[tuple[str, HandOff, bool], ...]  # slot, hand-off, whether it waits for all
    wants: tuple[str, ...]  # ports that somebody reads
    outputs: dict[str, tuple[str, ...]]  # port -> outputs of the request that show it


class Plan(Struct, frozen=True):
    """A program pruned to the outputs that a request asks for."""

    program: str
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]  # in topological order
    together: tuple[tuple[str, ...], ...]  # experts; those that hand tensors to each other share a tuple


class Program:
    """A DAG of loops.

    Args:
        name: shown in errors, traces and drawings.
        cards: whose loops may be used; a loop is called "card/loop", or "loop" where only one card has it.

    Raises:
        ProgramError: by the method that made the mistake; mistakes that only the whole shows, by `check`, which the first
            use calls.
    """

    def __init__(self, name: str, *cards: ModelCard) -> None:
        if not cards:
            raise ProgramError(f"program {name!r}: give at least one card")
        self.name = name
        self.cards = {card.name: card for card in cards}
        if len(self.cards) < len(cards):
            raise ProgramError(f"program {name!r}: two cards have the same name: {[c.name for c in cards]}")
        self.nodes: dict[str, Node] = {}
        self.outputs: dict[str, PortRef] = {}
        self.missing: dict[str, str] = {}  # outputs that a program of this kind has and this one lacks -> why, and what to do
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._checked = False

    # -- Building

    @classmethod
    def from_dict(cls, name: str, cards: tuple[ModelCard, ...], nodes: Mapping[str, Any], outputs: Mapping[str, str]) -> Program:
        """A program from data. Ports are written "node.port", inputs of the request "input.name".

        nodes: name -> {"loop": "card/loop", "reads": {slot: "node.port" | {"port": ..., "mode": ..., "capacity": ...}}}
        """
        program = cls(name, *cards)
        for key, data in nodes.items():
            if not isinstance(data, Mapping) or not isinstance(data.get("reads", {}), Mapping):
                raise ProgramError(f"node {key!r}: is a mapping of loop and reads, and reads one of slots, not {data!r}")
            if bad := set(data) - {"loop", "reads"}:
                raise ProgramError(f"node {key!r}: " + unknown("key", sorted(bad)[0], ("loop", "reads")))
            reads = {slot: _handoff(edge) for slot, edge in data.get("reads", {}).items()}
            program._add(key, str(data.get("loop", key)), reads, later=True)
        for key, port in outputs.items():
            program.outputs[key] = _port(port)
        program.check()
        return program

    def input(self, name: str) -> PortRef:
        """A field of the request."""
        self._check_input(name)
        return PortRef(node="", port=name)

    def handoff(self, port: PortRef, mode: Literal["full", "stream"] = "stream", capacity: int | None = None) -> HandOff:
        """A port read in a stated way. `stream`: from the first item on; `full`: once the source has ended."""
        return HandOff(port=port, mode=mode, capacity=capacity)

    def loop(self, loop: str, *, as_: str | None = None, **reads: PortRef | HandOff) -> NodePorts:
        """Adds a node that runs a loop of a card. Its name is the loop's, or `as_`."""
        return self._add(as_ or loop.rpartition("/")[2], loop, reads)

    def call(self, loop: str, *args: PortRef | HandOff, as_: str | None = None) -> PortRef:
        """Adds a `one_shot` loop whose slots are given in order; returns its only port."""
        _, spec = self._find(loop)
        if spec.kind != "one_shot" or len(spec.ports) != 1:
            raise ProgramError(f"call({loop!r}): only a one_shot loop with one port can be called; use loop()")
        if len(args) > len(spec.reads):
            raise ProgramError(f"call({loop!r}): takes {len(spec.reads)} inputs ({', '.join(spec.reads)}), not {len(args)}")
        node = self._add(as_ or loop.rpartition("/")[2], loop, dict(zip(spec.reads, args, strict=False)))
        return PortRef(node=node._name, port=next(iter(spec.ports)))

    def output(self, name: str, port: PortRef) -> None:
        """Shows a port to the caller under a name."""
        if name in self.outputs:
            raise ProgramError(f"program {self.name!r}: output {name!r} is made twice")
        self._check_output(name, port)
        self.outputs[name] = port
        self._changed()

    def lacks(self, name: str, why: str) -> None:
        """Says why an output is not there, to whoever asks for it."""
        self.missing[name] = why

    def _changed(self) -> None:
        self._plans.clear()
        self._checked = False

    def _find(self, loop: str) -> tuple[str, LoopSpec]:
        card, _, name = loop.rpartition("/")
        owners = [c for c in self.cards.values() if name in c.loops and card in ("", c.name)]
        if not owners:
            known = [n if len(self.cards) == 1 else f"{c.name}/{n}" for c in self.cards.values() for n in c.loops]
            raise ProgramError(f"program {self.name!r}: " + unknown("loop", loop, known))
        if len(owners) > 1:
            raise ProgramError(f"program {self.name!r}: loop {loop!r} is on {[c.name for c in owners]}; write 'card/{name}'")
        return owners[0].name, owners[0].loops[name]

    def _add(self, name: str, loop: str, reads: Mapping[str, PortRef | HandOff], later: bool = False) -> NodePorts:
        card, spec = self._find(loop)
        if name in self.nodes:
            raise ProgramError(f"program {self.name!r}: node {name!r} is made twice; give one of them another name with as_=")
        if not name or name == "input" or set(name) & set(".#"):
            raise ProgramError(f"program {self.name!r}: {name!r} cannot name a node")
        edges = {slot: edge if isinstance(edge, HandOff) else HandOff(port=edge) for slot, edge in reads.items()}
        node = Node(loop=f"{card}/{loop.rpartition('/')[2]}", reads=edges)
        self.nodes[name] = node
        self._changed()
        if not later:
            try:
                self._check_node(name, node)
            except ProgramError:
                del self.nodes[name]
                raise
        return NodePorts(name, spec)

    # -- Checking

    def check(self) -> None:
        """All that can be wrong with the whole; called by the first use.

        Raises:
            ProgramError: naming the node, the slot or the output, and what to do.
        """
        if self._checked:
            return
        if not self.outputs:
            raise ProgramError(f"program {self.name!r}: has no output; name one with output()")
        for name, node in self.nodes.items():
            self._check_node(name, node)
        for name, port in self.outputs.items():
            self._check_output(name, port)
        for name in self.inputs:
            self._check_input(name)
        graph = self.graph()
        if not nx.is_directed_acyclic_graph(graph):
            cycle = [edge[0] for edge in nx.find_cycle(graph)]
            raise ProgramError(f"program {self.name!r}: nodes read each other in a circle: {' -> '.join([*cycle, cycle[0]])}")
        self._checked = True

    def spec(self, node: str) -> LoopSpec:
        """The LoopSpec of a node."""
        return self._find(self.nodes[node].loop)[1]

    def _check_port(self, where: str, port: PortRef) -> str | None:
        """Type of a port, None for an input of the request."""
        if not port.node:
            return None
        if port.node not in self.nodes:
            raise ProgramError(f"{where}: " + unknown("node", port.node, self.nodes))
        ports = self.spec(port.node).ports
        if port.port not in ports:
            raise ProgramError(f"{where}: " + unknown(f"port of node {port.node!r}", port.port, ports))
        return ports[port.port].type

    def _check_node(self, name: str, node: Node) -> None:
        where = f"program {self.name!r}, node {name!r}"
        slots = self._find(node.loop)[1].reads
        for slot, edge in node.reads.items():
            if slot not in slots:
                raise ProgramError(f"{where}: " + unknown("slot", slot, slots))
            given = self._check_port(f"{where}, slot {slot!r}", edge.port)
            if given not in (None, "any", slots[slot].type) and slots[slot].type != "any":
                raise ProgramError(f"{where}: slot {slot!r} reads {slots[slot].type!r}, but {edge.port} gives {given!r}")
            if edge.capacity is not None and (edge.mode or slots[slot].mode) == "full":
                raise ProgramError(f"{where}: slot {slot!r} waits for the whole of {edge.port}, so it cannot have a capacity")
            if slots[slot].mode == "full" and edge.mode == "stream":
                raise ProgramError(f"{where}: slot {slot!r} reads the whole of its input; its loop cannot start with a part")
        for slot, spec in slots.items():
            if slot not in node.reads and not spec.optional:
                raise ProgramError(f"{where}: slot {slot!r} ({spec.type}) is not wired; give {slot}=...")

    def _check_input(self, name: str) -> None:
        if not name.isidentifier() or name in RESERVED:
            raise ProgramError(f"program {self.name!r}: an input cannot be called {name!r}: submit means something else by it")

    def _check_output(self, name: str, port: PortRef) -> None:
        where = f"program {self.name!r}, output {name!r}"
        if not port.node:
            raise ProgramError(f"{where}: {port} is made by nobody; show a port of a node")
        self._check_port(where, port)
        if self.spec(port.node).ports[port.port].device:
            raise ProgramError(f"{where}: {port} stays on its device; decode it with a loop first")

    # -- Asking

    @property
    def inputs(self) -> dict[str, str]:
        """Fields that a request may give, with the types that their readers ask for, such as "messages, prompt": a text is
        both. Token ids are never anything else."""
        found: dict[str, dict[str, None]] = {}
        for name, node in self.nodes.items():
            for slot, edge in node.reads.items():
                if not edge.port.node:
                    kinds = found.setdefault(edge.port.port, {})
                    kinds[self.spec(name).reads[slot].type] = None
                    if "token" in kinds and len(kinds) > 1:
                        both = " and as ".join(repr(kind) for kind in kinds)
                        raise ProgramError(
                            f"program {self.name!r}: input {edge.port.port!r} is read as {both}; give each its own"
                        )
        return {name: ", ".join(kinds) for name, kinds in found.items()}

    def graph(self) -> nx.DiGraph[str]:
        """Nodes, and an edge from each to those that read it."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.nodes)
        graph.add_edges_from((e.port.node, name) for name, node in self.nodes.items() for e in node.reads.values() if e.port.node)
        return graph

    def plan(self, outputs: tuple[str, ...] | None = None) -> Plan:
        """The nodes that these outputs need, in order, and the ports of each that somebody reads."""
        wanted = tuple(self.outputs) if outputs is None else tuple(outputs)
        if wanted not in self._plans:
            self.check()
            for name in wanted:
                if name in self.missing:
                    raise ProgramError(f"program {self.name!r} has no output {name!r}: {self.missing[name]}")
                if name not in self.outputs:
                    raise ProgramError(f"program {self.name!r}: " + unknown("output", name, self.outputs))
            if not wanted or len(set(wanted)) < len(wanted):
                raise ProgramError(f"program {self.name!r}: ask for each output once, and for one at least, not {list(wanted)}")
            self._plans[wanted] = self._prune(wanted)
        return self._plans[wanted]

    def _prune(self, wanted: tuple[str, ...]) -> Plan:
        numbers = {name: at for at, name in enumerate(self.nodes)}
        order = list(nx.lexicographical_topological_sort(self.graph(), key=numbers.__getitem__))
        ports: dict[str, dict[str, list[str]]] = {}
        for name in wanted:
            ref = self.outputs[name]
            ports.setdefault(ref.node, {}).setdefault(ref.port, []).append(name)
        for name in reversed(order):
            if name in ports:
                for edge in self.nodes[name].reads.values():
                    if edge.port.node:
                        ports.setdefault(edge.port.node, {}).setdefault(edge.port.port, [])
        parted: set[str] = set()
        for name in order:
            if self.spec(name).draws or any(edge.port.node in parted for edge in self.nodes[name].reads.values()):
                parted.add(name)
        steps = tuple(self._step(name, numbers[name], ports[name], parted) for name in order if name in ports)
        experts: nx.Graph[str] = nx.Graph()
        experts.add_nodes_from(step.expert for step in steps)
        of = {step.name: step for step in steps}
        for step in steps:
            for _, edge, _ in step.reads:
                if edge.port.node and of[edge.port.node].spec.ports[edge.port.port].device:
                    experts.add_edge(of[edge.port.node].expert, step.expert)
        together = tuple(tuple(sorted(group)) for group in nx.connected_components(experts))
        return Plan(self.name, wanted, steps, tuple(sorted(together)))

    def _step(self, name: str, number: int, ports: Mapping[str, list[str]], parted: set[str]) -> Step:
        node = self.nodes[name]
        card, spec = self._find(node.loop)
        expert = self.cards[card].experts[spec.expert]
        reads = tuple((slot, edge, (edge.mode or spec.reads[slot].mode) == "full") for slot, edge in node.reads.items())
        return Step(
            name=name,
            number=number,
            spec=spec,
            expert=f"{card}/{spec.expert}",
            block=expert.block,
            pooled=expert.bytes_per_position > 0 or spec.state_blocks > 0,
            apart=any(edge.port.node in parted for edge in node.reads.values()),
            reads=reads,
            wants=tuple(sorted(ports)),
            outputs={port: tuple(names) for port, names in sorted(ports.items()) if names},
        )

    # -- Showing

    def __str__(self) -> str:
        lines = [f"program {self.name}  (cards: {', '.join(self.cards)})"]
        width = max((len(n) for n in self.nodes), default=0)
        ops = {name: f"{self.spec(name).expert}.{self.spec(name).op}" for name in self.nodes}
        wide = max((len(op) for op in ops.values()), default=0)
        for name, node in self.nodes.items():
            reads = ", ".join(f"{slot} {self._arrow(name, slot)} {edge.port}" for slot, edge in node.reads.items())
            lines.append(f"  {name:<{width}}  {self.spec(name).kind:<17}  {ops[name]:<{wide}}  {reads}")
        lines += [f"  output {name} = {port}" for name, port in self.outputs.items()]
        return "\n".join([*lines, "  (<- waits for the whole, <~ reads as it is made)"])

    def _arrow(self, node: str, slot: str) -> str:
        edge = self.nodes[node].reads[slot]
        full = (edge.mode or self.spec(node).reads[slot].mode) == "full"
        return "<-" if full else "<~" if edge.capacity is None else f"<~[{edge.capacity}]"

    def to_mermaid(self) -> str:
        """The program as a Mermaid flow chart: thick arrows stream, thin ones wait for the whole."""
        lines = ["flowchart LR"]
        lines += [f'  in_{name}(["{name}"])' for name in self.inputs]
        for name, node in self.nodes.items():
            lines.append(f'  {name}["{name}<br/>{self.spec(name).kind}"]')
            for slot, edge in node.reads.items():
                source = edge.port.node or f"in_{edge.port.port}"
                arrow = "-->" if self._arrow(name, slot) == "<-" else "==>"
                lines.append(f"  {source} {arrow}|{edge.port.port}| {name}")
        for name, port in self.outputs.items():
            lines += [f'  out_{name}(["{name}"])', f"  {port.node} -->|{port.port}| out_{name}"]
        return "\n".join(lines)


def _port(text: str) -> PortRef:
    node, dot, port = str(text).partition(".")
    if not dot or not node or not port:
        raise ProgramError(f"a port is written 'node.port' or 'input.name', not {text!r}")
    return PortRef(node="" if node == "input" else node, port=port)


def _handoff(edge: str | Mapping[str, Any]) -> HandOff:
    if isinstance(edge, str):
        return HandOff(port=_port(edge))
    if not isinstance(edge, Mapping) or "port" not in edge:
        raise ProgramError(f"a hand-off is 'node.port' or a mapping with a port, not {edge!r}")
    return HandOff(**{**edge, "port": _port(edge["port"])})
