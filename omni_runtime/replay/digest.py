"""What was decided in a feed, as sixteen letters: equal for equal decisions, in every process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, get_args

import msgspec
import numpy as np
from msgspec.structs import replace

from omni_runtime.orders import Fail, Instruction, Refuse
from omni_runtime.replay.encode import Foreign, called
from omni_runtime.work import ArStep, AudioStep, CallStep, Chunk, DenoiseStep, Draw, End, FlowStep, Row, RunBatch, TalkStep

ORDERS = frozenset(get_args(Instruction))
NOTHING = Draw(0, 0)


def decided(said: Sequence[Any]) -> list[Any]:
    """The scheduler's orders among what flow and scheduler said to each other."""
    return [word for word in said if type(word) in ORDERS]


def digest(said: Sequence[Any], commands: Sequence[Any], blind: bool = False) -> str:
    """Of the scheduler's orders and the core's commands, in order. Arrays count by dtype and shape, foreign objects by type.

    Args:
        said: what flow and scheduler said to each other.
        commands: of the feed.
        blind: leave out what a redacted log replaces, so that it is the same before and after.
    """
    what = [*decided(said), *commands]
    if blind:
        what = [BLIND[type(item)](item) if type(item) in BLIND else item for item in what]
    return blake2b(_encoder.encode([(type(item).__name__, item) for item in what]), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(shape := getattr(value, "shape", None), tuple) and hasattr(value, "dtype"):
        return ["|u1", shape]
    return Foreign(called(value))


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def _row(row: Row) -> Row:
    """Sizes and names of a row, without what it says."""
    p: Any = row.payload
    if isinstance(p, ArStep):
        p = replace(p, tokens=(len(p.tokens),), draw=NOTHING)
    elif isinstance(p, TalkStep):
        said = {"turns": (), "opening": (), "frames": (), "text": (len(p.text),), "draw": NOTHING, "predict": NOTHING}
        p = replace(p, **said)
    elif isinstance(p, AudioStep):
        p = replace(p, frames=(len(p.frames),))
    elif isinstance(p, FlowStep):
        p = replace(p, codes=(len(p.codes),), draw=NOTHING)
    elif isinstance(p, CallStep):
        p = replace(p, inputs={name: (len(items),) for name, items in p.inputs.items()}, params={})
    elif isinstance(p, DenoiseStep):
        p = replace(p, draw=NOTHING)
    return replace(row, payload=p)


def _batch(batch: RunBatch) -> RunBatch:
    return replace(batch, rows=[_row(row) for row in batch.rows], brought=tuple((ref, None) for ref, _ in batch.brought))


def _told(item: Any) -> Any:
    return replace(item, detail="")


BLIND: dict[type, Callable[[Any], Any]] = {
    RunBatch: _batch,
    Chunk: lambda chunk: replace(chunk, items=len(chunk.items)),
    End: _told,
    Fail: _told,
    Refuse: _told,
}
