"""The talker of Qwen3-Omni as an expert: op `talk` feeds positions of many requests as one batch, and draws whole frames.

What a loop keeps is KV and first codes, by position. What stands at a position is made anew from ids, states and codes, so a row
that begins at 0 needs nothing that was here before.

Suffixes: T positions of the batch, N of a row, D width of the talker, W width of the thinker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omni_runtime.errors import CheckpointError, RequestError
from omni_runtime.experts import insets
from omni_runtime.experts.base import Op
from omni_runtime.experts.edits import History
from omni_runtime.experts.kv_cache import KVCache
from omni_runtime.experts.omni_options import read_options
from omni_runtime.experts.qwen3_predictor import CodePredictor
from omni_runtime.experts.qwen3_talker import Talker
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.talk_span import TalkSpan
from omni_runtime.weights.qwen3_omni import OmniFolder
from omni_runtime.work import Row, StepResult, TalkStep

OPENING = 9  # positions


@dataclass(frozen=True)
class _Held:
    """What is kept of one loop."""

    cache: KVCache
    history: History  # first codes of its frames


class Voice:
    """The expert.

    Args:
        talker: the model.
        embedding_VW: of the thinker's tokens, as stored: rows of it are read.
    """

    def __init__(self, talker: Talker, embedding_VW: torch.Tensor) -> None:
        self.talker = talker
        self._embedding_VW = embedding_VW
        self._marks: dict[str, torch.Tensor] = {}
        self.ops: Mapping[str, Op] = {"talk": self.talk}

    def _begin(self) -> _Held:
        return _Held(self.talker.model.cache(), History())

    def talk(self, rows: Sequence[Row], slots: Slots) -> list[StepResult]:
        """Port "codes": one frame where one was asked for, and none where the answer has ended.

        Raises:
            RequestError: a row that no request may ask for. No cache has changed then.
            AssertionError: a row starts beyond its cache, or two rows are of one loop.
            FloatingPointError: a row's logits are not numbers.
        """
        if not rows:
            return []
        steps = [_step(row) for row in rows]
        held = [slots.state(row, self._begin) for row in rows]
        vectors = self._vectors(steps, slots).split_with_sizes([step.size for step in steps])
        for mine, step in zip(held, steps, strict=True):
            first = max(0, step.start + step.size - len(step.frames) - step.before - OPENING)
            mine.history.write(first, [frame[0] for frame in step.frames])
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
        talked = self.talker.talk(spans)
        return [
            StepResult(items={"codes": [one.frame] if one.frame else []}) if step.index >= 0 else StepResult()
            for step, one in zip(steps, talked, strict=True)
        ]

    @torch.inference_mode()
    def _vectors(self, steps: Sequence[TalkStep], slots: Slots) -> torch.Tensor:
        """x_TD of all steps: each projection is one product for the batch."""
        ids = [token for step in steps for token in (*step.turns, *step.opening, *step.text)]
        if not 0 <= min(ids) <= max(ids) < len(self._embedding_VW):
            raise RequestError(f"turns, text: an id is not in the thinker's vocabulary of {len(self._embedding_VW)}")
        there = self.talker.model.device
        once = {token: at for at, token in enumerate(dict.fromkeys(ids))}  # the pad of those who have said all, mostly
        rows_NW = self._embedding_VW[torch.tensor(list(once))].to(there, torch.float32)
        x_TD = self.talker.text(rows_NW)[torch.tensor([once[token] for token in ids], device=there)]
        media: list[tuple[int, torch.Tensor]] = []
        framed: list[int] = []
        at = 0
        for step in steps:
            for inset in step.inner:
                low, high = max(inset.at, step.start), min(inset.at + inset.count, step.start + step.size)
                states_NW = slots.read(inset.vectors)[inset.first + low - inset.at : inset.first + high - inset.at]
                if states_NW.ndim != 2 or states_NW.shape[1] != self.talker.config.thinker_width:
                    raise RequestError(f"inner: states of shape {tuple(states_NW.shape)} are not those of this talker's thinker")
                media.append((at + low - step.start, states_NW))
            if step.opening:
                low = max(0, step.start - step.before)
                begins = at + len(step.turns)
                x_TD[begins : begins + len(step.opening)] += self._marks_of(step.speaker)[low : low + len(step.opening)]
            framed += range(at + step.size - len(step.frames), at + step.size)
            at += step.size
        if media:
            states_TD = self.talker.media(torch.cat([states_NW.to(there, torch.float32) for _, states_NW in media]))
            for (at, states_NW), part_ND in zip(
                media, states_TD.split_with_sizes([len(states) for _, states in media]), strict=True
            ):
                x_TD[at : at + len(states_NW)] = part_ND
        if framed:
            x_TD[framed] = self.talker.frames([frame for step in steps for frame in step.frames], x_TD[framed])
        return x_TD

    def _marks_of(self, speaker: str) -> torch.Tensor:
        if speaker not in self._marks:
            self._marks[speaker] = self.talker.marks(speaker)
        return self._marks[speaker]


def _step(row: Row) -> TalkStep:
    step = row.payload
    if not isinstance(step, TalkStep):
        raise RequestError(f"loop {row.loop!r}: op 'talk' needs a TalkStep, got {type(step).__name__}")
    if len(step.turns) + len(step.opening) + len(step.frames) != step.size or len(step.frames) != len(step.text):
        parts = f"{len(step.turns)} ids, {len(step.opening)} of the opening, {len(step.frames)} frames, {len(step.text)} of text"
        raise RequestError(f"loop {row.loop!r}: {parts} are not the {step.size} positions of the step")
    return step


def build(options: Mapping[str, Any], device: str) -> Voice:
    """Options: `checkpoint`, a folder; `linear`, see `linear.LAYOUTS`.

    Raises:
        CardError: an unknown option, or one of the wrong type.
        CheckpointError: the folder is not a whole Qwen3-Omni, or has no voice.
    """
    asked = read_options(options, "qwen3 voice")
    folder = OmniFolder(asked.folder)
    config = folder.config.talker
    if config is None:
        raise CheckpointError(
            f"{folder.folder}: enable_audio_output is false: this checkpoint has no voice, only text can be asked of it"
        )
    heads = [folder.tensor(f"talker.code_predictor.lm_head.{i}.weight") for i in range(config.groups - 1)]
    predictor = CodePredictor(config, folder.predictor(), heads, device, asked.linear)
    talker = Talker(config, folder.talker(), predictor, folder.named("talker."), device, asked.linear)
    return Voice(talker, folder.tensor("thinker.model.embed_tokens.weight"))
