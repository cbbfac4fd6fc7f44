"""What is in flight comes back: less urgent work is not queued behind it, where that would make the next step wait."""

from __future__ import annotations

from typing import Any

import pytest
import toys

from omni_runtime.executors.simulated import Cost, SimulatedExecutor
from omni_runtime.program import Program
from omni_runtime.scheduler.cost import Costs
from omni_runtime.sim import Simulation
from omni_runtime.work import Command, RunBatch

SECONDS = {"velocity": 0.02, "recite": 0.01, "ponder": 0.01, "decode_window": 0.005}
LETTER = {"velocity": "F", "recite": "t", "ponder": "h", "decode_window": "S", "prepare": "p", "hear": "e"}
# A frame of the flow is 20 ms of sound: what lies before it is worth waiting for.
CROON = toys.CARD.loops["croon"].model_copy(update={"hop": 160})
CARD = toys.CARD.model_copy(update={"loops": {**toys.CARD.loops, "croon": CROON}})
COSTS = {(f"toy/{'flow' if op in ('velocity', 'decode_window') else 'talker'}", op): Cost(s) for op, s in SECONDS.items()}


class Noted(Simulation):
    """With its batches, a letter each."""

    noted = ""

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, RunBatch):
            self.noted += LETTER[command.op]
        super()._carry_out(command)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setattr(toys, "CARD", CARD)
    return toys.tale()


def story(program: Program) -> str:
    """The batches of a request whose like was seen before."""
    world = Noted(SimulatedExecutor("x", CARD, slots=2, costs=COSTS, stops=0), cards=[CARD])
    given: dict[str, Any] = {"recite": {"max_frames": 30}, "ponder": {"max_tokens": 4}, "flow": {"num_steps": 6}}
    for _ in range(2):
        world.noted = ""
        world.submit(program, messages="0 2", seed=0, **given)
        world.run()
    return world.noted


def test_a_talker_does_not_run_between_the_steps_of_the_first_sound(program: Program) -> None:
    """A flow takes 20 velocities to the first sound. With a second place in the mailbox, a code was drawn beside each of them,
    and the first sound came half as late again."""
    noted = story(program)
    before = noted[noted.index("F") : noted.index("S")]
    assert before.count("F") == 20 and before.count("t") <= 3, noted


def test_short_batches_are_queued_early(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the gap between two batches is worth more than a tenth of one, the executor does not stand idle for it."""
    monkeypatch.setattr(Costs, "gap", property(lambda _: 0.002, lambda *_: None), raising=False)
    noted = story(program)
    before = noted[noted.index("F") : noted.index("S")]
    assert before.count("t") > 12, noted
