"""Tokens drawn where their logits are: parameters go there with the rest of a batch, ids come back. `sampling.py` says what is
drawn; this draws the same.

Suffixes: R rows that draw, V vocabulary, P predicted codes of a frame.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from omni_runtime.draw import Draw
from omni_runtime.errors import RequestError
from omni_runtime.experts.edits import History
from omni_runtime.experts.staging import Reading
from omni_runtime.experts.talk_span import Talked, TalkSpan
from omni_runtime.kernels import Changes, Draws, draw_tokens
from omni_runtime.kernels.sample import collect

Arrays = dict[str, np.ndarray[Any, Any]]


def arrays(hows: Sequence[Draw], indices: Sequence[int], histories: Sequence[History | None]) -> Arrays:
    """What a device needs to know to draw for these rows. Histories hold the tokens of the rows' own steps already."""
    known: list[list[int]] = []
    for how, history in zip(hows, histories, strict=True):
        assert how.edits is None or history is not None, "penalties count tokens: give them"
        known.append([] if how.edits is None or history is None else history.ids().tolist())
    draws, changes = collect(hows, indices, known)
    found = {f"draws.{name}": value.numpy() for name, value in draws._asdict().items()}
    if changes is not None:
        found |= {f"changes.{name}": value.numpy() for name, value in changes._asdict().items()}
    return found


def of_spans(spans: Sequence[TalkSpan]) -> Arrays:
    """The same for the first codes of the spans that draw one."""
    drawing = [span for span in spans if span.frame >= 0]
    return arrays([span.talk for span in drawing], [span.frame for span in drawing], [span.history for span in drawing])


def draw_there(logits_RV: torch.Tensor, sent: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """token_R, int64, -1 where nothing can be drawn, and the largest logit of each row, which tells why.

    Args:
        logits_RV: of the model.
        sent: `arrays` of these rows, on their device; other names are left alone.
    """
    draws = Draws(*(sent[f"draws.{name}"] for name in Draws._fields))
    changed = "changes.start_R" in sent
    changes = Changes(*(sent[f"changes.{name}"] for name in Changes._fields)) if changed else None
    if not len(logits_RV):
        return torch.empty(0, dtype=torch.int64, device=logits_RV.device), logits_RV.new_empty(0)
    return draw_tokens(logits_RV, draws, changes)[0], logits_RV.amax(1)  # the largest beside a NaN is NaN


class Codes(NamedTuple):
    """What spans of a talker drew, on its way. One whose first code is of `ends` has ended, and what was predicted is nothing."""

    spans: Sequence[TalkSpan]
    ends: Collection[int]
    reading: Reading  # code_R, peak_R, and of the others of each frame: code_RP, peak_RP

    def collect(self) -> list[Talked]:
        """See `talk_span.Talking`."""
        rows = zip(*(read.tolist() for read in self.reading.get()), strict=True)
        found = []
        for span in self.spans:
            if span.frame < 0:
                found.append(Talked(-1, ()))
                continue
            token, peak, rest, peaks = next(rows)
            code = drawn(token, peak, span.frame)
            if code in self.ends:
                found.append(Talked(code, ()))
                continue
            found.append(Talked(code, (code, *(drawn(*one, span.frame) for one in zip(rest, peaks, strict=True)))))
        return found


def drawn(token: int, peak: float, index: int) -> int:
    """A token that was read.

    Raises:
        FloatingPointError: the largest logit is NaN or infinite: the weights or an input are broken.
        RequestError: the request leaves no token that could be drawn.
    """
    if token >= 0:
        return token
    if not np.isfinite(peak):
        raise FloatingPointError(f"logits: the largest is {peak}, nothing can be drawn")
    raise RequestError(f"min_tokens: every token that the model could draw as number {index + 1} is a stop token")
