"""A command like those of `omni`, whose one request takes long. python commanded.py MARK STAGE FLAG"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from process_toys import program

from omni_runtime.cli import guarded
from omni_runtime.runtime import Runtime
from omni_runtime.stopping import Stopping


def work() -> None:
    """Says where it is, so that it can be interrupted there."""
    mark, stage, flag = sys.argv[1:]
    slow = program("sleep", flag=flag)
    print("loading", flush=True)
    with Runtime(slow.cards.values(), executor="process", workers={mark: ["toy/toy"]}) as runtime:
        handle = runtime.submit(slow, **{"in": 1, "s": 600.0 if stage == "hangs" else 1.0})
        print("running", flush=True)
        handle.result()


if __name__ == "__main__":
    stopping = Stopping()
    stopping.install()
    sys.exit(guarded(work, stopping))
