"""A talker that is fed the thinker's states, as an expert (`talk_op` is what it shares with others).

With v of a position the state that was handed over, or the embedding of an id, what is fed is

    v of the prompt;  the speaker's mark + code(pad);  v of token 0 + code(bos);  v of token k + 1 + code(k), for k = 0, 1, ...

brought to the talker's width by one product for the batch. A mark is an embedding of the thinker. Penalties count by position: a
mask for each of the prompt, then pad and bos, then the codes.

Suffixes: T positions of the batch, W width of the thinker, D width of the talker, V vocabulary of the thinker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from omni_runtime.errors import RequestError
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.speakers import by_name
from omni_runtime.experts.staging import Staging
from omni_runtime.experts.talk_op import TalkOp, Talks, distinct
from omni_runtime.work import TalkStep


class Marks(Protocol):
    """Ids of the codec's vocabulary that are no sound."""

    @property
    def pad(self) -> int: ...
    @property
    def bos(self) -> int: ...
    @property
    def mask(self) -> int: ...


class Fed(Talks, Protocol):
    """A model."""

    @property
    def config(self) -> Marks: ...

    def project(self, v_TW: torch.Tensor) -> torch.Tensor: ...


class StateVoice(TalkOp):
    """The expert.

    Args:
        talker: the model.
        embedding_VW: of the thinker's tokens, as stored: rows of it are read.
        speakers: by name, the token of the thinker that marks them.
    """

    def __init__(self, talker: Fed, embedding_VW: torch.Tensor, speakers: Mapping[str, int]) -> None:
        super().__init__(talker, 2, (talker.model.config.vocab,), turns=False)
        self.talker = talker
        self._embedding_VW, self._speakers = embedding_VW, speakers

    @torch.inference_mode()
    def vectors(self, steps: Sequence[TalkStep], slots: Slots) -> torch.Tensor:
        ids: list[int] = []  # of all positions; -1: a state stands there
        states: list[torch.Tensor] = []
        coded: list[int] = []  # rows
        codes: list[int] = []
        width = self._embedding_VW.shape[1]
        for step in steps:
            before, opening, _ = self.kinds(step)
            own = [-1] * before + [*step.opening, *step.text]
            speaker = by_name(self._speakers, step.speaker)
            if opening and step.start <= step.before:
                if own[before] != -1:
                    raise RequestError(f"opening: {own[before]} where the speaker's mark stands, -1 needed")
                own[before] = speaker
            covered_N = np.zeros(step.size, np.int64)
            for at, part_NW in self.states(step, slots, width):
                covered_N[at : at + len(part_NW)] += 1
                states.append(part_NW)
            if (wrong_N := covered_N != (np.array(own) == -1)).any():
                at = int(wrong_N.argmax())
                told = "an id" if own[at] != -1 else "no id"
                raise RequestError(
                    f"inner: {covered_N[at]} states for position {step.start + at}, where {told} is told; one for each -1 needed"
                )
            coded += range(len(ids) + before, len(ids) + step.size)
            codes += self.counted(step)[1][before:]
            ids += own
        there = self.talker.model.device
        v_TW = torch.empty(len(ids), width, device=there)
        rows_NW, index_N = distinct([token for token in ids if token != -1], self._embedding_VW)
        known_T = np.array(ids, np.int64) != -1
        places = {"said": known_T.nonzero()[0], "stated": (~known_T).nonzero()[0], "coded": np.array(coded, np.int64)}
        sent = Staging(there).send({"rows": rows_NW, "index": index_N, **places})
        v_TW[sent["said"]] = sent["rows"][sent["index"]]
        if states:
            v_TW[sent["stated"]] = torch.cat([x.to(there, torch.float32) for x in states])
        if coded:
            v_TW[sent["coded"]] += self.talker.model.embed(codes)
        return self.talker.project(v_TW)

    def counted(self, step: TalkStep) -> tuple[int, list[int]]:
        c, (before, opening, _) = self.talker.config, self.kinds(step)
        first = max(0, step.start - step.before)
        marks = [c.pad, c.bos][first : first + opening]
        return step.start, [c.mask] * before + marks + [frame[0] for frame in step.frames]
