"""An executor that computes nothing: it answers with what loops of that kind give, after the time that a batch would take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp
from random import Random

import numpy as np

from omni_runtime.card import ModelCard
from omni_runtime.scheduler.book import Bill
from omni_runtime.scheduler.cost import Costs
from omni_runtime.simulate.parts import Script
from omni_runtime.work import Answer, ExecutorUp, Message, RunBatch, StepResult

NOTHING = np.zeros(0)  # what is in a ghost's tensors
NORMAL = 1.25  # standard deviation of a normal variable over its mean distance from 0, which is what models keep


class Ghost:
    """One device.

    A batch takes what the models of `truth` predict for its units, work and reach, times a lognormal factor of mean 1 whose
    spread is the model's own usual error, and afterwards the executor stands idle for `truth.gap` seconds, as real ones do while
    the engine makes the next batch.

    Args:
        name: of the executor.
        experts: qualified names of those that it hosts.
        pools: KV blocks by expert.
        truth: prices as they are, which may differ from what the core believes.
        scripts: what each run says.
        seed: of the noise; None: every batch takes exactly what is predicted.
        slots: batches that may lie in its mailbox at once.
        reuse: the KV of ended loops is kept for others that begin alike; copying it takes no time.
    """

    def __init__(
        self,
        name: str,
        experts: Iterable[str],
        pools: Mapping[str, int],
        truth: Costs,
        scripts: Mapping[int, Script],
        seed: int | None = 0,
        slots: int = 1,
        reuse: bool = False,
    ) -> None:
        self.name = name
        self.up = ExecutorUp(name, tuple(experts), dict(pools), slots, reuse)
        self.truth = truth
        self.gap = truth.gap
        self.scripts = scripts
        self.bills: Mapping[int, Bill] = {}  # of its batches in flight; the simulation connects it with the core's
        self.spent = 0.0  # seconds of the batch that runs
        self._dice = Random(f"{name}/{seed}") if seed is not None else None

    def seconds(self, batch: RunBatch) -> float:
        """Until the answer, the gap included."""
        bill = self.bills[batch.batch]
        model = self.truth.model(batch.expert, batch.op)
        spent = model.predict(bill.units, bill.work, bill.reach)
        if self._dice is not None:
            sigma = NORMAL * model.spread
            spent *= exp(sigma * self._dice.gauss(0.0, 1.0) - 0.5 * sigma * sigma)
        self.spent = spent
        return spent + self.gap

    def run(self, message: Message) -> Answer | None:
        if type(message) is not RunBatch:
            return None  # there is nothing to drop or to release
        results: list[StepResult] = []
        scripts, home = self.scripts, self.name
        for row in message.rows:
            script = scripts[row.run]
            part = script.parts.get(row.loop) or script.parts[row.loop.partition("#")[0]]
            result = part.give(script, row, home)
            if result.tensors:
                result.copies = {port: (NOTHING,) * len(refs) for port, refs in result.tensors.items()}
            results.append(result)
        return Answer(home, message.batch, results, self.spent)


def devices(
    count: int,
    cards: Iterable[ModelCard],
    truth: Costs,
    scripts: Mapping[int, Script],
    *,
    kv_bytes: int,
    seed: int | None = 0,
    slots: int = 1,
) -> list[Ghost]:
    """So many devices with all experts each, and one host for the experts that run there."""
    made = []
    for place, names in (("host", ["host#1"]), ("device", [f"sim{i}#1" for i in range(count)])):
        experts: list[str] = []
        pools: dict[str, int] = {}
        for card in cards:
            for short, spec in card.experts.items():
                if spec.place != place:
                    continue
                expert = f"{card.name}/{short}"
                experts.append(expert)
                fixed = any(loop.expert == short and loop.state_blocks for loop in card.loops.values())
                if spec.bytes_per_position or fixed:
                    per_block = spec.bytes_per_position * spec.block
                    pools[expert] = kv_bytes // per_block if per_block else 1 << 16
        made += [Ghost(name, experts, pools, truth, scripts, seed, slots, reuse=place == "device") for name in names if experts]
    return made
