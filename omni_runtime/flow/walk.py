"""Walking a program: look at a node, offer its step, take its results, wake whoever reads them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from omni_runtime.channel import Reader
from omni_runtime.errors import ExecutorLost, RequestTooLarge
from omni_runtime.flow.aim import learn
from omni_runtime.flow.run import Node, Route, Run, key
from omni_runtime.orders import Blocked, Claim, Claimed, Closed, Event, LoopDone, UnitReady, Withdrawn
from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.goal import NEVER, Goal, Listener, asked
from omni_runtime.scheduler.rank import due, sooner
from omni_runtime.work import Chunk, Command, Done, End, OutputEnd, Push, Release, StepResult, TensorRef, Wait, WorkUnit

Safe = Callable[[Listener, float, float], bool]


class Walk:
    """The verbs on nodes. Events for the scheduler gather in `events`, commands for the world in `out`.

    Args:
        costs: prices and paces; paces are learned here, from runs that ended as they should.
        sized: loops that are listened to offer what their listener's buffer asks for.
        safe: whether a listener who was promised something may begin to hear.

    With `observed`, `events` also holds why loops offer nothing; the core takes that out before the scheduler sees it.
    """

    def __init__(self, costs: Costs | None = None, sized: bool = True, safe: Safe | None = None) -> None:
        self.costs = costs or Costs()
        self.sized = sized  # listeners say how much of an offer they want
        self.safe: Safe = safe or (lambda listener, now, arrival: True)  # whether a promised listener may begin
        self.runs: dict[int, Run] = {}
        self.now = 0.0
        self.out: list[Command] = []
        self.events: list[Event | Blocked] = []
        self.observed = False
        self.ends: list[End] = []  # told in the stories of runs
        self.todo: deque[Node] = deque()

    # -- Looking

    def touch(self, node: Node) -> None:
        """Something that this node depends on moved."""
        if not node.queued:
            node.queued = True
            self.todo.append(node)

    def settle(self) -> None:
        """Looks at every touched node until nothing moves any more."""
        todo = self.todo
        while todo:
            node = todo.popleft()
            node.queued = False
            self.poll(node)

    def poll(self, node: Node) -> None:
        """Asks a node for its next step and offers it, or ends the node."""
        run = node.run
        if run.ended or node.busy or node.done or not (node.primed or self._prime(node)):
            return
        try:
            step = node.loop.next(node.state)
            if not run.claimed and node.step.pooled and type(step) is WorkUnit:  # not before: prompts are known by now
                self._claim(run)
        except Exception as error:  # whatever a loop raises is its request's end and nobody else's
            self.fail(run, node, error)
            return
        if type(step) is Done:
            self._stop(node)
            return
        had = node.unit
        if type(step) is WorkUnit:
            if node.heard is not None and self.sized and step.hi > step.lo:
                step = self._as_asked(node, step)
            node.unit = unit = step
        else:
            node.unit = unit = None
            if self.observed and type(step) is Wait:
                self._blocked(node, "input", _source(node.readers[step.reader]))
        self.offer(node)
        if node.sources and (unit is None) is not (had is None):
            self._reoffer_sources(node)  # whether this node may run decides who is held back

    def _as_asked(self, node: Node, unit: WorkUnit) -> WorkUnit:
        """An offer cut to what the listener wants; decided once a step, since his buffer drains while it waits."""
        if node.asked[0] != unit.at and node.heard is not None:
            listener, leg, seconds = node.heard
            node.asked = (unit.at, asked(listener, leg, self.now, seconds, unit.weight, self.costs.beside(), 1 << 30))
        most = max(unit.lo, node.asked[1])
        if node.run.rebuilt and node.heard is not None:  # frames that he has: catching up in small chunks would keep him waiting
            listener, _, seconds = node.heard
            most += max(0, int(listener.made / seconds + 0.5) - unit.at)
        return unit if unit.hi <= most else replace(unit, hi=most)

    def _prime(self, node: Node) -> bool:
        for reader in node.full:
            if reader.channel.closed is None:
                if self.observed:
                    self._blocked(node, "input", _source(reader))
                return False
        twin = node.twin
        if twin is not None and not (twin.done or (twin.primed and twin.loop.forkable(twin.state))):
            if self.observed:
                self._blocked(node, "input", twin.name)
            return False
        try:
            node.state = node.loop.init(node.ctx)
        except Exception as error:
            self.fail(node.run, node, error)
            return False
        node.primed = True
        return True

    def _claim(self, run: Run) -> None:
        claims = []
        for node in run.nodes.values():
            if node.step.pooled and not node.done:
                least, most = node.loop.claim(node.ctx)
                claims.append(Claim(node.name, node.step.expert, least, most))
        run.claimed = True
        self.events.append(Claimed(run.id, tuple(claims)))

    def offer(self, node: Node) -> None:
        """Tells the scheduler what changed: a new or larger offer, or none."""
        unit = node.unit
        if unit is not None and node.streams and node.held_back():
            unit = None
            if self.observed:
                self._blocked(node, "reader", *(r.node.name for r in node.streams if r.attached and r.filled))
        old = node.offered
        if unit is None:
            if old is not None:
                node.offered = None
                self.events.append(Withdrawn(node.run.id, node.name))
        elif old is None or old.hi != unit.hi or old.at != unit.at:
            node.offered = unit
            ready = self.now
            by = due(ready, node.run.priority)
            if node.legs:
                if node.run.deadline is not None and not node.units & 7:  # what is left changes slowly
                    node.run.deadline.refresh()
                by = sooner(ready, by, node.legs)
            self.events.append(UnitReady(unit, by))

    def _blocked(self, node: Node, why: str, *on: str) -> None:
        self.events.append(Blocked(node.run.id, node.name, why, on))

    def _reoffer_sources(self, node: Node) -> None:
        for reader in node.sources:
            source: Node = reader.channel.source
            if source.unit is not None and not source.busy and not source.queued:  # queued: its unit may be the one just done
                self.offer(source)

    # -- Moving

    def take(self, node: Node, size: int, result: StepResult) -> None:
        """A unit is back."""
        node.units += 1
        node.size += size
        run = node.run
        weight = node.unit.weight if node.unit is not None else 1.0
        node.work += size * weight
        if weight != 1.0:
            self.costs.pace(run.plan.program, node.step.name).weigh(weight, node.units == 1)
        if result.tensors:
            self._copy(node, result)
        counts = node.counts
        before = counts.cursor if counts is not None else 0
        try:
            for push in node.loop.advance(node.state, size, result):
                self.push(node, push)
            if node.siblings and node.loop.forkable(node.state):
                for sibling in node.siblings:
                    self.touch(sibling)
                node.siblings = []
        except Exception as error:
            self.fail(run, node, error)
            self.discard(node, result)
            return
        if counts is not None:
            self.costs.pace(run.plan.program, counts.channel.source.step.name).waited(counts.cursor - before)
        if result.tensors:
            self.release(ref for port, refs in result.tensors.items() if port not in node.routes for ref in refs)
        if node.tensors:
            for reader in node.tensors:
                self.release(reader.channel.collect())
        if node.sources:
            self._reoffer_sources(node)

    def _copy(self, node: Node, result: StepResult) -> None:
        """Keeps what survives the executor of tensors that somebody reads."""
        run = node.run
        for port, refs in result.tensors.items():
            route = node.routes.get(port)
            if route is not None and route.channel is not None:
                run.there.update(refs)
                run.copies.update(zip(refs, result.copies.get(port, ()), strict=False))

    def discard(self, node: Node, result: StepResult) -> None:
        """Results of an ended run: its tensors go, except those that a channel holds and `Finish` will give back."""
        for port, refs in result.tensors.items():
            route = node.routes.get(port)
            held = route.channel.held() if route is not None and route.channel is not None else ()
            self.release(ref for ref in refs if ref not in held)

    def push(self, node: Node, push: Push) -> None:
        """Items to the outputs that show them and to the channel that carries them. What went out before is trimmed."""
        route = node.routes.get(push.port)
        if route is None:
            return
        if route.outputs:
            again = route.sent - push.start
            assert again >= 0, f"{node.name}.{push.port}: items start at {push.start}, {route.sent} were sent"
            fresh = push.items[again:] if again else push.items
            if len(fresh):
                start = route.sent
                route.sent = start + len(fresh)
                if route.listener is not None:
                    self._sound(node, route, route.listener, fresh)
                else:
                    for name in route.outputs:
                        self.out.append(Chunk(node.run.id, name, start, fresh, node.sample))
                    if route.first is not None:
                        self._came(node.run, route.first)
        channel = route.channel
        if channel is not None:
            waste = channel.push(push.start, push.items)
            if waste:
                self.release(waste)
            for reader in channel.readers:
                reading: Node = reader.node
                if not reader.full and not reading.queued and not reading.busy:
                    self.touch(reading)

    def _sound(self, node: Node, route: Route, listener: Listener, samples: Any) -> None:
        """Sound for a listener: at once, or when his start is safe."""
        listener.made += len(samples) / listener.rate
        if not listener.promised or listener.begun:
            self._deliver(node, route, listener, samples)
        else:
            listener.held.append(samples)
            if self.safe(listener, self.now, node.run.arrival):
                self._open(node, route, listener)
        listener.refresh()

    def _open(self, node: Node, route: Route, listener: Listener) -> None:
        held, listener.held = listener.held, []
        for samples in held:
            self._deliver(node, route, listener, samples)

    def _deliver(self, node: Node, route: Route, listener: Listener, samples: Any) -> None:
        for name in route.outputs:
            self.out.append(Chunk(node.run.id, name, listener.shown, samples, node.sample))
        listener.shown += len(samples)
        if not listener.begun:
            self._came(node.run, listener)
        listener.hear(self.now, len(samples) / listener.rate)

    def _came(self, run: Run, goal: Goal) -> None:
        """The first piece of an output is there."""
        if run.submit.first_output is not None and self.now > run.arrival + run.submit.first_output:
            run.late = True
        if not isinstance(goal, Listener):
            goal.by = NEVER

    def release(self, refs: Iterable[TensorRef]) -> None:
        homes: dict[str, list[TensorRef]] = {}
        for ref in refs:
            homes.setdefault(ref.home, []).append(ref)
            if (run := self.runs.get(ref.run)) is not None:
                run.there.discard(ref)
        for home, found in homes.items():
            self.out.append(Release(home, tuple(found)))

    # -- Ending

    def _stop(self, node: Node) -> None:
        """The node has no step any more: its outputs are complete and it lets go of what it read and held."""
        run = node.run
        try:
            node.summary = node.loop.finalize(node.state)
        except Exception as error:
            self.fail(run, node, error)
            return
        node.done, node.unit = True, None
        for sibling in node.siblings:
            self.touch(sibling)
        for reader in node.readers.values():
            reader.detach()
            self.release(reader.channel.collect())
            if reader.channel.device and not any(other.attached for other in reader.channel.readers):
                for ref in reader.channel.items:
                    run.copies.pop(ref, None)
        self._reoffer_sources(node)
        self.events.append(LoopDone(run.id, node.name, node.loop.held(node.state)))
        for route in node.routes.values():
            if route.channel is not None:
                route.channel.close("done")
                for reader in route.channel.readers:
                    self.touch(reader.node)
            if route.listener is not None:
                self._open(node, route, route.listener)
                route.listener.end()
            for name in route.outputs:
                self.out.append(OutputEnd(run.id, name, node.summary, node.sample))
                del run.open[name, node.sample]
        if not run.open:
            self.end(run, "done")

    def fail(self, run: Run, node: Node, error: Exception) -> None:
        """An exception of a loop ends its run; only its text is kept."""
        if isinstance(error, RequestTooLarge | ExecutorLost):
            self.end(run, "too_large" if isinstance(error, RequestTooLarge) else "lost", str(error))
        else:
            self.end(run, "failed", f"{node.name}: {error!r}")

    def end(self, run: Run, reason: str, detail: str = "", retry_after: float = 0.0) -> None:
        """The caller knows at once; the books close when the units in flight are back."""
        if run.ended:
            return
        if reason == "done":
            if not run.rebuilt:  # or what was done twice would count as usual
                learn(run, self.costs)
        elif reason != "cancelled":  # what was made stays valid
            for node in run.nodes.values():
                for route in node.routes.values():
                    if route.listener is not None and route.listener.held:
                        self._open(node, route, route.listener)
        run.ended = reason
        usage = {}
        for node in run.nodes.values():
            if node.state is not None and not node.done:
                node.summary = _summary(node)
            usage[node.name] = node.summary.usage
        end = End(
            run.id,
            reason,
            detail,
            {n.name: n.units for n in run.nodes.values()},
            usage,
            silence={key(output, sample): listener.silence for (output, sample), listener in run.listeners.items()},
            missed=self._missed(run),
            retry_after=retry_after,
            rebuilt=run.rebuilt,
        )
        self.out.append(end)
        self.ends.append(end)
        self.events.append(Closed(run.id))

    def _missed(self, run: Run) -> tuple[str, ...]:
        submit = run.submit
        missed = []
        if submit.deadline is not None and self.now > run.arrival + submit.deadline:
            missed.append("deadline_s")
        if submit.first_output is not None and (run.late or (self.now > run.arrival + submit.first_output and run.open)):
            missed.append("first_output_s")
        return tuple(missed)


def _source(reader: Reader) -> str:
    return getattr(reader.channel.source, "name", "the request")


def _summary(node: Node) -> Any:
    try:
        return node.loop.finalize(node.state)
    except Exception:
        return node.summary
