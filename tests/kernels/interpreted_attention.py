"""Paged and joint attention in the interpreter. Not collected by name: `test_triton_forms.py` runs it."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from against import DTYPES, caught, draws, inside_nan, near, planted, poisoned
from omni_runtime.kernels import attention, attention_triton, joint, joint_triton

Case = tuple[list[int], list[int], int, int, int, int, int]
# counts, lengths, heads of keys, heads that share one, features, places of a block, window
PAGED: list[Case] = [
    ([1, 40, 0, 3, 1], [1, 75, 9, 70, 37], 2, 3, 12, 5, 0),  # decodes, a chunk of two tiles, an empty row, a short chunk
    (
        [1, 4, 30],
        [150, 66, 45],
        1,
        2,
        16,
        16,
        33,
    ),  # a window; rows in pieces, of which the first two queries of row 1 see one only
    ([1, 1], [129, 64], 1, 17, 8, 1, 0),  # more heads than a small tile has rows; blocks of one place
    ([], [], 2, 2, 16, 4, 0),
]


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "PIECE", 64)


def paged(dtype: torch.dtype, case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, attention.Plan]:
    counts, lengths, groups, group, features, places, window = case
    draw = draws(sum(lengths), dtype)
    needed = [-(-length // places) for length in lengths]
    free = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(0)).tolist()
    cache = torch.full((len(free), 2, places, groups, features), torch.nan, dtype=dtype)
    blocks = []
    for length, count in zip(lengths, needed, strict=True):
        mine, free = free[:count], free[count:]
        blocks.append(mine)
        for p in range(length):
            cache[mine[p // places], :, p % places] = draw(2, groups, features)
    q = inside_nan(2 * draw(sum(counts), groups * group, features))
    tokens, rows, widest, tiles, merges, slots = attention.plan(counts, lengths, blocks, group, window).sizes
    sizes = attention.Sizes(tokens, rows + 1, widest + 1, tiles + 2, merges + 1, slots + 1)
    batch = attention.plan(counts, lengths, blocks, group, window, sizes=sizes)
    return q, cache[:, 0], cache[:, 1], batch


def check_paged(module: ModuleType, dtype: torch.dtype, case: Case) -> None:
    q, k, v, batch = paged(dtype, case)
    with poisoned():
        out = module.paged_attention(q, k, v, batch, 0.3)
    near(out, attention.paged_attention(q, k, v, batch, 0.3))


JOINT = [([(70, 5), (0, 3), (9, 0), (1, 65)], 2, 12), ([], 1, 8), ([(3, 2)], 1, 40)]


def check_joint(module: ModuleType, dtype: torch.dtype, case: tuple[list[tuple[int, int]], int, int]) -> None:
    counts, heads, features = case
    draw = draws(features, dtype)
    streams = []
    for which in (0, 1):
        qkv = inside_nan(draw(sum(count[which] for count in counts), 3 * heads, features))
        streams.append(qkv.split(heads, 1))
    batch = joint.joint_plan(counts)
    with poisoned():
        outs = module.joint_attention(*streams, batch, 0.4)
    for out, expected in zip(outs, joint.joint_attention(*streams, batch, 0.4), strict=True):
        near(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_equals_its_definition(dtype: torch.dtype) -> None:
    for case in PAGED:
        check_paged(attention_triton, dtype, case)
    for joint_case in JOINT:
        check_joint(joint_triton, dtype, joint_case)


def test_neighbours_change_nothing() -> None:
    """A row alone, and in a crowd, to the bit: decode, short chunk and long chunk."""
    q, k, v, batch = paged(torch.bfloat16, ([1, 3, 30], [150, 90, 45], 1, 2, 16, 4, 0))
    crowd = attention_triton.paged_attention(q, k, v, batch, 0.3)
    start = 0
    for row, (count, length) in enumerate(zip(batch.counts, batch.lengths, strict=True)):
        alone = attention.plan([count], [length], [batch.blocks_RB[row].tolist()], 2)
        mine = slice(start, start + count)
        assert torch.equal(attention_triton.paged_attention(q[mine], k, v, alone, 0.3), crowd[mine])
        start += count


def test_pieces_of_a_row_are_one_row() -> None:
    """Split and unsplit agree; and splitting happens at all."""
    q, k, v, batch = paged(torch.float32, PAGED[1])
    blocks = [row.tolist() for row in batch.blocks_RB[:3]]
    assert batch.sizes.slots == 4 + 1  # window 33 over the last keys of 150 and of 66, each across one cut
    attention.PIECE = 4096
    whole = attention.plan(batch.counts, batch.lengths, blocks, 2, 33)
    assert whole.sizes.slots == 0 and len(whole.tiles_W5) == 3
    torch.testing.assert_close(
        attention_triton.paged_attention(q, k, v, whole, 0.3), attention_triton.paged_attention(q, k, v, batch, 0.3)
    )


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, k, v, batch = paged(torch.float32, PAGED[0])
    for module in (attention, attention_triton):
        with pytest.raises(ValueError, match="do not fit"):
            module.paged_attention(q[:, :4], k, v, batch, 1.0)
        with pytest.raises(ValueError, match="do not fit"):
            module.paged_attention(q.half(), k, v, batch, 1.0)
        with pytest.raises(ValueError, match="44 query tokens, the plan has 45"):
            module.paged_attention(q[:-1], k, v, batch, 1.0)
        with pytest.raises(ValueError, match="row 1 of 75 tokens has blocks for 60"):
            module.paged_attention(q, k[:, :4].contiguous(), v[:, :4].contiguous(), batch, 1.0)
    with pytest.raises(ValueError, match="contiguous is needed"):
        attention_triton.paged_attention(q, k.transpose(1, 2).contiguous().transpose(1, 2), v, batch, 1.0)
    with pytest.raises(ValueError, match="row 0 has 3 queries and 2 tokens"):
        attention.plan([3], [2], [[0]], 1)
    x = torch.ones(2, 1, 4)
    for module in (joint, joint_triton):
        with pytest.raises(ValueError, match="do not fit"):
            module.joint_attention((x, x, x), (x, x, x[:1]), joint.joint_plan([(2, 2)]), 1.0)


BUGS = {
    "paged: tail of the keys": (attention_triton, "there = key < high", "there = key < high + 1"),
    "paged: causal off by one": (attention_triton, "key[None, :] <= (at + query)", "key[None, :] <= 1 + (at + query)"),
    "paged: window off by one": (attention_triton, "- window)", "- window - 1)"),
    "paged: piece begins late": (attention_triton, "range(low, high", "range(low + 1, high"),
    "paged: accumulator not rescaled": (attention_triton, "mixed = mixed * fade[:, None] + tl.dot", "mixed = mixed + tl.dot"),
    "paged: sum not rescaled": (attention_triton, "total = total * fade + tl.sum", "total = total + tl.sum"),
    "paged: a piece that sees nothing": (
        attention_triton,
        'base = tl.where(risen == float("-inf"), 0.0, risen)  #',
        "base = risen  #",
    ),
    "paged: pieces weigh the same": (attention_triton, "part * weight[:, None]", "part"),
    "paged: first head of keys": (attention_triton, "* groups * features + head * features", "* groups * features"),
    "paged: block of the first row": (attention_triton, "row * table_row + key", "key"),
    "paged: lines that belong to nobody": (attention_triton, "(query < count) & (line", "(line"),
    "paged: padded features": (attention_triton, "wide = feature < features", "wide = feature < BLOCK_E"),
    "joint: second stream": (joint_triton, "query, k2, v2, start2, end2", "query, k2, v2, start2, start2"),
    "joint: tail of the keys": (joint_triton, "there = token < end", "there = token < end + 1"),
    "joint: tail of the queries": (joint_triton, "inside = (line < last)[:, None]", "inside = (line < last + 1)[:, None]"),
    "joint: starts of the first stream": (joint_triton, "starts + samples + 1 + sample", "starts + sample"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, tmp_path: Path) -> None:
    module, before, after = BUGS[bug]
    broken = planted(module, before, after, tmp_path)

    def everything() -> None:
        if bug.startswith("paged"):
            for case in PAGED:
                check_paged(broken, torch.float16, case)
        else:
            check_joint(broken, torch.float16, JOINT[0])

    caught(everything)
