"""The norm's definition, and the choice between the forms of a kernel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from omni_runtime.kernels import norm  # noqa: E402

from omni_runtime import kernels  # noqa: E402
from omni_runtime.errors import MissingExtra, OmniError  # noqa: E402

ROOT = Path(__file__).parents[2]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}  # one unit in the last place


@pytest.mark.parametrize("shape", [(1, 1), (3, 577), (2, 3, 64), (0, 576)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_definition_in_float64(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, residual = (100 * torch.randn(shape, generator=generator).to(dtype) for _ in range(2))  # squares overflow float16
    weight = torch.randn(shape[-1], generator=generator).to(dtype)
    tight = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 0.1).sqrt() * weight.double()
    torch.testing.assert_close(norm.rms_norm(x, weight, 0.1), expected.to(dtype), **tight)
    normed, total = norm.add_rms_norm(x, residual, weight, 0.1)
    assert torch.equal(total, (wide + residual.double()).to(dtype))
    assert torch.equal(normed, norm.rms_norm(total, weight, 0.1))


def test_a_form_is_chosen_by_device_and_never_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2, 4)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(kernels, "_ASKED", "")
    assert kernels.choose(x) == "torch"
    assert kernels.choose(x.to("meta"), "torch") == "torch"
    with pytest.raises(OmniError, match="form='trition'"):
        kernels.choose(x, "trition")
    monkeypatch.setattr(kernels, "_ASKED", "fast")
    with pytest.raises(OmniError, match="OMNI_KERNELS='fast'"):
        kernels.rms_norm(x, x[0], 1e-5)
    monkeypatch.setattr(kernels, "_ASKED", "triton")
    assert kernels.choose(x, "torch") == "torch"  # the argument wins
    monkeypatch.setattr(kernels, "_TRITON", True)
    with pytest.raises(OmniError, match="the tensors are on cpu"):
        kernels.rms_norm(x, x[0], 1e-5)
    monkeypatch.setattr(kernels, "_TRITON", False)
    with pytest.raises(MissingExtra, match="pip install"):
        kernels.add_rms_norm(x, x, x[0], 1e-5)


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "OMNI_KERNELS")}
    inherited |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=inherited, capture_output=True, text=True, timeout=300)


def test_without_triton_the_package_works() -> None:
    """`None` in sys.modules makes an import fail, and find_spec raise; a finder that finds nothing is what a bare install has."""
    script = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else real(name, *rest)
import torch
from omni_runtime import kernels
from omni_runtime.errors import MissingExtra
kernels.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-5)
assert "triton" not in sys.modules
try:
    kernels.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-5, form="triton")
except MissingExtra:
    print("said so")
"""
    done = python("-c", script)
    assert done.stdout.strip() == "said so", done.stderr
