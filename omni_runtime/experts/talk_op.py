"""What talkers share as experts: op `talk` feeds positions of many requests as one batch, and draws whole frames.

    positions 0 .. T       turns of the user, or the prompt
    positions T .. T+O     the opening
    position  T+O+k        frame k, with what is said with it

What a loop keeps is KV and a history of codes, by position. What stands at a position is made anew by each step, so a row that
begins at 0 needs nothing that was here before, and one that is run again finds nothing counted twice.

Suffixes: T positions of the batch, N of a row, O of the opening, D width of the talker, W width of the thinker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from omni_runtime.errors import RequestError
from omni_runtime.experts import insets
from omni_runtime.experts.base import Launched, Op
from omni_runtime.experts.decoder import DecoderLM
from omni_runtime.experts.edits import History
from omni_runtime.experts.kv_cache import Cache
from omni_runtime.experts.pages import turn
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.talk_span import Talked, Talking, TalkSpan
from omni_runtime.work import Row, StepResult, TalkStep


class Talks(Protocol):
    """A model."""

    @property
    def model(self) -> DecoderLM: ...

    def talk(self, spans: Sequence[TalkSpan]) -> list[Talked] | Talking: ...


@dataclass(frozen=True)
class _Held:
    """What is kept of one loop."""

    cache: Cache
    history: History


class _Queued(NamedTuple):
    """A batch whose codes are on their way."""

    steps: Sequence[TalkStep]
    talking: Talking

    def collect(self) -> list[StepResult]:
        """See `base.Launched`."""
        return _results(self.steps, self.talking.collect())


def _results(steps: Sequence[TalkStep], talked: Sequence[Talked]) -> list[StepResult]:
    return [
        StepResult(items={"codes": [one.frame] if one.frame else []}) if step.index >= 0 else StepResult()
        for step, one in zip(steps, talked, strict=True)
    ]


class TalkOp(ABC):
    """The expert. What stands at positions, and what penalties count of it, a family says.

    Args:
        talker: the model.
        opening: positions of the opening.
        sizes: how many codes there are, for each code of a frame.
        turns: positions before the opening come as ids; else as states.
    """

    def __init__(self, talker: Talks, opening: int, sizes: tuple[int, ...], turns: bool) -> None:
        self._talks, self._opening, self._sizes, self._turns = talker, opening, sizes, turns
        self.ops: Mapping[str, Op] = {"talk": self.talk}
        over_pages = "what a talker with pages is fed goes through torch's products, which depend on how many rows a call has"
        exact, self.varies = talker.model.exact, talker.model.varies
        if exact and talker.model.pages is not None:
            exact, self.varies = False, f"{over_pages}; leave batch_invariant out"
        self.invariant = frozenset(self.ops if exact else ())

    @abstractmethod
    def vectors(self, steps: Sequence[TalkStep], slots: Slots) -> torch.Tensor:
        """x_TD of all steps, whose counts are those of their positions.

        Raises:
            RequestError: ids, states or a speaker that this model has not.
        """

    @abstractmethod
    def counted(self, step: TalkStep) -> tuple[int, list[int]]:
        """Where in the history the codes of a step stand, and these codes."""

    def allot(self, blocks: int, positions: int) -> None:
        """The executor's pool: so many blocks of so many positions.

        Raises:
            CardError: there is not that much memory.
        """
        if (pages := self._talks.model.pages) is not None:
            pages.allot(blocks, positions)

    def talk(self, rows: Sequence[Row], slots: Slots) -> list[StepResult] | Launched:
        """Port "codes": one frame where one was asked for, and none where the answer has ended.

        Raises:
            RequestError: a row that no request may ask for. No cache and no history has changed then, unless what cannot be done
                is a draw.
            AssertionError: a row starts beyond its cache, or two rows are of one loop.
            FloatingPointError: a row's logits are not numbers.
        """
        if not rows:
            return []
        assert len({(row.run, row.loop) for row in rows}) == len(rows), "two rows of one loop in a batch"
        steps = [self._step(row) for row in rows]
        with turn(self._talks.model.pages, slots.home):
            talked = self._talk(rows, steps, slots)
        return _results(steps, talked) if isinstance(talked, list) else _Queued(steps, talked)

    def _talk(self, rows: Sequence[Row], steps: Sequence[TalkStep], slots: Slots) -> list[Talked] | Talking:
        held = [slots.state(row, self._begin) for row in rows]
        for row, mine in zip(rows, held, strict=True):
            mine.cache.grant(row.first, row.blocks)
        vectors = self.vectors(steps, slots).split_with_sizes([step.size for step in steps])
        spans = [
            TalkSpan(
                mine.cache,
                step.start,
                vectors_ND,
                step.draw,
                step.index,
                step.predict,
                mine.history,
                insets.positions(step.start, step.size, step.positions, step.shift),
            )
            for mine, step, vectors_ND in zip(held, steps, vectors, strict=True)
        ]
        for span in spans:
            self._talks.model.check(span.fed)
        for mine, step in zip(held, steps, strict=True):
            mine.history.write(*self.counted(step))
        return self._talks.talk(spans)

    def _begin(self) -> _Held:
        return _Held(self._talks.model.cache(), History())

    def kinds(self, step: TalkStep) -> tuple[int, int, int]:
        """Positions of the step before the opening, in it and after it."""
        begins, stop = step.before + self._opening, step.start + step.size
        parts = ((0, step.before), (step.before, begins), (begins, stop))
        before, opening, frames = (max(0, min(high, stop) - max(low, step.start)) for low, high in parts)
        return before, opening, frames

    def states(self, step: TalkStep, slots: Slots, width: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Rows of the step from which on states stand, rising, and these states, [n, W].

        Raises:
            RequestError: they are not of this talker's thinker, or fewer than the step says.
        """
        for inset in sorted(step.inner, key=lambda one: one.at):
            low, high = max(inset.at, step.start), min(inset.at + inset.count, step.start + step.size)
            if low >= high:
                continue
            whole_NW: torch.Tensor = slots.read(inset.vectors)
            if whole_NW.ndim != 2 or whole_NW.shape[1] != width:
                raise RequestError(f"inner: states of shape {tuple(whole_NW.shape)} are not those of this talker's thinker")
            if not 0 <= inset.first <= len(whole_NW) - inset.count:
                raise RequestError(f"inner: rows {inset.first} to {inset.first + inset.count} of {len(whole_NW)} states")
            yield low - step.start, whole_NW[inset.first + low - inset.at : inset.first + high - inset.at]

    def _step(self, row: Row) -> TalkStep:
        step = row.payload
        if not isinstance(step, TalkStep):
            raise RequestError(f"loop {row.loop!r}: op 'talk' needs a TalkStep, got {type(step).__name__}")
        if step.start < 0 or step.size < 1 or step.before < 0:
            told = f"start={step.start}, size={step.size}, before={step.before}"
            raise RequestError(f"loop {row.loop!r}: {told}: at least one position, none below 0")
        before, opening, frames = self.kinds(step)
        found = (len(step.turns), len(step.opening), len(step.frames), len(step.text))
        if found != (needed := (before if self._turns else 0, opening, frames, frames)):
            where = f"positions {step.start} to {step.start + step.size}, of {step.before} before an opening of {self._opening}"
            raise RequestError(f"loop {row.loop!r}: turns, opening, frames, text: {found} of each, {where} need {needed}")
        begins = step.before + self._opening
        if step.index != -1 and not 0 <= step.index == step.start + step.size - begins:
            raise RequestError(
                f"loop {row.loop!r}: index={step.index} after position {step.start + step.size - 1}; frame k is drawn after "
                f"position {begins - 1} + k, and nothing before"
            )
        for number, frame in enumerate(step.frames, max(0, step.start - begins)):
            if len(frame) != len(self._sizes) or any(not 0 <= c < size for c, size in zip(frame, self._sizes, strict=True)):
                needed_codes = f"{len(self._sizes)} codes below {max(self._sizes)}"
                raise RequestError(f"loop {row.loop!r}: frames: {frame} as frame {number}, {needed_codes} needed")
        return step


def distinct(ids: Sequence[int], embedding_VW: torch.Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Embeddings of the thinker's ids, each once, float32 [n, W]; and which of them stands where, index_T: to be sent.

    Raises:
        RequestError: it has not one of them.
    """
    if ids and not 0 <= min(ids) <= max(ids) < len(embedding_VW):
        wrong = next(token for token in ids if not 0 <= token < len(embedding_VW))
        raise RequestError(f"turns, opening, text: {wrong} is not in the thinker's vocabulary of {len(embedding_VW)}")
    once = {token: at for at, token in enumerate(dict.fromkeys(ids))}  # the pad of those who have said all, mostly
    rows_NW = embedding_VW[torch.tensor(list(once), dtype=torch.int64)].float()
    return rows_NW.numpy(), np.array([once[token] for token in ids], np.int64)
