"""Everything except the device loads without torch, and without any library that is only compared with."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import PathFinder

import pytest
from checkout import ROOT, modules
from test_layers import LIGHT, ONLY, PURE, place

HEAVY = ["torch", "triton", "transformers", "diffusers", "onnx", "onnxruntime", "hibari"]

CODE = """
import importlib, sys
heavy, names = {heavy!r}, {names!r}
sys.modules.update(dict.fromkeys(heavy))  # None: importing it raises ImportError
for name in names:
    importlib.import_module(name)
assert not [name for name in heavy if sys.modules[name] is not None]
"""


def load(names: list[str], heavy: list[str]) -> subprocess.CompletedProcess[str]:
    code = CODE.format(names=names, heavy=heavy)
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def light() -> list[str]:
    """The package itself, the vocabulary down to the core, cards and programs, and what cards read."""
    return [name for name in modules() if place(name)[0] in {"package", *PURE} or place(name)[1] in ONLY or name in LIGHT]


def test_all_but_the_device_loads_without_torch() -> None:
    ran = load(light(), HEAVY)
    assert ran.returncode == 0, ran.stderr


def test_the_block_blocks() -> None:
    assert "import of json halted" in load(["json"], ["json"]).stderr


def test_our_kernels_are_not_taken_for_the_library_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def ours() -> bool:
        spec = PathFinder.find_spec("kernels")
        return spec is not None and spec.origin is not None and spec.origin.startswith(str(ROOT / "kernels"))

    assert not ours()
    monkeypatch.syspath_prepend(ROOT)
    assert ours()
