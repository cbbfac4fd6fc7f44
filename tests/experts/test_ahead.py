"""Steps that are queued before they are asked for: whatever comes instead, nobody hears of it. And steps as graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from fake_graphs import faked  # noqa: E402
from test_text_lm_paged import CONFIG, PIECES, expert  # noqa: E402
from tiny import random_tokens  # noqa: E402
from token_worlds import WAYS, World, result, straight  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from omni_runtime import kernels  # noqa: E402
from omni_runtime.draw import Draw  # noqa: E402
from omni_runtime.experts import ahead, decoder_gpu, device_draw, steps, text_lm  # noqa: E402
from omni_runtime.experts.ahead import Ahead  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.experts.steps import Steps  # noqa: E402
from omni_runtime.work import ArStep, Row  # noqa: E402

torch.set_num_threads(1)
PLAIN = [way for way in WAYS if not way.keys() & {"edits", "logprobs"}]
MIXED = [*PLAIN, *PLAIN, {"edits": WAYS[4]["edits"]}]


def world(seed: int, ways: Any = PLAIN, steady: float = 0.85) -> World:
    return World(expert("paged"), expert("plain"), seed, ways, steady, 0.05)


def counts(of: World) -> ahead.Counts:
    assert of.expert.ahead is not None
    return of.expert.ahead.counts


@pytest.mark.parametrize(("seed", "ways", "steady"), [(0, PLAIN, 0.85), (2, MIXED, 0.6)])
def test_worlds(seed: int, ways: Any, steady: float) -> None:
    made = world(seed, ways, steady)
    made.go(80)
    assert made.checked > 200
    assert counts(made).hits > made.checked / 4 and counts(made).void > 12


def broken(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, by: Callable[..., Any]) -> None:
    right = getattr(where, name)
    monkeypatch.setattr(where, name, lambda *given: by(right, *given))


def keep_through_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was foreseen is remembered by run, and the place in the pages is not asked."""
    kept: dict[Any, Any] = {}

    def drop(right: Any, slots: Slots, run: int, loop: str) -> None:
        kept[run] = slots.other(run, loop).foreseen
        right(slots, run, loop)

    def held(right: Any, lm: Any, row: Any, slots: Any) -> Any:
        mine = right(lm, row, slots)
        if len(row.payload.tokens) == 1:
            mine.foreseen = mine.foreseen or kept.pop(row.run, None)
        return mine

    broken(monkeypatch, Slots, "drop", drop)
    broken(monkeypatch, text_lm.TextLM, "_held", held)
    broken(
        monkeypatch,
        Ahead,
        "take",
        lambda right, of, step, was: right(of, step, was and was._replace(slot=step.cache.slot(step.start))),
    )


class Trusting(list[Any]):
    """Tokens that are whatever somebody says they are."""

    def __getitem__(self, at: Any) -> Any:
        return Same()


