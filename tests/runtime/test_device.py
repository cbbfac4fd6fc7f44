"""Where a model is to compute: what cannot be had is said before anything is loaded, by everybody who can be told."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_cli import omni

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from omni_runtime.cards.causal_lm import causal_lm  # noqa: E402

from omni_runtime.errors import CardError  # noqa: E402
from omni_runtime.executors.workbench import build_all  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402
from omni_runtime.weights.toy_folder import write_toy  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("device") / "toy", "llama")


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "meta", "rocm", "", "gpu 0"])
def test_a_device_that_is_not_here_is_named_with_a_remedy(device: str) -> None:
    if device.startswith("cuda") and torch.cuda.device_count() > (7 if ":" in device else 0):
        pytest.skip("it is here")
    with pytest.raises(CardError) as caught:
        build_all({}, {}, device)
    assert repr(device) in str(caught.value) and "'cpu'" in str(caught.value)
    assert len(str(caught.value)) < 400, "torch lists all that it might have had"


def test_a_runtime_says_it(folder: Path) -> None:
    with pytest.raises(CardError, match="device='meta'"):
        Runtime([causal_lm(folder)], device="meta")


def test_a_command_says_it(folder: Path) -> None:
    pytest.importorskip("typer")
    done = omni("run", "hi", "--checkpoint", str(folder), "--device", "meta")
    assert done.returncode == 1 and "device='meta'" in done.stderr and "Traceback" not in done.stderr


def test_a_command_computes_where_it_is_told(folder: Path) -> None:
    pytest.importorskip("typer")
    done = omni("run", "hi", "--checkpoint", str(folder), "--device", "cpu", "--max-tokens", "3")
    assert done.returncode == 0, done.stderr
