"""The kernels for a CPU: products against their definition, rows alone and in company to the bit, bugs that must be noticed."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from omni_runtime.kernels import cpu, cpu_build  # noqa: E402

from omni_runtime.errors import OmniError  # noqa: E402

pytestmark = [pytestmark, pytest.mark.skipif(cpu_build.compiler() is None, reason="no C compiler here")]
torch.set_num_threads(1)
SHAPES = [(1, 1), (31, 7), (32, 16), (33, 40), (97, 576), (640, 96)]  # outputs, inputs
ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 24, 25, 49, 64, 100, 130]


def case(outputs: int, inputs: int, kind: str, bias: bool) -> tuple[cpu.Packed, torch.Tensor]:
    made = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, inputs, generator=made)
    packed = cpu.pack(weight, torch.randn(outputs, generator=made) if bias else None, kind)
    return packed, torch.randn(max(ROWS), inputs, generator=made)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", cpu.TYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_product_is_its_definition_and_its_rows_are_alone(outputs: int, inputs: int, kind: str, bias: bool) -> None:
    packed, x = case(outputs, inputs, kind, bias)
    apply = cpu.linear(packed)
    whole = apply(x)
    torch.testing.assert_close(whole, cpu.definition(packed, x), rtol=1e-5, atol=1e-4)
    for rows in ROWS:
        assert torch.equal(apply(x[-rows:]), whole[-rows:]), rows
    torch.set_num_threads(2)
    try:
        assert torch.equal(apply(x), whole)
    finally:
        torch.set_num_threads(1)


def test_rows_may_lie_apart_and_may_be_none() -> None:
    packed, x = case(33, 40, "float32", True)
    apply = cpu.linear(packed)
    assert torch.equal(apply(x[::3]), apply(x)[::3])
    assert torch.equal(apply(x.T.contiguous().T), apply(x))
    assert apply(x[:0]).shape == (0, 33)
    assert apply(x[:6].view(2, 3, 40)).shape == (2, 3, 33)
    with pytest.raises(ValueError, match="a weight of 40 float32 inputs"):
        apply(x[:, :39])
    with pytest.raises(OmniError, match="one of float32, bfloat16, int8 needed"):
        cpu.pack(torch.zeros(2, 2), kind="int4")


def test_what_a_weight_is_kept_in() -> None:
    weight = torch.randn(64, 100, generator=torch.Generator().manual_seed(0))
    sizes = [cpu.pack(weight, kind=kind).panels_PKL.nbytes for kind in cpu.TYPES]
    assert sizes == [25_600, 12_800, 6_400]
    x = torch.eye(100)
    bfloat16, int8 = (cpu.linear(cpu.pack(weight, kind=kind))(x).T for kind in ("bfloat16", "int8"))
    assert torch.equal(bfloat16, weight.bfloat16().float())
    assert ((int8 - weight).abs() <= weight.abs().amax(1, keepdim=True) / 254 + 1e-6).all()


def test_without_a_compiler_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_build._built.cache_clear()
    cpu.functions.cache_clear()
    monkeypatch.setenv("CC", "/nowhere/cc")
    try:
        assert cpu_build.library() is None and "/nowhere/cc cannot build" in cpu_build.why()
        assert not cpu.usable(torch.zeros(1))
        with pytest.raises(OmniError, match="kernels for the CPU were asked for, but /nowhere/cc cannot build"):
            cpu.functions()
    finally:
        cpu_build._built.cache_clear()
        cpu.functions.cache_clear()


def test_more_rows_than_a_stack_holds() -> None:
    packed = cpu.pack(torch.ones(1, 1))
    assert torch.equal(cpu.linear(packed)(torch.ones(1_500_000, 1)), torch.ones(1_500_000, 1))  # 12 MB of pointers


def test_where_the_library_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_CACHE", str(tmp_path / "named"))
    assert cpu_build._folder() == tmp_path / "named"
    monkeypatch.delenv("OMNI_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cpu_build._folder() == tmp_path / "omni_runtime"
    (tmp_path / "omni_runtime").chmod(0o777)
    assert cpu_build._folder() != tmp_path / "omni_runtime", "anybody could lay a library there"


def test_a_compiler_with_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", f"{cpu_build.compiler()} -DANYTHING")
    cpu_build._built.cache_clear()
    try:
        assert cpu_build.library() is not None and len(list(tmp_path.glob("cpu-*.so"))) == 1
    finally:
        cpu_build._built.cache_clear()


PRODUCT = "cpu_product.h"
BUGS: dict[str, tuple[str, str, str]] = {
    "a panel too few": (PRODUCT, "to = count * (me + 1) / all", "to = (count - 1) * (me + 1) / all"),
    "the tail is not written": (PRODUCT, "i < left; i++) to[i] =", "i < left - 1; i++) to[i] ="),
    "rows of a block in one": (PRODUCT, "at[k * count + r] = x[first + r][k]", "at[k * count + r] = x[first][k]"),
    "bias of the panel before": (PRODUCT, "a += *(const v16 *)(m->bias + n);", "a += *(const v16 *)m->bias;"),
    "the scale of the first half for both": (
        PRODUCT,
        "b *= *(const v16 *)(m->scale + n + 16);",
        "b *= *(const v16 *)(m->scale + n);",
    ),
    "bfloat16 a bit off": (PRODUCT, "(v16)(wide << 16)", "(v16)(wide << 15)"),
    "the last input is forgotten": (PRODUCT, "k < K; k++) {\n        v16 w", "k < K - 1; k++) {\n        v16 w"),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, old, new = BUGS[bug]
    for part in cpu_build.PARTS:
        text = part.read_text()
        if part.name == name:
            assert text.count(old) == 1, "the text that the bug replaces is gone"
            text = text.replace(old, new)
        (tmp_path / part.name).write_text(text)
    # Without optimising: what is wrong is wrong either way, and takes a second to compile.
    flags = [*cpu_build.FLAGS, "-O1"]
    made = tmp_path / "bug.so"
    subprocess.run([str(cpu_build.compiler()), *flags, "-shared", str(tmp_path / "cpu.c"), "-o", str(made), "-lm"], check=True)
    wrong: Any = ctypes.CDLL(str(made))
    wrong.omni_linear.argtypes = cpu.functions().omni_linear.argtypes
    monkeypatch.setattr(cpu, "functions", lambda: wrong)
    with pytest.raises(AssertionError):
        check_all()


def check_all() -> None:
    for outputs, inputs in SHAPES:
        for kind in cpu.TYPES:
            test_a_product_is_its_definition_and_its_rows_are_alone(outputs, inputs, kind, True)