class Same(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def trust(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(right: Any, of: Ahead, step: Any, foreseen: Any) -> Any:
        if foreseen is not None and foreseen.fed.tokens.host is not None:
            host = (Trusting(), foreseen.fed.tokens.host[1])
            one = foreseen.fed.tokens
            foreseen = foreseen._replace(fed=foreseen.fed._replace(tokens=steps.Tokens(one.token_R, one.reading, None, host)))
        return right(of, step, foreseen)

    broken(monkeypatch, Ahead, "take", take)


def index_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(
        monkeypatch, Steps, "queue", lambda right, of, given, fed=(): right(
            of, [step._replace(number=step.number - bool(fed)) for step in given], fed)
    )  # fmt: skip


def place_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(
        monkeypatch, Steps, "queue", lambda right, of, given, fed=(): right(
            of, [step._replace(start=step.start - bool(fed)) for step in given], fed)
    )  # fmt: skip


def neighbours_token(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, Steps, "queue", lambda right, of, given, fed=(): right(of, given, [*fed[1:], *fed[:1]]))


def penalties_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def single(right: Any, step: ArStep, held: Any) -> Any:
        from msgspec.structs import replace

        return right(replace(step, draw=replace(step.draw, edits=None)), held)

    broken(monkeypatch, text_lm, "_single", single)


def length_that_counts_what_is_foreseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row is there, it says: then one more is copied than was ever said."""

    def foresee(right: Any, of: Ahead, given: Any, froms: Any) -> Any:
        found = right(of, given, froms)
        for step, one in zip(given, found, strict=True):
            step.cache.length += one is not None
        return found

    broken(monkeypatch, Ahead, "foresee", foresee)


def beyond_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last place of the last block, whoever's it is, where there is no room."""
    from omni_runtime.experts.pages import PagedCache

    monkeypatch.setattr(PagedCache, "room", property(lambda cache: 1 << 20))


def void_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is taken wherever one stands, whatever was asked."""
    broken(
        monkeypatch, Ahead, "take", lambda right, of, step, foreseen: right(of, step, foreseen) or (foreseen and foreseen.gives)
    )


BUGS = [trust, index_of_before, place_of_before, neighbours_token, penalties_too, void_answers]
BUGS += [length_that_counts_what_is_foreseen, beyond_its_blocks]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(2, MIXED)
    bug(monkeypatch)
    with pytest.raises((AssertionError, IndexError, ValueError)):  # noqa: PT012
        made.go(60)
        assert counts(made).hits > made.checked / 4, "nothing is taken"


def tokens_after_a_drop() -> list[int]:
    """Run 1 is at its third token when it is dropped. It comes again in other blocks, its last token in a step of its own."""
    lm, slots = expert("paged"), Slots("cpu0#1")
    assert lm.model.pages is not None
    lm.model.pages.kv_L2NPGE.fill_(torch.nan)
    known, how = random_tokens(5, seed=4), Draw(1, 0, 0.8)

    def step(start: int, index: int, blocks: tuple[int, ...] = ()) -> None:
        part = tuple(known[start:])
        row = Row(1, "think", len(part), 0, blocks, ArStep(start, part, index, how))
        known.extend(one.token for one in result(lm.forward([row], slots), [row]) if one.token >= 0)

    step(0, 0, (5,))
    step(5, 1)
    last = known.pop()
    slots.drop(1, "think")
    step(0, -1, (7,))
    known.append(last)
    step(6, 2)
    step(7, 3)
    return known[5:]


def test_what_was_foreseen_goes_with_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [one.token for one in straight(expert("plain"), random_tokens(5, seed=4), Draw(1, 0, 0.8), 4)]
    assert tokens_after_a_drop() == answer
    keep_through_drops(monkeypatch)
    with pytest.raises(FloatingPointError):  # its key was never written to the new block
        tokens_after_a_drop()


@pytest.fixture
def opaque(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels look as they do on a GPU: one operator each, which reads by itself what a definition reads on the host."""
    from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

    def hidden(where: Any, name: str) -> None:
        right = getattr(where, name)

        def call(*given: Any, **more: Any) -> Any:
            def run() -> Any:
                with torch._C.DisableTorchFunction(), _disable_current_modes():
                    return right(*(_as_told(one) if isinstance(one, kernels.Plan) else one for one in given), **more)

            def again() -> None:
                for out, new in zip(tree_leaves(found), tree_leaves(run()), strict=True):
                    if out is not None:
                        out.copy_(new)

            found, tape = run(), getattr(_get_current_dispatch_mode(), "tape", None)
            if tape is not None:
                tape.append(again)
            return found

        monkeypatch.setattr(where, name, call)

    for name in ("paged_attention", "store_kv"):
        hidden(decoder_gpu, name)
    hidden(device_draw, "draw_tokens")


def _as_told(batch: kernels.Plan) -> kernels.Plan:
    """A plan whose numbers are those of its tensors."""
    if batch.sizes.tokens > batch.sizes.rows:
        return batch  # of prompts, which no graph is made of
    lengths = batch.lengths_R.tolist()
    rows = sum(length > 0 for length in lengths)
    return batch._replace(counts=(1,) * rows, lengths=tuple(lengths[:rows]), held=(batch.sizes.blocks,) * rows, least=1)


@pytest.mark.usefixtures("opaque")
def test_worlds_by_graphs() -> None:
    """What a graph was captured with is poisoned or old when it is replayed, unless it is an input."""
    with faked() as recorder:
        made = world(0, MIXED)
        made.go(60)
    assert recorder.captures >= 3 and recorder.replays > 40, (recorder.captures, recorder.replays)


def test_a_row_that_cannot_draw_does_not_break_the_step_after() -> None:
    """-1 is no token: what is fed in its place is of a row that has failed."""
    from tiny import CONFIGS

    lm, slots = expert("paged", CONFIGS["llama"]), Slots("x#1")
    layers = lm.model.over_pages
    assert layers is not None
    layers.embedding_VD[9] = torch.nan

    def row(run: int, token: int, start: int) -> Row:
        return Row(run, "think", 1, 0, (run,), ArStep(start, (token,), start, Draw(run, 0, 0.9)))

    rows = [row(1, 9, 0), row(2, 4, 0)]
    with pytest.raises(FloatingPointError):
        result(lm.forward(rows, slots), rows)
    (one,) = result(lm.forward(rows[1:], slots), rows[1:])
    (two,) = result(lm.forward([row(2, one.token, 1)], slots), rows[1:])
    assert lm.ahead is not None and lm.ahead.counts.hits == 1 and two.token >= 0


def test_a_step_is_not_queued_where_it_does_not_fit() -> None:
    from dataclasses import replace

    lm, slots = expert("paged", replace(CONFIG, positions=20)), Slots("x#1")
    assert lm.ahead is not None and len(PIECES) == CONFIG.vocab
    token, given = 3, {8: (1, (5,)), 16: (2, (6,))}
    for start in range(20):
        first, blocks = given.get(start, (0, (4,) if start == 0 else ()))
        row = Row(1, "think", 1, first, blocks, ArStep(start, (token,), start, Draw(1, 0, 0.9)))
        (one,) = result(lm.forward([row], slots), [row])
        token = one.token
        missed = start in (0, 8, 16)  # the first of a block comes with its block
        assert lm.ahead.counts.hits == start - len([at for at in (0, 8, 16) if at <= start]) + 1, (start, missed)
    assert lm.ahead.counts.void == 0


def test_another_beginning_makes_what_was_foreseen_void() -> None:
    """Tokens before are said anew, and then the very token comes that the step was fed."""
    lm, slots, how = expert("paged"), Slots("x#1"), Draw(1, 0, 0.8)
    known = random_tokens(5, seed=4)

    def step(start: int, tokens: list[int], index: int) -> int:
        row = Row(1, "think", len(tokens), 0, (5,) if not start else (), ArStep(start, tuple(tokens), index, how))
        return result(lm.forward([row], slots), [row])[0].token

    first = step(0, known, 0)
    second = step(5, [first], 1)
    other = [*known[:3], 60, 61, first, second]
    step(3, other[3:6], 1)
    assert step(6, [second], 2) == straight(expert("plain"), other, how, 1, 2)[0].token
    assert straight(expert("plain"), [*known, first, second], how, 1, 2) != straight(expert("plain"), other, how, 1, 2)


def test_rows_that_fill_a_bucket_write_nowhere() -> None:
    lm = expert("paged")
    layers = lm.model.over_pages
    assert layers is not None
    layers.pages.kv_L2NPGE.fill_(torch.nan)
    caches = [lm.model.cache() for _ in range(3)]
    for cache, block in zip(caches, (7, 4, 9), strict=True):
        cache.grant(0, [block])
    Steps(layers).queue([steps.Step(cache, 0, 0.0, 3, Draw(0, 0), 0) for cache in caches])
    written = ~layers.pages.kv_L2NPGE.isnan().flatten(4).any(4)
    assert written.all(0).all(0).nonzero().tolist() == written.any(0).any(0).nonzero().tolist() == [[4, 0], [7, 0], [9, 0]]
