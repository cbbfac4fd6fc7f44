"""The flow's door: what comes in moves runs, and what the scheduler orders becomes commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omni_runtime.flow.aim import aim
from omni_runtime.flow.run import Node, Run
from omni_runtime.flow.walk import Safe, Walk
from omni_runtime.orders import (
    Admitted,
    BatchDone,
    BatchFailed,
    Claimed,
    Dispatch,
    Evict,
    Fail,
    Finish,
    Forget,
    Held,
    Instruction,
    Parked,
    Preempted,
    Rebuilt,
    Refuse,
    Submitted,
)
from omni_runtime.scheduler.cost import Costs
from omni_runtime.work import (
    Answer,
    Broken,
    Cancel,
    Drop,
    End,
    ExecutorDown,
    ExecutorUp,
    Input,
    Played,
    Preempt,
    Row,
    RunBatch,
    Submit,
    TensorRef,
    Waiting,
    refs_of,
)


class Flow(Walk):
    """Applies inputs and instructions to runs."""

    def __init__(self, costs: Costs | None = None, sized: bool = True, safe: Safe | None = None, whole: bool = False) -> None:
        super().__init__(costs, sized, safe)
        self.whole = whole  # hand-offs wait until all of them is there
        self.flying: dict[int, tuple[str, list[tuple[Node, int]]]] = {}  # batch -> executor, (node, size) of every row

    def apply(self, item: Input) -> None:
        INPUTS[type(item)](self, item)

    def obey(self, order: Instruction) -> None:
        ORDERS[type(order)](self, order)

    # -- Inputs

    def _submit(self, item: Submit) -> None:
        assert item.run not in self.runs, f"run id {item.run} is in use"
        try:
            run = Run(item, self.now, self.whole)
            aim(run, self.costs)
        except Exception as error:
            self.out.append(End(item.run, "failed", repr(error)))
            return
        self.runs[run.id] = run
        promised = tuple(run.listeners.values()) if item.promised else ()
        rebuilds = all(step.spec.rebuilds for step in run.plan.steps)
        self.events.append(
            Submitted(run.id, self.now, run.priority, run.plan.together, item.tenant, promised, item.first_output, rebuilds)
        )
        if promised and not any(step.pooled for step in run.plan.steps):
            run.claimed = True
            self.events.append(Claimed(run.id, ()))
        for node in run.nodes.values():
            self.touch(node)

    def _cancel(self, item: Cancel) -> None:
        run = self.runs.get(item.run)
        if run is not None:
            self.end(run, "cancelled")

    def _preempt(self, item: Preempt) -> None:
        run = self.runs.get(item.run)
        if run is not None and not run.ended:
            self.events.append(Preempted(run.id))

    def _played(self, item: Played) -> None:
        run = self.runs.get(item.run)
        listener = run.listeners.get((item.output, item.sample)) if run is not None else None
        if listener is not None:
            listener.played(self.now, item.seconds)

    def _answer(self, item: Answer) -> None:
        flight = self.flying.pop(item.batch, None)
        if flight is None or flight[0] != item.executor:  # an executor that was given up answers late
            if flight is not None:
                self.flying[item.batch] = flight
            return
        members = flight[1]
        if len(item.results) != len(members):
            self.flying[item.batch] = flight
            self.release(dict.fromkeys(ref for result in item.results for refs in result.tensors.values() for ref in refs))
            self._broken(Broken(item.executor, item.batch, f"{len(members)} rows gave {len(item.results)} results"))
            return
        self.events.append(BatchDone(item.batch, item.seconds))
        for (node, size), result in zip(members, item.results, strict=True):
            node.busy = False
            if node.run.ended:
                self.discard(node, result)
            else:
                self.take(node, size, result)
                self.touch(node)

    def _broken(self, item: Broken) -> None:
        flight = self.flying.pop(item.batch, None)
        if flight is None or flight[0] != item.executor:
            if flight is not None:
                self.flying[item.batch] = flight
            return
        self.events.append(BatchFailed(item.batch, item.error))
        for node, _ in flight[1]:
            node.busy = False
            self.touch(node)

    def _up(self, item: ExecutorUp) -> None:
        self.events.append(item)

    def _down(self, item: ExecutorDown) -> None:
        self.events.append(item)
        for batch, (executor, members) in list(self.flying.items()):
            if executor == item.executor:
                del self.flying[batch]
                for node, _ in members:
                    node.busy = False
                    self.touch(node)

    # -- Instructions

    def _dispatch(self, order: Dispatch) -> None:
        rows: list[Row] = []
        brought: dict[TensorRef, Any] = {}
        members: list[tuple[Node, int]] = []
        executor = order.executor
        for grant in order.grants:
            run = self.runs[grant.run]
            if run.ended:
                continue
            node = run.nodes[grant.loop]
            size = grant.size
            try:
                payload = node.loop.bind(node.state, size, grant.fork.length if grant.fork is not None else 0)
                if node.tensors:
                    brought |= run.bring(refs_of(payload), executor)
            except Exception as error:
                self.fail(run, node, error)
                for other in [m for m in members if m[0].run is run]:  # its other loops have just been bound
                    del rows[members.index(other)]
                    members.remove(other)
                    other[0].busy = False
                continue
            fork = grant.fork
            computed = size if fork is None else size - fork.length
            rows.append(Row(grant.run, grant.loop, computed, grant.first, grant.blocks, payload, fork))
            members.append((node, size))
            node.busy, node.offered = True, None
        if rows:
            self.flying[order.batch] = (executor, members)
            self.out.append(RunBatch(executor, order.batch, order.expert, order.op, rows, tuple(brought.items())))
        else:
            self.events.append(BatchDone(order.batch))

    def _evict(self, order: Evict) -> None:
        """Loops go back to where they can begin again, and everything is offered anew."""
        run = self.runs[order.run]
        if run.ended:
            return
        run.rebuilt += 1
        for name in order.loops:
            node = run.nodes[name]
            assert not node.busy, f"{name} of run {run.id} is in flight and evicted"
            if not node.step.spec.rebuilds:
                why = f"{name}: what its executor kept cannot be made again (rebuilds=False on its card)"
                self.end(run, "lost", why)
                return
            if node.primed and not node.done:
                node.unit = None
                try:
                    node.loop.rebuild(node.state)
                except Exception as error:
                    self.fail(run, node, error)
                    return
        self.events.append(Rebuilt(run.id))
        for node in run.nodes.values():
            node.offered = None
            self.touch(node)

    def _parked(self, order: Parked) -> None:
        """Nothing changes for the flow: the offer stands."""

    def _admitted(self, order: Admitted) -> None:
        run = self.runs[order.run]
        for loop, blocks in order.blocks.items():
            node = run.nodes[loop]
            node.ctx.room = (blocks - node.step.spec.state_blocks) * node.step.block
        if run.waits:
            run.waits = False
            self.out.append(Waiting(run.id, None))

    def _held(self, order: Held) -> None:
        self.runs[order.run].waits = True
        self.out.append(Waiting(order.run, order.seconds))

    def _fail(self, order: Fail) -> None:
        self.end(self.runs[order.run], order.reason, order.detail)

    def _refuse(self, order: Refuse) -> None:
        self.end(self.runs[order.run], order.reason, order.detail, order.retry_after)

    def _finish(self, order: Finish) -> None:
        for node in self.runs.pop(order.run).nodes.values():
            for route in node.routes.values():
                if route.channel is not None:
                    self.release(ref for ref in route.channel.held() if ref in node.run.there)

    def _forget(self, order: Forget) -> None:
        self.out.append(Drop(order.executor, order.slots))

    # -- Books

    def check(self) -> None:
        """Looks at every node again: whatever would change now is a wake-up that was lost."""
        assert not self.todo and not self.events
        flying = {id(node): node for _, members in self.flying.values() for node, _ in members}
        for run in self.runs.values():
            for node in run.nodes.values():
                assert node.busy == (id(node) in flying), f"{node.name} of run {run.id}: busy is {node.busy}"
                if run.ended or node.busy:
                    continue
                before = (node.unit, node.offered, node.done, node.primed)
                self.poll(node)
                assert not self.todo and not self.events and before == (node.unit, node.offered, node.done, node.primed), (
                    f"lost wake-up of {node.name} of run {run.id}: {self.events}"
                )


INPUTS: dict[type, Callable[[Flow, Any], None]] = {
    Submit: Flow._submit,
    Cancel: Flow._cancel,
    Preempt: Flow._preempt,
    Played: Flow._played,
    Answer: Flow._answer,
    Broken: Flow._broken,
    ExecutorUp: Flow._up,
    ExecutorDown: Flow._down,
}
ORDERS: dict[type, Callable[[Flow, Any], None]] = {
    Dispatch: Flow._dispatch,
    Evict: Flow._evict,
    Parked: Flow._parked,
    Admitted: Flow._admitted,
    Held: Flow._held,
    Refuse: Flow._refuse,
    Fail: Flow._fail,
    Finish: Flow._finish,
    Forget: Flow._forget,
}
