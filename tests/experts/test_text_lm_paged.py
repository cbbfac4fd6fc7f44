"""Op `forward` with pages and draws on the device, in random worlds, against each request alone on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from paged import PLACES  # noqa: E402
from tiny import CONFIGS, random_tokens, random_weights  # noqa: E402
from token_worlds import World, result  # noqa: E402

from omni_runtime.draw import Draw, Edits  # noqa: E402
from omni_runtime.errors import CardError, RequestError  # noqa: E402
from omni_runtime.experts import device_draw, text_lm  # noqa: E402
from omni_runtime.experts.decoder import DecoderLM  # noqa: E402
from omni_runtime.experts.edits import History  # noqa: E402
from omni_runtime.experts.pages import PagedCache  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.experts.text_lm import TextLM  # noqa: E402
from omni_runtime.weights.decoder_config import DecoderConfig  # noqa: E402
from omni_runtime.work import ArStep, Row  # noqa: E402

torch.set_num_threads(1)
CONFIG = CONFIGS["qwen3"]
PIECES = [b"<%d>" % i for i in range(CONFIG.vocab)]


def expert(layout: str, config: DecoderConfig = CONFIG) -> TextLM:
    made = TextLM(DecoderLM(config, random_weights(config), layout=layout), PIECES)
    made.allot(120, PLACES)
    if made.model.pages is not None:
        made.model.pages.kv_L2NPGE.fill_(torch.nan)
    return made


def world(seed: int, turns: int = 60, **more: Any) -> World:
    made = World(expert("paged"), expert("plain"), seed, **more)
    made.go(turns)
    return made


@pytest.mark.parametrize("seed", range(3))
def test_worlds(seed: int) -> None:
    assert world(seed).checked > 120


def replaced(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, by: Callable[[Any], Any]) -> None:
    monkeypatch.setattr(where, name, by(getattr(where, name)))


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "blocks appended, wherever they belong": lambda m: replaced(
        m, PagedCache, "grant", lambda grant: lambda cache, first, blocks: grant(cache, len(cache.table), blocks)
    ),
    "a place too far": lambda m: replaced(
        m, PagedCache, "slots", lambda slots: lambda cache, start, stop: slots(cache, start, stop) ^ 1
    ),
    "a copy of one block too few": lambda m: replaced(
        m, PagedCache, "begin_as", lambda copy: lambda cache, other, length: _short(copy, cache, other, length)
    ),
    "every row draws its first token": lambda m: replaced(
        m, device_draw, "arrays", lambda arrays: lambda hows, indices, known: arrays(hows, [0] * len(hows), known)
    ),
    "parameters of the row before": lambda m: replaced(
        m, device_draw, "arrays", lambda arrays: lambda hows, indices, known: arrays([*hows[1:], *hows[:1]], indices, known)
    ),
    "tokens counted twice": lambda m: replaced(
        m, History, "write", lambda write: lambda history, start, tokens: write(history, len(history), tokens)
    ),
}


def _short(copy: Any, cache: PagedCache, other: PagedCache, length: int) -> None:
    copy(cache, other, length - PLACES)
    cache.length = length


PLACES_OF = (PagedCache, PagedCache, PagedCache, device_draw, History)
NAMES = ("grant", "slots", "begin_as", "arrays", "write")


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = World(expert("paged"), expert("plain"), 1, steady=0.5)
    healthy = (PagedCache.grant, PagedCache.slots, PagedCache.begin_as, device_draw.arrays, History.write)
    real = made.join

    def join() -> None:
        with pytest.MonkeyPatch.context() as back:  # the oracle has no bug
            for where, name, right in zip(PLACES_OF, NAMES, healthy, strict=True):
                back.setattr(where, name, right)
            real()

    monkeypatch.setattr(made, "join", join)
    BUGS[bug](monkeypatch)
    with pytest.raises((AssertionError, FloatingPointError)):  # the pages are NaN where nobody wrote
        made.go(90)


def row(run: int, tokens: list[int], how: Draw, blocks: tuple[int, ...]) -> Row:
    return Row(run, "think", len(tokens), 0, blocks, ArStep(0, tuple(tokens), 0, how))


def test_a_row_whose_logits_are_no_numbers_breaks_its_batch_and_nobody_else() -> None:
    """The core runs the rows of a broken batch again, each alone: only the guilty one fails."""
    lm, slots = expert("paged", CONFIGS["llama"]), Slots("x#1")  # whose head is not its embedding
    assert lm.model._paged is not None
    lm.model._paged.embedding_VD[9] = torch.nan
    rows = [row(1, [3, 4], Draw(1, 0), (5,)), row(2, [9, 4], Draw(2, 0), (6,)), row(3, [5, 6], Draw(3, 0, 0.8), (7,))]
    with pytest.raises(FloatingPointError, match="the largest is nan"):
        result(lm.forward(rows, slots), rows)
    for one in (rows[0], rows[2]):
        assert result(lm.forward([one], slots), [one])[0].token >= 0
    with pytest.raises(FloatingPointError):
        result(lm.forward([rows[1]], slots), [rows[1]])


def test_a_request_that_leaves_no_token_is_refused() -> None:
    lm = expert("paged")
    all_of = row(1, [3], Draw(0, 0, edits=Edits(stop_ids=tuple(range(CONFIG.vocab)), least=2)), (0,))
    with pytest.raises(RequestError, match="min_tokens: every token that the model could draw as number 1 is a stop token"):
        result(lm.forward([all_of], Slots("x#1")), [all_of])


def test_hidden_rows_are_those_of_the_decoder_in_torch() -> None:
    found = []
    for layout in ("paged", "plain"):
        slots, tokens = Slots("x#1"), random_tokens(11, seed=3)
        step = Row(1, "think", 11, 0, (4, 2), ArStep(0, tuple(tokens), 0, Draw(1, 0), hidden=True))
        (one,) = result(expert(layout).forward([step], slots), [step])
        refs = one.tensors["hidden"]
        assert len(refs) == 11 and refs[0].dtype == "float32"
        found.append(torch.stack([slots.read(ref) for ref in refs]))
    torch.testing.assert_close(*found, rtol=2e-5, atol=5e-5)


def test_options_are_told_apart() -> None:
    with pytest.raises(CardError, match="dtype='half'"):
        text_lm.build({"linear": "paged", "dtype": "half"}, "cpu")
