"""The transformer of a flow in C: torch's to rounding, its windows alone and in company to the bit, bugs that must be noticed."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from omni_runtime.kernels import cpu_build  # noqa: E402
from tiny_qwen25 import folder  # noqa: E402

from omni_runtime.experts.flow_window import Moved, Window  # noqa: E402
from omni_runtime.experts.qwen25_flow import Flow  # noqa: E402
from omni_runtime.weights.qwen2_5_omni_parts import FLOW  # noqa: E402
from omni_runtime.weights.toy_qwen2_5_omni import toy_qwen25_weights  # noqa: E402

pytestmark = [pytestmark, pytest.mark.skipif(cpu_build.compiler() is None, reason="no C compiler here")]
torch.set_num_threads(1)
SHAPES: list[dict[str, Any]] = [  # odd widths, heads that are one register or several, layers that see any or no neighbours
    {"width": 40, "heads": 3, "head_dim": 16, "ffn": 50, "mels": 7, "block": 5, "repeats": 1, "layers": 3, "back": {0, 2}}
    | {"ahead": {0, 1}},
    {"width": 64, "heads": 2, "head_dim": 64, "ffn": 96, "mels": 80, "block": 24, "repeats": 2, "layers": 2, "back": {1}}
    | {"ahead": {0, 1}},
    {"width": 33, "heads": 1, "head_dim": 32, "ffn": 17, "mels": 3, "block": 17, "repeats": 3, "layers": 2}
    | {"back": set(), "ahead": {1}},
    {"width": 48, "heads": 2, "head_dim": 16, "ffn": 160, "mels": 70, "block": 1, "repeats": 1, "layers": 2}
    | {"back": {0, 1}, "ahead": set()},
]


@lru_cache
def flow(shape: int, layout: str, **more: int) -> Flow:
    """Of random weights, with gates that are open enough for every layer to count."""
    whole = folder().config
    assert whole.flow is not None
    sizes = SHAPES[shape] | {name: frozenset(SHAPES[shape][name]) for name in ("back", "ahead")} | more
    config = replace(whole.flow, **sizes)
    named = toy_qwen25_weights(replace(whole, flow=config), seed=shape)
    weights = {name.removeprefix(FLOW): 1.5 * weight for name, weight in named.items() if name.startswith(FLOW)}
    return Flow(config, weights, layout=layout)


def windows(of: Flow, rng: Random, count: int) -> list[Window]:
    """Of few frames and many, whole blocks or not, with a past or none, guided or not."""
    c, made, found = of.config, torch.Generator().manual_seed(rng.randrange(1 << 30)), []
    for _ in range(count):
        guidance, size = rng.choice([0.0, 0.5, 1.3]), c.repeats * rng.choice([1, 2, 3, 7, c.block, 2 * c.block])
        branches = 2 if guidance else rng.choice([1, 2])
        past = torch.randn(len(c.back), 2, branches, c.heads, c.block, c.head_dim, generator=made) if rng.random() < 0.6 else None
        codes = [rng.randrange(c.codes) for _ in range(size // c.repeats)]
        x, voice = torch.randn(size, c.mels, generator=made), torch.randn(2, c.width, generator=made)
        keep = rng.randint(0, size // c.block)
        found.append(Window(x, rng.choice([0.0, 0.31, 1.0]), codes, voice, guidance, c.block * rng.randrange(9), past, keep))
    return found


def same(ours: Sequence[Moved], theirs: Sequence[Moved]) -> bool:
    """To the bit."""
    return all(
        torch.equal(one.velocity_TM, other.velocity_TM)
        and (one.kept is None) == (other.kept is None)
        and (one.kept is None or other.kept is None or torch.equal(one.kept, other.kept))
        for one, other in zip(ours, theirs, strict=True)
    )


def close(ours: Sequence[Moved], theirs: Sequence[Moved]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert other.velocity_TM.std() > 0.1 or len(other.velocity_TM) == 1
        torch.testing.assert_close(one.velocity_TM, other.velocity_TM, rtol=1e-5, atol=1e-5)
        assert (one.kept is None) == (other.kept is None)
        if one.kept is not None:
            torch.testing.assert_close(one.kept, other.kept, rtol=1e-5, atol=1e-5)


def check(shape: int, run: Any = None) -> None:
    """Against torch. `run`: another C function."""
    native, rng = flow(shape, "native"), Random(shape)
    assert native._native is not None
    before = native._native._run
    native._native._run = run or before
    try:
        for count in (1, 2, 7):
            given = windows(native, rng, count)
            close(native.velocity(given), flow(shape, "plain").velocity(given))
    finally:
        native._native._run = before


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_velocities_are_those_of_torch(shape: int) -> None:
    check(shape)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("layout", ["native", "bfloat16", "int8"])
def test_a_window_is_the_same_in_any_company(shape: int, layout: str) -> None:
    of = flow(shape, layout)
    given = windows(of, Random(9), 9)
    together = of.velocity(given)
    assert same([of.velocity([window])[0] for window in given], together)
    assert same(of.velocity(given[::-1]), together[::-1])
    torch.set_num_threads(2)
    try:
        assert same(of.velocity(given * 3), together * 3)
    finally:
        torch.set_num_threads(1)
    native, of._native = of._native, None  # the same products one by one, with torch between them
    try:
        close(together, of.velocity(given))
    finally:
        of._native = native


@pytest.mark.parametrize("shape", [0, 1])
def test_what_is_kept_stands_for_the_past_to_the_bit(shape: int) -> None:
    """The second half of a window with what its first half leaves, against the whole."""
    of = flow(shape, "native")
    c, rng = of.config, Random(2)
    window = next(w for w in windows(of, rng, 60) if len(w.x_TM) == 2 * c.block and w.guidance)
    x, codes = torch.cat([window.x_TM] * 3) * torch.linspace(0.5, 1.5, 6 * c.block)[:, None], [*window.codes] * 3
    whole = replace(window, x_TM=x, codes=codes, first=0, past=None, keep=3)
    (all_of_it,) = of.velocity([whole])
    rest = replace(whole, x_TM=x[3 * c.block :], codes=codes[3 * c.block // c.repeats :], first=3 * c.block, keep=0)
    (after,) = of.velocity([replace(rest, past=all_of_it.kept)])
    assert torch.equal(after.velocity_TM, all_of_it.velocity_TM[3 * c.block :])
    (wrong,) = of.velocity([rest])
    assert (wrong.velocity_TM - after.velocity_TM).abs().max() > 1e-3


def test_what_is_no_number_stays_where_it_is() -> None:
    of = flow(0, "native")
    given = [w for w in windows(of, Random(4), 30) if w.past is not None][:6]
    alone = of.velocity(given)
    for broken in (
        replace(given[2], x_TM=torch.full_like(given[2].x_TM, torch.nan)),
        replace(given[2], past=torch.full_like(given[2].past, torch.inf)),  # type: ignore[arg-type]
        replace(given[2], voice_2D=torch.full_like(given[2].voice_2D, -torch.inf)),
        replace(given[2], time=torch.nan),
    ):
        found = of.velocity([*given[:2], broken, *given[3:]])
        assert not torch.isfinite(found[2].velocity_TM).all()
        assert same([*found[:2], *found[3:]], [*alone[:2], *alone[3:]])


def test_where_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = flow(0, "native", head_dim=24)  # no whole registers
    given = windows(odd, Random(1), 3)
    assert odd._native is None
    close(odd.velocity(given), flow(0, "plain", head_dim=24).velocity(given))
    assert flow(0, "plain")._native is None and flow(0, "auto")._native is not None
    flow.cache_clear()
    monkeypatch.setenv("OMNI_KERNELS", "torch")
    assert flow(0, "auto")._native is None and flow(0, "native")._native is not None
    flow.cache_clear()


def test_a_past_or_a_block_that_does_not_fit_is_refused() -> None:
    of = flow(0, "native")
    window = next(w for w in windows(of, Random(5), 30) if w.past is not None and w.guidance)
    assert window.past is not None
    for past in (window.past[:1], window.past[:, :, :1], window.past[..., :-1], window.past[:, :, :, :, 1:]):
        with pytest.raises(AssertionError, match="past"):
            of.velocity([replace(window, past=past)])
    with pytest.raises(AssertionError, match="is not whole"):
        of.velocity([replace(window, keep=len(window.x_TM) // of.config.block + 1)])
    apart = window.past.transpose(-1, -2).contiguous().transpose(-1, -2)  # the same numbers, in another order of memory
    assert same(of.velocity([replace(window, past=apart)]), of.velocity([window]))


def test_a_time_is_worked_out_once() -> None:
    of = flow(1, "native")
    assert of._native is not None
    given = windows(of, Random(6), 5)
    first, misses = of.velocity(given), of._native._told.cache_info().misses
    assert same(of.velocity(given), first) and of._native._told.cache_info().misses == misses <= 3


BUGS = {
    "the block before is not seen": ("if (l->back >= 0 && at->block) seen", "if (0) seen"),
    "the past of the first branch": ("* w->past_branches + at->branch)", "* w->past_branches)"),
    "the past of the first layer": ("(2L * l->back * w->past_branches", "(0L * l->back * w->past_branches"),
    "the past is turned again": ("size, NULL, E, B}", "size, turn, E, B}"),
    "what is kept is not turned": ("kept + i * E, rows[j],", "kept + i * E, seen[p].key + i * seen[p].step,"),
    "another block is kept": ("at->block + 1 == w->keep", "at->block == w->keep"),
    "the next block is whole": ("step, left < B ? left : B}", "step, B}"),
    "all layers look ahead": ("if (l->ahead && at->block", "if (at->block"),
    "all heads are turned": ("*turn = head ? NULL : w->turns", "*turn = w->turns"),
    "the other way round": ("y[i] = a * turn[i] - b", "y[i] = a * turn[i] + b"),
    "keys of the next block turn as this one": ("turn ? turn + B * E : NULL", "turn"),
    "lanes of nobody count": ("for (long i = count; i < j + 16; i++) s[i] = -INFINITY;", ";"),
    "scores are not scaled": ("*(v16 *)(s + j) *= scale;", ";"),
    "keys of other lanes": ("rows[j + i] + e", "rows[i] + e"),
    "the gate of attention for both": ("*gate = n ? told - D : NULL", "*gate = n ? told - 4 * D : NULL"),
    "last shift for scale": ("*shift = n < m->count ? told : told + D", "*shift = told"),
    "the end of a row is not counted": ("rest += x[i];", ";"),
    "no activation": ("F, GELU, R", "F, STORE, R"),
    "nobody says the codes too": ("(branch ? 0 : w->code[", "(0 ? 0 : w->code["),
    "the code of the frame before": ("frame / m->repeats", "(frame ? frame - 1 : 0) / m->repeats"),
    "nobody has the voice": ("w->voice + branch * D", "w->voice"),
    "guidance away": ("* w->guidance", "* -w->guidance"),
}


def compiled(folder: Path, old: str, new: str) -> Any:
    """The function, with a part of its text replaced."""
    for part in cpu_build.PARTS:
        text = part.read_text()
        if part.name == "cpu_flow.c":
            assert text.count(old) == 1, "the text that the bug replaces is gone"
            text = text.replace(old, new)
        (folder / part.name).write_text(text)
    command = [str(cpu_build.compiler()), *cpu_build.FLAGS, "-O1", "-shared", str(folder / "cpu_flow.c"), "-lm"]
    subprocess.run([*command, "-o", str(folder / "bug.so")], check=True)
    run: Any = ctypes.CDLL(str(folder / "bug.so")).omni_flow
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return run


def check_all(run: Any) -> None:
    for shape in range(len(SHAPES)):
        check(shape, run)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str, tmp_path: Path) -> None:
    wrong = compiled(tmp_path, *BUGS[bug])
    with pytest.raises(AssertionError):
        check_all(wrong)


def test_where_nothing_is_planted_nothing_is_noticed(tmp_path: Path) -> None:
    check_all(compiled(tmp_path, "void omni_flow(", "void omni_flow("))
