"""The same inputs give the same commands: again, in another process, and whatever sizes are granted."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from search import play

HERE = Path(__file__).resolve().parent
WORLDS = range(20)
PRINT_DIGEST = "import sys; sys.path[:0] = sys.argv[1:]; from test_determinism import digest; print(digest())"


def digest() -> str:
    """Of every command in twenty random worlds, in order."""
    seen = hashlib.sha256()
    for seed in WORLDS:
        for command in play(seed, longest=30).trace or ():
            seen.update(command.encode())
    return seen.hexdigest()


def elsewhere(hash_seed: int) -> str:
    """The digest as another process with other string hashes finds it."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST, str(HERE), str(HERE.parents[1])],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_one_schedule_in_every_process() -> None:
    """A set or a hash in the way of a decision would show: `twins` has two read ports on one node."""
    assert elsewhere(0) == elsewhere(1) == elsewhere(4242)
