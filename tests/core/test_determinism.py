"""The same inputs give the same commands: again, in another process, and whatever sizes are granted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from asks import Ask, request
from curse import CURSES, curses
from search import play
from stage import CARDS, CHOICES, LIMITS
from world import solo

import omni_runtime
from omni_runtime.card import OpLimits
from omni_runtime.core import Core
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.scheduler.policy import policy_named
from omni_runtime.sim import SimHandle, Simulation

HERE = Path(__file__).resolve().parent
PACKAGE = str(Path(omni_runtime.__file__).resolve().parents[1])
WORLDS = range(20)
PRINT_DIGEST = "import sys; sys.path[:0] = sys.argv[1:]; from test_determinism import digest; print(digest())"


def digest() -> str:
    """Of every command in twenty random worlds, in order."""
    seen = hashlib.sha256()
    for seed in WORLDS:
        for _, _, commands in play(seed, longest=15).history:
            seen.update(repr(commands).encode())
    return seen.hexdigest()


def elsewhere(hash_seed: int) -> str:
    """The digest as another process with other string hashes finds it."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST, str(HERE), PACKAGE],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_one_schedule_in_every_process() -> None:
    """A set or a hash in the way of a decision would show: `twins` has two read ports on one node."""
    assert elsewhere(0) == elsewhere(1) == elsewhere(4242)


def test_a_replay_gives_equal_commands() -> None:
    """The same inputs at the same times, fed to a fresh core: command for command the same."""
    for seed in WORLDS:
        world = play(seed, longest=30)
        with curses():
            CURSES.update({run: curse for run, (_, curse) in world.asked.items() if curse})
            policy = policy_named(world.core.scheduler.policy.name)
            core = Core(LIMITS, world.max_runs, policy=policy, tenants=world.shares)
            for now, inputs, commands in world.history:
                assert repr(core.feed(now, *inputs)) == repr(commands), f"seed {seed} at {now}"


ASKS = [Ask(choice, seed, prompt, most, 3) for choice in range(len(CHOICES)) for seed, prompt, most in ((1, 9, 7), (4, 20, None))]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_grants_of_any_size_give_the_same_outputs(size: int) -> None:
    """Batches of one token and batches without bound, alone and in a crowd."""
    sim = Simulation(SimulatedExecutor("x", *CARDS, blocks=64), cards=CARDS)
    sim.core.scheduler.limits = {
        key: OpLimits(units=1 if size == 1 else 64, size=max(size, 2 * (key[1] == "denoise")))
        for key in sim.core.scheduler.limits
    }
    sim.handles = {run: SimHandle(run, 0.0) for run, _ in enumerate(ASKS, 1)}
    sim.feed(*(request(run, ask) for run, ask in enumerate(ASKS, 1)))
    sim.run()
    for handle, ask in zip(sim.handles.values(), ASKS, strict=True):
        assert handle.chunks == solo(ask, 64).outputs, ask
    sim.core.check_idle()
