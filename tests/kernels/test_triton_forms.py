"""Two processes for all Triton kernels: one runs them in the interpreter, one compiles them for GPUs that are not here.

Whether a kernel is interpreted or compiled is settled when triton is imported.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
LEAST = {"interpreted": (221, {"TRITON_INTERPRET": "1"}), "compiled": (87, {})}  # tests; fewer, and some were lost


@pytest.mark.parametrize("kind", LEAST)
def test_every_kernel(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    least, environment = LEAST[kind]
    inherited = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "OMNI_KERNELS")}
    inherited |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]), "OMP_NUM_THREADS": "1"} | environment
    inherited |= {"TRITON_CACHE_DIR": str(tmp_path)}  # compiled afresh, and nothing left behind
    files = [str(path) for path in sorted(HERE.glob(f"{kind}*.py"))]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", *files]
    done = subprocess.run(command, cwd=ROOT, env=inherited, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout and int(re.search(r"(\d+) passed", done.stdout)[1]) >= least
