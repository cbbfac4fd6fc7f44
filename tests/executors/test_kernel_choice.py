"""A backend that is named by the environment or a card is refused when experts are built, not by the first request."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from omni_runtime import kernels  # noqa: E402
from omni_runtime.card import ExpertSpec, OpLimits  # noqa: E402
from omni_runtime.errors import CardError, MissingExtra, OmniError  # noqa: E402
from omni_runtime.executors.thread import ThreadExecutor  # noqa: E402
from omni_runtime.executors.workbench import build_all  # noqa: E402
from omni_runtime.experts import linear as linears  # noqa: E402


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Devices that the builder of `spec` was called with."""
    found: list[str] = []

    def build(options: Any, device: str) -> Any:
        found.append(device)
        if layout := options.get("linear"):
            linears.linear(torch.ones(4, 4, dtype=options.get("dtype", torch.float32)), None, layout)
        return SimpleNamespace(ops={"op": None})

    monkeypatch.setitem(sys.modules, "a_builder", SimpleNamespace(build=build))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return found


def specs(place: str = "device", **options: Any) -> dict[str, ExpertSpec]:
    return {"x/y": ExpertSpec(build="a_builder:build", ops={"op": OpLimits()}, options=options, place=place)}


def test_an_unknown_form_is_refused_before_anything_is_built(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_KERNELS", "foo")
    for place in ("device", "host"):
        with pytest.raises(OmniError, match="OMNI_KERNELS='foo': unknown form of a kernel, one of triton, torch needed"):
            build_all(specs(place), {}, "cpu")
    assert not built


def test_triton_is_refused_where_it_cannot_run(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_KERNELS", "triton")
    monkeypatch.setattr(kernels, "_TRITON", True)
    with pytest.raises(OmniError, match="the tensors are on cpu: use 'torch', or a GPU"):
        build_all(specs(), {}, "cpu")
    monkeypatch.setattr(kernels, "_TRITON", False)
    with pytest.raises(MissingExtra, match=r"pip install 'omni_runtime\[gpu\]'"):
        build_all(specs(), {}, "cpu")
    assert not built
    build_all(specs("host"), {}, "cpu")  # beside a GPU the host has experts, too
    monkeypatch.setattr(kernels, "_TRITON", True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    build_all(specs(), {}, "cpu")
    assert built == ["cpu", "cpu"]


def test_torch_and_nothing_are_taken(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in ("", "torch"):
        monkeypatch.setenv("OMNI_KERNELS", asked)
        build_all(specs(), {}, "cpu")
    assert len(built) == 2


def test_a_layout_is_refused_when_the_expert_is_built(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CardError, match="linear='fast': one of auto, native"):
        build_all(specs(linear="fast"), {}, "cpu")
    with pytest.raises(CardError, match=r"linear='native' asks for kernels .* not torch.bfloat16"):
        build_all(specs(linear="native", dtype=torch.bfloat16), {}, "cpu")


def test_a_card_s_word_goes_before_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """`OMNI_KERNELS=torch` says what is taken where nobody names a form; `linear="native"` names one. As an argument does."""
    monkeypatch.setenv("OMNI_KERNELS", "torch")
    weight = torch.ones(4, 4)
    assert linears.native("auto", weight) is None
    if linears.cpu.usable(weight):
        assert linears.native("native", weight) == "float32"


def test_an_executor_does_not_start(built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_KERNELS", "foo")
    with pytest.raises(OmniError, match="OMNI_KERNELS='foo'"):
        ThreadExecutor("a#1", specs(), {}).start(lambda report: None)
