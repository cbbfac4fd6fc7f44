"""Case 30 for the C kernels: every size in every dimension, inputs that lie in NaN, rows of -inf, nothing called for nothing.

Rows, inputs and outputs of a product are taken in all 1,728 ways for each type of weight; channels, positions and taps of sound
in all ways two at a time, and so are queries, positions, head size and heads of attention, but for the most expensive.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from itertools import combinations, product
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from against import caught, inside_nan, planted, poisoned  # noqa: E402
from omni_runtime.kernels import cpu, cpu_attention, cpu_build, cpu_sound  # noqa: E402

pytestmark = [pytestmark, pytest.mark.skipif(cpu_build.compiler() is None, reason="no C compiler here")]
torch.set_num_threads(1)
SIZES = (0, 1, 2, 15, 16, 17, 31, 33, 127, 129, 1000, 1001)
REAL = (cpu_sound.functions(), cpu_attention.functions())[1] if cpu_build.library() else None
KEPT = ("omni_linear", "omni_conv", "omni_depthwise", "omni_attend")


def counted(function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    return lambda *given: (calls.append("called"), function(*given))[1]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry a call of a C function."""
    found: list[str] = []
    counting = SimpleNamespace(**{name: counted(getattr(REAL, name), found) for name in KEPT})
    monkeypatch.setattr(cpu, "functions", lambda: counting)
    monkeypatch.setattr(cpu_sound, "functions", lambda: counting)
    monkeypatch.setattr(cpu_attention, "functions", lambda: counting)
    return found


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(ours: torch.Tensor, right: torch.Tensor, terms: int) -> None:
    """As exact as sums of so many products are in float32; what is no number is so in both."""
    assert ours.shape == right.shape
    torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5 + 2e-7 * terms, equal_nan=True)


def check_product(calls: list[str], kind: str, outputs: int, inputs: int, rows: tuple[int, ...]) -> None:
    packed = cpu.pack(normal(outputs, inputs), normal(outputs), kind)
    x = normal(max(SIZES), inputs)
    x[0] = -torch.inf
    x, apply = inside_nan(x), cpu.linear(packed)
    right = cpu.definition(packed, x)
    for count in rows:
        calls.clear()
        with poisoned():
            ours = apply(x[:count])
        close(ours, right[:count], inputs)
        assert bool(calls) == (count * outputs > 0)


@pytest.mark.parametrize("kind", cpu.TYPES)
def test_products(kind: str, calls: list[str]) -> None:
    for outputs, inputs in product(SIZES, SIZES):
        check_product(calls, kind, outputs, inputs, SIZES)


def two_at_a_time(**base: int) -> Iterator[dict[str, int]]:
    for pair in combinations(base, 2):
        for sizes in product(SIZES, SIZES):
            yield base | dict(zip(pair, sizes, strict=True))


def sums(x: torch.Tensor, weight_OCK: torch.Tensor, bias: torch.Tensor, ahead: int, behind: int) -> torch.Tensor:
    """A convolution that also knows what no channels, no outputs and no positions give."""
    if 0 in x.shape or not len(weight_OCK):
        return bias[None, :, None].expand(len(x), -1, x.shape[2] + ahead + behind - weight_OCK.shape[2] + 1)
    return F.conv1d(F.pad(x, (ahead, behind)), weight_OCK, bias)


def check_sound(calls: list[str], inputs: int, outputs: int, taps: int, count: int) -> None:
    weight, bias, x = normal(outputs, inputs, taps), normal(outputs), normal(1, inputs, count)
    x[:, :1] = -torch.inf if (taps, inputs) == (3, 17) else x[:, :1]  # not where sums are only compared with others as long
    x = inside_nan(x)
    if taps % 2:
        around = taps // 2
        run = cpu_sound.conv(weight, bias)
        calls.clear()
        with poisoned():
            ours = run(x[0], 0, count)
        close(ours[None], sums(x, weight, bias, around, around), inputs * taps)
        assert bool(calls) == (count * outputs * inputs > 0)
    causal = cpu_sound.causal(weight, bias)
    calls.clear()
    with poisoned():
        ours = causal(x, 0, count)
    close(ours, sums(x, weight, bias, taps - 1, 0), inputs * taps)
    assert bool(calls) == (count * outputs * inputs > 0)
    if inputs and count >= taps:
        each, run = normal(inputs, 1, taps), cpu_sound.depthwise(normal(inputs, 1, taps), normal(inputs))
        with poisoned():
            close(run(x), F.conv1d(x, each, normal(inputs), groups=inputs), taps)


