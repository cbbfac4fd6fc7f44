"""Attention of a ragged batch in C: against its definition, queries alone and in company to the bit, planted bugs."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from omni_runtime.kernels import cpu_attention, cpu_build  # noqa: E402
from omni_runtime.kernels.cpu_attention import Stretch  # noqa: E402

pytestmark = [pytestmark, pytest.mark.skipif(cpu_build.compiler() is None, reason="no C compiler here")]
torch.set_num_threads(1)
SHAPES = [(4, 2, 16), (3, 3, 64), (6, 2, 72), (2, 1, 5)]  # heads, key heads, numbers of a head
WINDOW = 17


def batch(heads: int, kv_heads: int, size: int, lengths: tuple[tuple[int, int], ...]) -> tuple[torch.Tensor, list[Stretch]]:
    """Rows of (kept, new) positions, each query over its window; queries stand apart, as in the product that made them."""
    made = torch.Generator().manual_seed(heads * size)
    stretches = []
    for kept, new in lengths:
        k, v = torch.randn(2, kv_heads, kept + new, size, generator=made)
        high = np.arange(kept + 1, kept + new + 1)
        stretches.append(Stretch(k, v, np.maximum(high - WINDOW, 0), high))
    wide = torch.randn(sum(new for _, new in lengths), heads + 2 * kv_heads, size, generator=made)
    return wide[:, :heads], stretches


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_its_definition(shape: tuple[int, int, int]) -> None:
    q, stretches = batch(*shape, ((0, 1), (16, 40), (5, 3), (0, 33)))
    torch.testing.assert_close(cpu_attention.attend(q, stretches), cpu_attention.definition(q, stretches), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cpu_attention.attend(q[:0], []), q.new_zeros(0, shape[0] * shape[2]))


def apart(shape: tuple[int, int, int]) -> int:
    """Numbers that differ when queries come in other pieces, with what they see elsewhere in memory, or on two threads."""
    q, (one, other) = batch(*shape, ((20, 50), (3, 9)))
    whole, found = cpu_attention.attend(q, [one, other]), 0
    torch.set_num_threads(2)
    found += int((cpu_attention.attend(q, [one, other]) != whole).sum())
    torch.set_num_threads(1)
    for low, high in ((0, 1), (7, 8), (13, 50), (0, 33)):
        first = int(one.low[low])  # what came before is not there any more
        piece = Stretch(one.k_KSE[:, first:], one.v_KSE[:, first:], one.low[low:high] - first, one.high[low:high] - first)
        found += int((cpu_attention.attend(q[low:high], [piece]) != whole[low:high]).sum())
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_a_query_tells_neither_company_nor_piece(shape: tuple[int, int, int]) -> None:
    assert apart(shape) == 0


BUGS = {  # what is planted in cpu.c
    "none": ("at->v + g * at->head, at->count", "at->v + g * at->head, at->count"),
    "the window is that of the first query": ("at->k + g * at->head, at->v", "seen->k + g * seen->head, at->v"),
    "values of the first head": ("at->v + g * at->head, at->count", "at->v, at->count"),
    "one key short": ("at->v + g * at->head, at->count, E", "at->v + g * at->head, at->count > 1 ? at->count - 1 : 1, E"),
    "queries without gaps": ("q + row * ldq + h * E", "q + (row * heads + h) * E"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in cpu_build.PARTS:
        (tmp_path / part.name).write_text(part.read_text())
    before, after = BUGS[bug]
    text = (tmp_path / "cpu.c").read_text()
    assert text.count(before) == 1
    (tmp_path / "cpu.c").write_text(text.replace(before, after))
    monkeypatch.setattr(cpu_build, "SOURCES", (tmp_path / "cpu.c",))
    monkeypatch.setattr(
        cpu_build, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in cpu_build.FLAGS)
    )  # a second, not 5
    cpu_build._compile(cpu_build.compiler() or "cc", tmp_path / "cpu.so")
    library = ctypes.CDLL(str(tmp_path / "cpu.so"))
    library.omni_attend.argtypes = cpu_attention.functions().omni_attend.argtypes
    monkeypatch.setattr(cpu_attention, "functions", lambda: library)
    noticed = False
    for shape in SHAPES:
        q, stretches = batch(*shape, ((0, 1), (16, 40), (5, 3)))
        found, wanted = cpu_attention.attend(q, stretches), cpu_attention.definition(q, stretches)
        noticed |= not torch.allclose(found, wanted, rtol=1e-5, atol=1e-6) or apart(shape) > 0
    assert noticed == (bug != "none")


def test_what_cannot_be_is_refused() -> None:
    q, (one,) = batch(4, 2, 16, ((4, 3),))
    for wrong in (
        one._replace(low=one.high),
        one._replace(high=one.high + 1),
        one._replace(low=one.low - 1),
        one._replace(k_KSE=one.k_KSE[:, :-1]),
        one._replace(k_KSE=one.k_KSE.double()),
    ):
        with pytest.raises(ValueError, match="attend"):
            cpu_attention.attend(q, [wrong])
    with pytest.raises(ValueError, match="queries"):
        cpu_attention.attend(q[:2], [one])
