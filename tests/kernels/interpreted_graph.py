"""A launch of fixed sizes, as a CUDA graph repeats it: other batches of a bucket by copying their plans' tensors over it.

Not collected by name: `test_triton_forms.py` runs it.
"""

import random
from pathlib import Path
from types import ModuleType

import pytest
import torch
from against import caught, draws, inside_nan, near, planted, poisoned
from omni_runtime.kernels import attention, attention_triton

PIECE = 64
GROUPS, GROUP, FEATURES, PLACES, ROWS, QUERIES, BLOCKS = 1, 2, 16, 16, 3, 33, 10
# counts and lengths: small tiles in pieces, a chunk; then more queries, fewer rows, more pieces, and nobody.
BATCHES = [([1, 4, 30], [150, 66, 45]), ([33, 33, 33], [160, 159, 129]), ([2], [9]), ([8, 8, 8], [160, 160, 160]), ([], [])]


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "PIECE", PIECE)


def check(definition: ModuleType, module: ModuleType, window: int) -> None:
    """Every batch through the host's side of the first, in the sizes of the bucket."""
    definition.PIECE = PIECE
    draw = draws(window, torch.float16)
    sizes = definition.bucket(ROWS, QUERIES, BLOCKS, PLACES, GROUP, window)
    cache = inside_nan(draw(2 * ROWS * BLOCKS, PLACES, GROUPS, FEATURES)).contiguous().view(2, -1, PLACES, GROUPS, FEATURES)
    blocks = torch.randperm(ROWS * BLOCKS, generator=torch.Generator().manual_seed(1)).view(ROWS, BLOCKS).tolist()
    held, q = None, torch.empty(sizes.tokens, GROUPS * GROUP, FEATURES, dtype=torch.float16)
    for counts, lengths in BATCHES:
        mine = [blocks[row][: -(-length // PLACES)] for row, length in enumerate(lengths)]
        try:
            batch = definition.plan(counts, lengths, mine, GROUP, window, sizes=sizes)
        except ValueError as problem:
            raise AssertionError("the bucket does not hold its batch") from problem
        q.fill_(torch.nan)[: sum(counts)] = 2 * draw(sum(counts), GROUPS * GROUP, FEATURES)
        held = held or batch
        for name, tensor in batch.tensors().items():
            held.tensors()[name].copy_(tensor)
        with poisoned():
            out = module.paged_attention(q, cache[0], cache[1], held, 0.3)
        own = slice(0, sum(counts))
        exact = attention.plan(counts, lengths, mine, GROUP, window)
        near(out[own], attention.paged_attention(q[own], cache[0], cache[1], exact, 0.3))
        assert out[sum(counts) :].isnan().all(), "a query token of nobody was written"


@pytest.mark.parametrize("window", [0, 33])
def test_a_batch_takes_the_place_of_another(window: int) -> None:
    check(attention, attention_triton, window)


def test_a_filled_plan_gives_the_same_to_the_bit_and_is_its_tensors() -> None:
    draw = draws(0, torch.bfloat16)
    q, cache = draw(35, 2, 16), draw(2, 20, 16, 1, 16)
    given = ([1, 4, 30], [150, 66, 45], [list(range(10)), list(range(10, 15)), list(range(15, 18))], GROUP)
    exact, filled = attention.plan(*given), attention.plan(*given, sizes=attention.Sizes(40, 5, 12, 12, 4, 9))
    wide = torch.cat([q, q[:5]])
    right = attention_triton.paged_attention(q, *cache, exact, 0.3)
    assert torch.equal(attention_triton.paged_attention(wide, *cache, filled, 0.3)[:35], right)
    assert not attention.paged_attention(wide, *cache, filled, 0.3)[35:].any()
    other = filled.on({name: tensor.clone() for name, tensor in filled.tensors().items()})
    assert torch.equal(attention_triton.paged_attention(wide, *cache, other, 0.3)[:35], right)


@pytest.mark.parametrize("window", [0, 1, 2, 50, 200])
@pytest.mark.parametrize("group", [1, 3, 17, 70])
def test_a_bucket_holds_every_batch_and_its_slots_are_needed(group: int, window: int) -> None:
    dice, most = random.Random(group), 0
    for queries in (1, 5, 70):
        sizes = attention.bucket(4, queries, 30, 16, group, window)
        for _ in range(50):
            counts = [dice.randint(0, queries) for _ in range(dice.randint(0, 4))]
            lengths = [dice.randint(max(count, 1), 480) for count in counts]
            batch = attention.plan(counts, lengths, [[0] * -(-n // 16) for n in lengths], group, window, sizes=sizes)
            batch.fits(16)
        few = min(queries, max(16 // group, 1))
        for length in range(480, 480 - PIECE, -1):  # one of them begins just before a cut
            full = attention.plan([few] * 4, [length] * 4, [[0] * 30] * 4, group, window, sizes=sizes)
            most = max(most, int((full.tiles_W5[:, 4] >= 0).sum()) - sizes.slots)
    assert most == 0


def test_what_does_not_fit_is_refused() -> None:
    sizes = attention.bucket(1, 1, 2, 16, 1)
    assert sizes == attention.Sizes(tokens=1, rows=1, blocks=2, tiles=1, merges=0, slots=0)
    for needs, given in (
        ("2 tokens", ([2], [9], [[0]])),
        ("2 rows", ([1, 0], [1, 0], [[0], []])),
        ("3 blocks", ([1], [9], [[0] * 3])),
    ):
        with pytest.raises(ValueError, match=f"needs {needs}, the sizes are"):
            attention.plan(*given, group=1, sizes=sizes)
    with pytest.raises(ValueError, match="needs 2 tiles, the sizes are 1"):
        attention.plan([1], [70], [[0, 1]], 1, sizes=sizes)
    attention.plan([1], [32], [[0, 1]], 1, sizes=sizes).fits(16)
    with pytest.raises(ValueError, match="row 0 of 33 tokens has blocks for 32"):
        attention.plan([1], [33], [[0, 1]], 1, sizes=sizes).fits(16)
    with pytest.raises(ValueError, match="row 1 of 1 tokens has blocks for 0"):
        attention.plan([1, 1], [1, 1], [[0], []], 1).fits(16)


BUGS = {
    "a merge that is filled in writes": (attention, "merges_M4 = np.zeros(", "merges_M4 = np.ones("),
    "a tile that is filled in is one": (attention, "NOBODY = (-1, 0", "NOBODY = (0, 0"),
    "a slot too few in the bucket": (attention, "cut * pieces)", "cut * pieces - 1)"),
    "a tile too few in the bucket": (attention, "rows * (whole + max(pieces, 1))", "rows * whole + pieces"),
    "no large tiles in the bucket": (attention, "whole = max(queries", "whole = 0 * max(queries"),
    "a slot too few in the launch": (attention_triton, "(batch.sizes.slots, groups", "(batch.sizes.slots - 1, groups"),
    "merges of the first batch": (attention_triton, "(len(batch.merges_M4), groups)", "(2, groups)"),
    "lengths of the first batch": (attention_triton, "tl.load(lengths + row) - count", "45 - count"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, tmp_path: Path) -> None:
    module, before, after = BUGS[bug]
    broken = planted(module, before, after, tmp_path)
    caught(lambda: check(broken, attention_triton, 0) if module is attention else check(attention, broken, 0))
