"""What the outputs of a request are waited for: goals, and the loops on the way to each."""

from __future__ import annotations

from typing import Any

from omni_runtime.flow.run import Node, Run
from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.goal import Goal, Leg, Listener, Whole
from omni_runtime.scheduler.rank import PATIENCE


def aim(run: Run, costs: Costs) -> None:
    """Gives a run its goals: somebody hears each output that is sound; and what the request itself asks for."""
    submit = run.submit
    first = run.arrival + (PATIENCE[run.priority] if submit.first_output is None else submit.first_output)
    for node in run.nodes.values():
        spec = node.step.spec
        rate = getattr(spec, "sample_rate", 0)
        for port, route in node.routes.items():
            if not route.outputs:
                continue
            if rate and spec.ports[port].type == "samples":
                listener = route.listener = Listener(rate, first, submit.promised)
                _lead(run, listener, [node], costs)
                own = next(leg for leg in node.legs if leg.goal is listener)
                node.heard = (listener, own, spec.hop / rate) if hasattr(spec, "hop") else None
                for output in route.outputs:
                    run.listeners[output, node.sample] = listener
            elif submit.first_output is not None:
                route.first = goal = Goal(first)
                _lead(run, goal, [node], costs)
    if submit.deadline is not None:
        run.deadline = whole = Whole(run.arrival + submit.deadline, begun=True)
        _lead(run, whole, [node for node in run.nodes.values() if any(r.outputs for r in node.routes.values())], costs)


def _lead(run: Run, goal: Goal, ends: list[Node], costs: Costs) -> None:
    """The loops on the way to these nodes, from the end; `nodes` of a run are in topological order."""
    legs: dict[int, Leg] = {}  # by id of the node
    reads: dict[int, list[Leg]] = {id(node): [] for node in ends}  # node on the way -> legs that read it
    for node in reversed(run.nodes.values()):
        if id(node) not in reads:
            continue
        step = node.step
        op = (step.expert, step.spec.op)
        leg = Leg(goal, node, op, costs.model(*op), costs.pace(run.plan.program, step.name), reads[id(node)])
        legs[id(node)] = leg
        goal.legs.append(leg)
        node.legs.append(leg)
        for reader in node.readers.values():
            if reader.channel.source is not None:
                reads.setdefault(id(reader.channel.source), []).append(leg)
        if node.twin is not None:
            reads.setdefault(id(node.twin), []).append(leg)
    if isinstance(goal, Listener):
        for leg in goal.legs:
            leg.pending = _pending(leg)
            if leg.node.step.spec.kind == "each" and leg.node.counts is None:
                leg.node.counts = next((r for r in leg.node.readers.values() if not r.full and r.channel.source), None)
    goal.refresh()


def _pending(leg: Leg) -> list[tuple[Any, float]]:
    """The channels between a loop and a listener, with the seconds of sound that an item of each comes to."""
    found = list({id(entry[0]): entry for reader in leg.readers for entry in reader.pending}.values())
    leg.channels = [r for after in leg.readers for r in after.node.readers.values() if r.channel.source is leg.node]
    for reader in leg.channels:
        spec = reader.node.step.spec
        if isinstance(leg.goal, Listener) and not reader.full:
            seconds = spec.hop / leg.goal.rate if hasattr(spec, "hop") else 1.0 / leg.pace.second if leg.pace.second else 0.0
            found.append((reader, seconds))
    return found


def learn(run: Run, costs: Costs) -> None:
    """A run has ended as it should: the paces of its loops."""
    seconds = {}
    for listener in run.listeners.values():
        if listener.made > 0.0:
            for leg in listener.legs:
                # Who is heard himself leads to one unit: with 0 readers it would be all of them, and leads seconds too long.
                read = max((reader.node.units for reader in leg.readers), default=leg.node.units)
                seconds[id(leg.node)] = (listener.made, read)
    for node in run.nodes.values():
        units = node.units
        if not units:
            continue
        pace = costs.pace(run.plan.program, node.step.name)
        size = node.size / units
        found = {"units": float(units), "size": size, "work": node.work / units}
        if node.step.block and node.step.spec.grows:
            found["reach"] = node.size * node.size / (2.0 * units)
        if id(node) in seconds:
            made, reader = seconds[id(node)]
            found["second"] = units / made
            found["next"] = units / max(1, reader)
        pace.learn(**found)
        items: dict[str, float] = {}
        for port, route in node.routes.items():
            count = route.sent if route.channel is None else len(route.channel.items)
            if node.step.spec.ports[port].type == "text":
                if route.channel is None:
                    continue  # pieces were counted, and characters are what is wanted: the two differ by 4
                count = sum(map(len, route.channel.items))
            items[port] = count / max(node.work, 1e-9)
        pace.learn_items(items)
