"""Sampling in the interpreter: the kernel draws what `experts/sampling.py` draws.

Not collected by name, see `test_triton_forms.py`.
"""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from against import DTYPES, caught, inside_nan, planted, poisoned
from omni_runtime.kernels import sample, sample_triton
from sampling_rows import Rows, make, on_the_cpu

from omni_runtime.draw import Draw, Edits
from omni_runtime.experts import sampling

pytestmark = pytest.mark.filterwarnings("ignore:overflow")  # of a penalty, and then it is bounded
# seed, rows, vocabulary, whether logits are edited, tile
CASES = [(0, 10, 70, True, 64), (1, 5, 150, False, 64), (2, 4, 5, True, 16), (3, 3, 257, True, 512)]


def check(module: ModuleType, rows: Rows, tile: int) -> None:
    module.settings = lambda size: {"BLOCK": tile}
    draws, changes = sample.collect(rows.hows, rows.indices, rows.known)
    logits = inside_nan(rows.logits_RV)
    with poisoned():
        tokens, told = module.draw_tokens(logits, draws, changes, logprobs=True)
    expected = on_the_cpu(rows)
    assert tokens.tolist() == expected
    for row, token in enumerate(expected):
        if token < 0:
            assert told[row].isnan()
        else:
            assert abs(float(told[row]) - sampling.logprob(rows.logits_RV[row].float(), token, 0).logprob) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_what_the_cpu_draws(dtype: torch.dtype) -> None:
    for seed, rows, size, edited, tile in CASES if dtype == torch.float32 else CASES[2:]:
        check(sample_triton, make(seed, rows, size, dtype, edited), tile)


FLAT, SLOPE = torch.zeros(40), -torch.arange(40.0) / 512


def batch(rows: list[tuple[torch.Tensor, Draw]], known: list[int], index: int) -> Rows:
    return Rows(torch.stack([x for x, _ in rows]), [how for _, how in rows], [index] * len(rows), [known] * len(rows))


def filters() -> Rows:
    """What a filter keeps ends with the row's winner, or just before it. Of equals, and of tokens that are almost equal."""
    rows: list[tuple[torch.Tensor, Draw]] = []
    for x, heat in ((FLAT, 1.0), (SLOPE, 2.0)):
        seed = next(s for s in range(99) if 17 <= sampling.draw(x, Draw(s, 0, heat), 5) < 30)
        won = sampling.draw(x, Draw(seed, 0, heat), 5)
        weight = (x.double() / heat).exp()
        share = weight.cumsum(0) / weight.sum()
        for last in (won, won + 1):  # how many are left: the winner is lost, or the last of them
            middle = float(share[last - 1] + share[last - 2]) / 2
            rows += [(x, Draw(seed, 0, heat, top_k=last)), (x, Draw(seed, 0, heat, top_p=middle))]
            rows += [(x, Draw(seed, 0, heat, top_k=31, top_p=middle / float(share[30])))]
        rows += [(x, Draw(seed, 0, heat, min_p=1.0 if x is FLAT else float(weight[won]) - 1e-9))]
    return batch(rows, [], 5)


def changed() -> Rows:
    """Greedy rows in which one change decides. Token 0 stands three times in the answer, token 3 once in the prompt."""
    x = torch.tensor([4.0, 3.5, 0, 3.6, -1, -2, 3.5])
    every = [
        Edits(), Edits(repetition=2.0), Edits(repetition=1e-308), Edits(presence=0.6), Edits(presence=-1.0), Edits(frequency=0.2),
        Edits(frequency=-0.1), Edits(bias_ids=(6,), bias=(1.0,)), Edits(stop_ids=(0,), least=4), Edits(stop_ids=(0,), least=3),
        Edits(repetition=1.1, presence=0.1, frequency=0.2, bias_ids=(0, 1), bias=(-1.0, 0.4), stop_ids=(1, 6), least=9),
    ]  # fmt: skip
    rows = [(x, Draw(1, 0, 0.0, edits=e)) for e in every]
    rows += [
        (x - 5, Draw(1, 0, 0.0, edits=Edits(repetition=3.0))),
        (x, Draw(1, 0, 0.0, edits=Edits(stop_ids=tuple(range(7)), least=9))),
    ]
    return batch([*rows, (x / 9, Draw(1, 2, 1.0, top_k=5, edits=every[-1]))], [5, 5, 3, 0, 0, 0], 3)


def plain() -> Rows:
    broken, infinite = SLOPE.clone(), SLOPE.clone()
    broken[33], infinite[20] = torch.nan, torch.inf
    rows = [
        (FLAT, Draw(3, 0, 0.0)), (FLAT, Draw(3, 0, 1.0, top_p=0.0)), (SLOPE, Draw(4, 1, 1e-30)), (SLOPE, Draw(2**64 - 1, 3, 5.0)),
        (broken, Draw(1, 0, 1.0)), (broken, Draw(1, 0, 0.0)), (infinite, Draw(1, 0, 1.0)), (FLAT - torch.inf, Draw(1, 0, 1.0)),
        *((SLOPE, Draw(seed, 2, 1.0)) for seed in range(4)),
    ]  # fmt: skip
    return batch(rows, [], 7)


