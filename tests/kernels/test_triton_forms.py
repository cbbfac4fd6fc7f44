"""Two processes for all Triton kernels: one runs them in the interpreter, one compiles them for GPUs that are not here. Two more
do a part of it with the triton and numpy of the GPU image.

Whether a kernel is interpreted or compiled is settled when triton is imported. That part is: every op against its definition in
the interpreter, and every kernel compiled for sm_90. `make .build/gpu-image/stamp` installs that triton.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
LEAST = {"interpreted": 347, "compiled": 101}  # tests; fewer, and some were lost
IMAGE = ROOT / ".build" / "gpu-image"
SMOKE = "definition or draws_what or repair or place_of_another"  # each op, each dtype; the repair of that interpreter
ONCE = (
    "rms_norm 2048", "add_rms_norm 4096", "product 16 rows", "product 2048 rows", "silu_mul 2x3072", "rotary halves",
    "norm_rotary 3 axes", "store_kv 8x128", "paged_attention 128, 4 a head", "joint_attention 64", "fused_moe 2048 tokens",
    "draw_tokens changed", "modulate 1536", "gate 1536", "guided_euler", "snake_beta", "causal_conv 300",
    "causal_transposed_conv", "depthwise_norm 1024",
)  # fmt: skip


def passed(kind: str, arguments: list[str], path: list[Path], cache: Path) -> int:
    """How many tests passed in a process of their own. AssertionError if one failed or was skipped."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "OMNI_KERNELS")}
    inherited |= {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT, HERE])), "OMP_NUM_THREADS": "1"}
    inherited |= {"TRITON_INTERPRET": "1"} if kind == "interpreted" else {}
    inherited |= {"TRITON_CACHE_DIR": str(cache)}  # compiled afresh, and nothing left behind
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=inherited, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
    return int(re.search(r"(\d+) passed", done.stdout)[1])


def files(kind: str) -> list[str]:
    return [str(path) for path in sorted(HERE.glob(f"{kind}*.py"))]


@pytest.mark.parametrize("kind", LEAST)
def test_every_kernel(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    assert passed(kind, files(kind), [], tmp_path) >= LEAST[kind]


def test_with_the_triton_of_the_gpu_image(tmp_path: Path) -> None:
    assert (IMAGE / "stamp").exists(), f"no {IMAGE}: `make .build/gpu-image/stamp` installs the triton that the GPU image has"
    pins = dict(line.split("==") for line in (ROOT / "constraints-gpu-image.txt").read_text().splitlines() if "==" in line)
    told = "import numpy, triton; print(triton.__version__, numpy.__version__)"
    found = subprocess.run(
        [sys.executable, "-c", told], env=os.environ | {"PYTHONPATH": str(IMAGE)}, capture_output=True, text=True
    )
    assert found.stdout.split() == [pins["triton"], pins["numpy"]], found.stdout + found.stderr
    quiet = ["-W", "ignore:Conversion of an array"]  # what that interpreter does with numpy
    assert passed("interpreted", [*files("interpreted"), "-k", SMOKE, *quiet], [IMAGE], tmp_path) >= 55
    each = [f"{HERE / 'compiled.py'}::test_fits_its_budget[{name}-sm_90]" for name in ONCE]
    assert passed("compiled", each, [IMAGE], tmp_path) == len(ONCE)
