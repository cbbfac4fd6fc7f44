"""Every kernel, through its public wrapper, for GPUs that are not here. Not collected by name: `test_triton_forms.py` runs it.

`budgets.json` says what each takes. A kernel that takes more registers by a quarter, more shared memory, or spills on CUDA at
all, fails; so does one that lost its matrix instructions. `python tests/kernels/compiled.py` writes the file anew, and the
table of `designs/0024-kernels.md` to the screen.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest

assert "TRITON_INTERPRET" not in os.environ

import triton  # noqa: E402
from absent_gpu import SHARED, TARGETS, measure, target  # noqa: E402
from launches import CALLS, meta, ones  # noqa: E402
from omni_runtime.kernels import matrix_triton  # noqa: E402

FILE = Path(__file__).with_name("budgets.json")
# Which matrix instruction a kernel must have. Tiles of 16 rows are too small for wgmma; in float32 only AMD's is exact.
MATRIX = {
    "paged_attention": {"sm_80": "mma", "sm_90": "wgmma", "gfx942": "mfma"},
    "joint_attention": {"sm_80": "mma", "sm_90": "wgmma", "gfx942": "mfma"},
    "causal": {"sm_80": "mma", "sm_90": "wgmma", "gfx942": "mfma"},
    "product": {"sm_80": "mma", "sm_90": "wgmma", "gfx942": "mfma"},
    "fused_moe 2048": {"sm_80": "mma", "sm_90": "wgmma", "gfx942": "mfma"},
    "fused_moe 16": {"sm_80": "mma", "sm_90": "mma", "gfx942": "mfma"},
}


def faults(name: str, target: str, found: dict[str, dict[str, int]], budget: dict[str, dict[str, int]]) -> list[str]:
    """What is wrong with the kernels of one call."""
    wrong = [] if found.keys() == budget.keys() else [f"launches {sorted(found)}, the budget has {sorted(budget)}"]
    for kernel, takes in found.items():
        may = budget.get(kernel, takes)
        if takes["spills"] > (may["spills"] if target.startswith("gfx") else 0):
            wrong.append(f"{kernel}: {takes['spills']} spills")
        if takes["registers"] > 1.25 * may["registers"] + 4:
            wrong.append(f"{kernel}: {takes['registers']} registers, the budget is {may['registers']}")
        if takes["shared"] > min(may["shared"], SHARED[target]):
            wrong.append(
                f"{kernel}: {takes['shared']} bytes of shared memory, the budget is {min(may['shared'], SHARED[target])}"
            )
    if "fp32" not in name:
        for instruction in (by[target] for prefix, by in MATRIX.items() if name.startswith(prefix)):
            if not any(takes[instruction] for takes in found.values()):
                wrong.append(f"no {instruction}")
    return wrong


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CALLS)
def test_fits_its_budget(name: str, target: str) -> None:
    budgets, found = json.loads(FILE.read_text()), measure(target, CALLS[name])
    budget = budgets["calls"][name][target]
    if (
        budgets["triton"] != triton.__version__
    ):  # another compiler: what it takes is its own, but nothing may spill or be too large
        budget = found
    assert faults(name, target, found, budget) == []


def test_sizes_of_one_compile() -> None:
    assert len(measure("sm_90", ones)) > 5


@pytest.mark.parametrize("name", ["sm_80", "sm_90"])
def test_pieces_of_a_product_are_added_one_by_one(name: str) -> None:
    """Whoever adds them: the same matrix instructions, then one addition an element and piece, never fused into one sum."""
    code = []
    for rows in (16, 2048):
        with target(name) as compiled:
            matrix_triton.product(meta(rows, 4096), meta(4096, 4096))
        code.append(compiled[0][1].asm["ptx"])
    matrices = [len(re.findall(r"mma[._]\S*sync\S*f32", ptx)) for ptx in code]
    additions = [len(re.findall(r"\badd(?:\.rn)?\.f32", ptx)) for ptx in code]
    assert matrices[0] == matrices[1] > 0 and additions == [0, 64 * 64 // 128]


def test_every_op_is_compiled() -> None:
    """Each public op but the block, which launches what it launches, by a name that begins as its own."""
    from omni_runtime import kernels

    ops = [name for name, value in vars(kernels).items() if "form" in getattr(value, "__annotations__", {}) and name != "choose"]
    assert len(ops) == 18
    assert [op for op in ops if not any(call.startswith(op) for call in CALLS)] == ["convnext_block"]
    assert json.loads(FILE.read_text())["calls"].keys() == CALLS.keys()


def test_a_fault_is_found() -> None:
    good = {"kernel": {"registers": 100, "spills": 0, "shared": 1024, "mma": 1, "wgmma": 1, "mfma": 1}}
    assert faults("joint_attention 64", "sm_90", good, good) == []
    for change in ({"spills": 1}, {"registers": 130}, {"shared": 1025}, {"wgmma": 0}):
        assert faults("joint_attention 64", "sm_90", {"kernel": good["kernel"] | change}, good), change
    assert faults("gate", "sm_90", {}, good)
    huge = {"kernel": good["kernel"] | {"shared": 240_000}}
    assert faults("gate", "sm_90", huge, huge)


def write() -> None:
    """The file, and its table as markdown."""
    calls = {name: {target: measure(target, call) for target in TARGETS} for name, call in CALLS.items()}
    FILE.write_text(json.dumps({"triton": triton.__version__, "calls": calls}, indent=1) + "\n")
    for name, targets in calls.items():
        cells = []
        for found in targets.values():
            worst = max(found.values(), key=lambda takes: takes["registers"])
            matrix = [
                f"{kind} {n}" for kind in ("mma", "wgmma", "mfma") if (n := sum(takes.get(kind, 0) for takes in found.values()))
            ]
            shared = max(takes["shared"] for takes in found.values())
            spills = sum(takes["spills"] for takes in found.values())
            cells.append(" ".join([f"{worst['registers']}/{spills}/{-(-shared // 1024)}", *matrix]))
        sys.stdout.write(f"| {name} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    write()
