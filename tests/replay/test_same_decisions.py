"""What was recorded of random worlds, failures and losses included, is decided again: command for command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[1] / "core"
sys.path.insert(0, str(CORE))

from curse import CURSES, curses  # noqa: E402
from search import play as play_world  # noqa: E402
from stage import CARDS, LIMITS  # noqa: E402
from world import World  # noqa: E402

from omni_runtime.core import Core  # noqa: E402
from omni_runtime.replay import Recording, RecordLog, play  # noqa: E402
from omni_runtime.replay.read import Log  # noqa: E402
from omni_runtime.scheduler.policy import policy_named  # noqa: E402


def record(world: World, path: Path, **how: bool) -> None:
    """A world's history through a recorder."""
    CURSES.update({run: curse for run, (_, curse) in world.asked.items() if curse})
    core = Core(LIMITS, world.max_runs, policy=policy_named(world.core.scheduler.policy.name), tenants=world.shares)
    log = RecordLog(Recording(path, **how), core, CARDS)
    for now, inputs, _ in world.history:
        core.feed(now, *inputs)
    log.close()
    assert log.feeds == len(world.history)


@pytest.mark.parametrize("seed", range(12))
def test_worlds(seed: int, tmp_path: Path) -> None:
    world = play_world(seed, longest=30)
    with curses():
        record(world, tmp_path / "log.jsonl")
        played = play(tmp_path / "log.jsonl", cards=CARDS)
        played.check()
        assert played.feeds == len(world.history) and played.runs == len(world.asked) and not played.torn
        for feed, (now, inputs, _) in zip(Log(tmp_path / "log.jsonl").feeds(), world.history, strict=True):
            assert feed.now == now
            for mine, theirs in zip(feed.inputs, inputs, strict=True):
                assert repr(mine) == repr(theirs) or "array" in repr(theirs)
        record(world, tmp_path / "redacted.jsonl", redact=True)
        play(tmp_path / "redacted.jsonl").check()
