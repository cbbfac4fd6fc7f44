"""A process whose workers are to outlive it, if they can. python orphans.py MARK STAGE FLAG"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from process_toys import call, specs

from omni_runtime.executors.process import ProcessExecutor

if __name__ == "__main__":
    mark, stage, flag = sys.argv[1:]
    executor = ProcessExecutor(f"{mark}#1", specs(flag=flag), {})
    executor.launch()
    if stage not in ("begun", "loading"):
        executor.start(lambda report: None)
    if stage in ("sleep", "hold"):
        executor.send(call(executor.name, 1, stage, s=600))
    if stage == "loading":
        time.sleep(0.4)
    print(executor.pid, flush=True)
    time.sleep(600)
