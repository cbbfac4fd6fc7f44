"""Processes for all Triton kernels: some run them in the interpreter, some compile them for GPUs that are not here. Two more
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
# Files and a choice among their tests, in a process each, and how many tests that are: fewer, and some were lost. In parts of a
# minute or less, so that no core is left alone with one at the end.
PARTS = {
    "interpreted, a to g": ("interpreted_[a-g]*.py", "", 143),
    "interpreted, h to z": ("interpreted_[h-z]*.py", "", 203),
    "compiled for sm_80": ("compiled.py", "sm_80", 33),
    "compiled for sm_90": ("compiled.py", "sm_90", 33),
    "compiled for gfx942, and what compiles for none": ("compiled.py", "not sm_80 and not sm_90", 35),
}
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
    inherited |= {"TRITON_INTERPRET": "1"} if kind.startswith("interpreted") else {}
    inherited |= {"TRITON_CACHE_DIR": str(cache)}  # compiled afresh, and nothing left behind
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=inherited, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
    return int(re.search(r"(\d+) passed", done.stdout)[1])


def files(pattern: str) -> list[str]:
    return [str(path) for path in sorted(HERE.glob(pattern))]


@pytest.mark.parametrize("part", PARTS)
def test_every_kernel(part: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    pattern, choice, least = PARTS[part]
    assert passed(pattern, [*files(pattern), "-k", choice], [], tmp_path) >= least


def test_no_file_is_left_out() -> None:
    found = [name for pattern in {pattern for pattern, _, _ in PARTS.values()} for name in files(pattern)]
    assert sorted(found) == sorted(files("interpreted*.py") + files("compiled*.py"))


def test_with_the_triton_of_the_gpu_image(tmp_path: Path) -> None:
    assert (IMAGE / "stamp").exists(), f"no {IMAGE}: `make .build/gpu-image/stamp` installs the triton that the GPU image has"
    pins = dict(line.split("==") for line in (ROOT / "constraints-gpu-image.txt").read_text().splitlines() if "==" in line)
    told = "import numpy, triton; print(triton.__version__, numpy.__version__)"
    found = subprocess.run(
        [sys.executable, "-c", told], env=os.environ | {"PYTHONPATH": str(IMAGE)}, capture_output=True, text=True
    )
    assert found.stdout.split() == [pins["triton"], pins["numpy"]], found.stdout + found.stderr
    quiet = ["-W", "ignore:Conversion of an array"]  # what that interpreter does with numpy
    assert passed("interpreted", [*files("interpreted*.py"), "-k", SMOKE, *quiet], [IMAGE], tmp_path) >= 55
    each = [f"{HERE / 'compiled.py'}::test_fits_its_budget[{name}-sm_90]" for name in ONCE]
    assert passed("compiled", each, [IMAGE], tmp_path) == len(ONCE)