def test_rows_in_which_one_thing_decides() -> None:
    for rows in (filters(), changed(), plain()):
        check(sample_triton, rows, 32)
        draws, changes = sample.collect(rows.hows, rows.indices, rows.known)
        assert sample.draw_tokens(rows.logits_RV, draws, changes)[0].tolist() == on_the_cpu(rows)
    assert set(on_the_cpu(changed())) == {-1, 0, 1, 3, 5, 6}


def test_a_whole_vocabulary() -> None:
    """49,152 tokens, in the tiles of production."""
    rows = make(7, 3, 49_152, torch.float32, edited=False)
    hows = [Draw(1, 0, 1.0), Draw(1, 0, 1.0, top_k=50, top_p=0.9), Draw(1, 0, 0.8, top_p=0.95, min_p=0.01)]
    check(sample_triton, rows._replace(hows=hows), 16384)


def test_rows_do_not_see_each_other() -> None:
    rows = make(0, 12, 70, torch.float32)
    for row in (3, 11):
        check(sample_triton, rows.part(row, row + 1), 64)


def test_nothing_to_draw_from_and_shapes_that_do_not_fit() -> None:
    draws, _ = sample.collect([Draw(1, 0)], [0], [[]])
    none, _ = sample.collect([], [], [])
    for module in (sample, sample_triton):
        assert module.draw_tokens(torch.zeros(1, 0), draws)[0].tolist() == [-1]
        assert module.draw_tokens(torch.zeros(0, 4), none)[0].tolist() == []
        with pytest.raises(ValueError, match="do not fit"):
            module.draw_tokens(torch.zeros(2, 4), draws)
        with pytest.raises(ValueError, match="float64 is needed"):
            module.draw_tokens(torch.zeros(1, 4), draws._replace(top_p_R=torch.ones(1)))


BUGS = {
    "filters: no equals counted off": ("(equal & (rank <= need))", "equal"),
    "filters: equals from the first tile on": ("equals += tl.sum(equal.to(tl.int32), 0)", "equals += 0"),
    "filters: top_k one more": ("need = top_k - ", "need = top_k + 1 - "),
    "filters: nucleus one more": ("above + before * each < goal", "above + before * each <= goal + each"),
    "filters: nucleus of half": ("_keep_p(keys, top_p * total", "_keep_p(keys, 0.5 * top_p * total"),
    "filters: min_p": (">= min_p)", "> min_p)"),
    "filters: threshold not exact": ("for _ in range(63)", "for _ in range(12)"),
    "filters: the columns' bound": (">= top_k\n", ">= 1\n"),
    "filters: the nucleus' bound": ("(1.0 - top_p) * total / size", "(1.0 - top_p) * total"),
    "filters: temperature multiplies": ("cost = (best - x) / temperature", "cost = (best - x) * temperature"),
    "plain: the best is the last of equals": (
        "tl.min(tl.where(tops == top, ids, 2147483647), 0)",
        "tl.max(tl.where(tops == top, ids, -1), 0)",
    ),
    "plain: node and index exchanged": (
        "zero + index.to(tl.uint32), zero + node.to(tl.uint32)",
        "zero + node.to(tl.uint32), zero + index.to(tl.uint32)",
    ),
    "plain: counter within the tile": ("+ _gumbel(seed, at, index", "+ _gumbel(seed, lane, index"),
    "plain: another word": ("(first.to(tl.float64)", "(second.to(tl.float64)"),
    "plain: NaN passed over": ("(tl.sum(broken, 0) == 0) & ", "(tl.sum(broken, 0) >= 0) & "),
    "plain: log-probability without its sum": ("- tl.log(tl.sum(sums, 0))", "- tl.log(tl.max(sums, 0))"),
    "changed: negative logits divided": ("x * repetition)", "x / repetition)"),
    "changed: penalty unbounded": ("tl.minimum(x / repetition, huge)", "x / repetition"),
    "changed: prompt counted": ("mask=inside & (at >= answer)", "mask=inside"),
    "changed: seen in the answer only": ("((flag & SEEN) > 0)", "(count > 0)"),
    "changed: frequency once": ("frequency * count)", "frequency)"),
    "changed: ban lifted": ("(flag & BANNED) > 0", "(flag & BANNED) > BANNED"),
    "changed: bias replaces": ("other=0.0) + much", "other=0.0) * 0.0 + much"),
    "changed: log-probability after edits": (
        "tl.load(logits + token).to(tl.float64) - highest",
        "tl.load(values + token).to(tl.float64) - best",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, tmp_path: Path) -> None:
    broken = planted(sample_triton, *BUGS[bug], tmp_path)
    rows = {"filters": filters, "plain": plain, "changed": changed}[bug.split(":")[0]]()

    def everything() -> None:
        for start in range(0, len(rows.hows), 4):
            check(broken, rows.part(start, start + 4), 32)

    caught(everything)
