"""Compiles for GPUs that are not here what the public wrappers launch: a launch on meta tensors becomes a compilation.

So the signature, the specialisation and the settings are those of production. Nothing runs: it says nothing about speed,
numbers or races.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TARGETS = {"sm_80": GPUTarget("cuda", 80, 32), "sm_90": GPUTarget("cuda", 90, 32), "gfx942": GPUTarget("hip", "gfx942", 64)}
SHARED = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}  # bytes that a program may have


class Driver:
    """What triton asks of a device before it launches."""

    def __init__(self, name: str) -> None:
        self._target, self._device = TARGETS[name], list(TARGETS).index(name)  # what is compiled is kept by number of the device

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return self._device

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    @staticmethod
    def is_active() -> bool:
        return True


@contextmanager
def target(name: str) -> Iterator[list[tuple[str, Any]]]:
    """Within it every launch adds (kernel's name, compiled kernel) to the list."""
    compiled: list[tuple[str, Any]] = []
    real: Callable[..., Any] = JITFunction.run

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        assert all(size > 0 for size in grid), f"{self.__name__}: an empty grid {grid}"
        kernel = real(self, *arguments, grid=grid, warmup=True, **options)
        kernel = kernel.result() if hasattr(kernel, "result") else kernel
        compiled.append((self.__name__.lstrip("_"), kernel))
        return kernel

    triton.runtime.driver.set_active(Driver(name))
    JITFunction.run = run
    try:
        yield compiled
    finally:
        JITFunction.run = real


def resources(kernel: Any) -> dict[str, int]:
    """Registers of a thread, spills, bytes of shared memory of a program, and matrix instructions, from machine code."""
    found = {"shared": int(kernel.metadata.shared)}
    if "amdgcn" in kernel.asm:
        code = kernel.asm["amdgcn"]
        number = {
            kind: int(re.search(rf"\.{kind}:\s+(\d+)", code)[1])
            for kind in ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count")
        }
        matrix = len(re.findall(r"\bv_mfma", code))
        scalar = number["sgpr_spill_count"]  # into lanes of vector registers, not memory
        return {
            "registers": number["vgpr_count"],
            "spills": number["vgpr_spill_count"],
            "scalar spills": scalar,
            **found,
            "mfma": matrix,
        }
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [TOOLS / "cuobjdump", "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
        code = subprocess.run([TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True).stdout
    registers = int(re.search(r"REG:(\d+)", usage.stdout)[1])
    spills = len(re.findall(r"\b(?:STL|LDL)\b", code))
    ptx = kernel.asm["ptx"]
    matrix = {"mma": len(re.findall(r"\bmma\.sync", ptx)), "wgmma": len(re.findall(r"\bwgmma\.mma_async", ptx))}
    return {"registers": registers, "spills": spills, **found, **matrix}


def measure(name: str, call: Callable[[], object]) -> dict[str, dict[str, int]]:
    """Resources of every kernel that a call launches on that target."""
    with target(name) as compiled:
        call()
    assert compiled, "nothing was launched"
    return {kernel: resources(binary) for kernel, binary in compiled}
