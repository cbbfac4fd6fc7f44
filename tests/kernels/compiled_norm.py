"""Compiles the Triton norm for GPUs that are not here. Not collected by name: `test_norm.py` runs it in a process of its own.

Proves that the kernel compiles with the signatures that the wrapper launches, without spilled registers; not that it is right.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

assert "TRITON_INTERPRET" not in os.environ

from omni_runtime.kernels.norm_triton import WIDEST, _kernel, settings  # noqa: E402

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TARGETS = {"sm_80": GPUTarget("cuda", 80, 32), "sm_90": GPUTarget("cuda", 90, 32), "gfx942": GPUTarget("hip", "gfx942", 64)}


def spills(kernel: "triton.compiler.CompiledKernel") -> int:
    """Register spills of a compiled kernel, from its own metadata (AMD) or its machine code (NVIDIA)."""
    if "amdgcn" in kernel.asm:
        return sum(int(re.search(rf"\.{kind}_spill_count:\s+(\d+)", kernel.asm["amdgcn"])[1]) for kind in ("vgpr", "sgpr"))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        code = subprocess.run([TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True).stdout
    return len(re.findall(r"\b(?:STL|LDL)\b", code))


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("features", [576, WIDEST])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("target", TARGETS)
def test_compiles_without_spills(target: str, dtype: str, features: int, add: bool) -> None:
    launch = settings(features)
    constants = {"BLOCK": launch["BLOCK"], "ADD": add}
    types = dict.fromkeys(("x", "residual", "weight", "out", "total"), f"*{dtype}")
    types |= {"stride": "i32", "features": "i32", "eps": "fp32"} | dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(_kernel.arg_names) if name not in (*constants, "eps")}
    source = ASTSource(_kernel, {name: types[name] for name in _kernel.arg_names}, constants, aligned)
    kernel = triton.compile(source, target=TARGETS[target], options={name: launch[name] for name in launch if name != "BLOCK"})
    assert spills(kernel) == 0