def test_sound(calls: list[str]) -> None:
    for case in two_at_a_time(inputs=17, outputs=5, taps=3, count=33):
        if case["taps"] and prod(case.values()) <= 10_000_000:  # nor 1000 channels of 1000
            check_sound(calls, **case)


def check_attention(calls: list[str], queries: int, positions: int, size: int, heads: int) -> None:
    """Two query heads a key head; query i sees three positions, or all up to one of its own; one of them sees scores of -inf."""
    q, k, v = (inside_nan(normal(n, heads * each, size)) for n, each in ((queries, 2), (positions, 1), (positions, 1)))
    q, k = q.clone(), k.abs()
    q[:1] = -torch.inf
    at = torch.arange(queries) % max(positions, 1)
    low, high = torch.where(torch.arange(queries) % 2 == 0, 0, (at - 2).clamp(min=0)), at + 1
    stretch = cpu_attention.Stretch(k.transpose(0, 1), v.transpose(0, 1), low.numpy(), high.numpy())
    if queries * size * heads and not positions:
        with pytest.raises(ValueError, match="of 0"):
            cpu_attention.attend(q, [stretch])
        return
    calls.clear()
    with poisoned():
        ours = cpu_attention.attend(q, [stretch])
    assert bool(calls) == (q.numel() > 0)
    key = torch.arange(positions)
    seen = (key >= low[:, None]) & (key < high[:, None])
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    score = torch.einsum("nhe,she->hns", q, k) * max(size, 1) ** -0.5
    right = torch.einsum("hns,she->nhe", score.masked_fill(~seen, -torch.inf).softmax(-1), v)
    close(ours, right.flatten(1), 100)


def test_attention(calls: list[str]) -> None:
    for case in two_at_a_time(queries=3, positions=17, size=9, heads=2):
        n, s, e, h = case.values()
        if max(n * e, s * e, n * s) * h <= 1_000_000:  # not 1000 heads of 1000 queries or keys: the oracle would take minutes
            check_attention(calls, **case)


BUGS = {
    "the tail of the outputs": ("cpu_product.h", "i < left; i++) to[i] =", "i < left - 1; i++) to[i] ="),
    "the last input": ("cpu_product.h", "k < K; k++) {\n        v16 w", "k < K - 1; k++) {\n        v16 w"),
    "an output too many": ("cpu_product.h", "i < left; i++) to[i] =", "i < left + 1; i++) to[i] ="),
    "the last channel": ("cpu_sound.c", "c < in; c++, x += ld", "c < in - 1; c++, x += ld"),
    "the last tap": ("cpu_sound.c", "k < taps; k++, at", "k < taps - 1; k++, at"),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_what_is_wrong_is_caught(bug: str, tmp_path: Path, calls: list[str]) -> None:
    name, old, new = BUGS[bug]
    for part in cpu_build.PARTS:
        text = part.read_text()
        assert part.name != name or text.count(old) == 1, "the text that the bug replaces is gone"
        (tmp_path / part.name).write_text(text.replace(old, new) if part.name == name else text)
    made, source = tmp_path / "bug.so", "cpu.c" if name == "cpu_product.h" else "cpu_sound.c"
    command = [str(cpu_build.compiler()), *cpu_build.FLAGS, "-O1", "-fopenmp", "-shared", str(tmp_path / source), "-o", str(made)]
    subprocess.run([*command, "-lm"], check=True)
    wrong = ctypes.CDLL(str(made))
    if source == "cpu.c":
        wrong.omni_linear.argtypes = REAL.omni_linear.argtypes
        cpu.functions().omni_linear = counted(wrong.omni_linear, calls)
        caught(lambda: check_product(calls, "float32", 17, 31, (1, 2, 15)))
    else:
        wrong.omni_conv.argtypes = REAL.omni_conv.argtypes
        cpu.functions().omni_conv = counted(wrong.omni_conv, calls)
        caught(lambda: check_sound(calls, 15, 2, 3, 31))


def test_a_call_for_nothing_is_caught(tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "linear", planted(cpu, "if rows and outputs:", "if rows:", tmp_path).linear)
    monkeypatch.setitem(cpu.linear.__globals__, "functions", lambda: cpu.functions())
    caught(lambda: check_product(calls, "float32", 0, 31, (2,)))
