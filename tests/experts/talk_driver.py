"""A talker that is fed states, at the level of its model: one sequence, one code after the other, as its makers describe it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch

from omni_runtime.card import Port, Slot, Talk
from omni_runtime.channel import Channel
from omni_runtime.draw import Draw
from omni_runtime.experts.edits import History
from omni_runtime.experts.qwen25_talker import Talker
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.talk_span import TalkSpan
from omni_runtime.work import Row, TensorRef


def opening(talker: Talker, bos_W: torch.Tensor, first_W: torch.Tensor) -> torch.Tensor:
    """[2, W]: the speaker's mark and the answer's first token, with the codec's marks."""
    return torch.stack([bos_W, first_W]) + talker.model.embed([talker.config.pad, talker.config.bos])


def history(talker: Talker, prompt: int, codes: Sequence[int]) -> History:
    """What penalties count. The prompt counts as codes too: a mask each, then the two marks of the opening."""
    c, found = talker.config, History()
    found.write(0, [c.mask] * prompt + [c.pad, c.bos, *codes])
    return found


@dataclass(frozen=True)
class Told:
    """What a talker hears: v of each position that the thinker was fed, of prompt and answer, and where they stand."""

    v_TW: torch.Tensor
    prompt: int
    position_3N: Any = None  # numpy, of the prompt
    next: int = 0  # position of the first token of the answer
    who: str = "Chelsie"


@torch.inference_mode()
def codes_alone(talker: Talker, embedding_VW: torch.Tensor, bos: int, told: Told, how: Draw, count: int) -> list[int]:
    """All codes, one pass of the model each."""
    c, prompt, said = talker.config, told.prompt, list(told.v_TW[told.prompt :])
    trailing = [*said[1:], embedding_VW[c.text_eos].float()]
    fed_TW = torch.cat([told.v_TW[:prompt], opening(talker, embedding_VW[bos].float(), said[0])])
    at = torch.arange(prompt).expand(3, -1) if told.position_3N is None else torch.from_numpy(told.position_3N)
    positions_3T = torch.cat([at.float(), told.next + torch.arange(2.0).expand(3, 2)], 1)
    cache, found = talker.model.cache(), list[int]()
    while len(found) < count:
        counted = history(talker, prompt, found)
        span = TalkSpan(cache, cache.length, talker.project(fed_TW), how, len(found), None, counted, positions_3T)
        (talked,) = talker.talk([span])
        if not talked.frame:
            break
        reply_W = trailing[len(found)] if len(found) < len(trailing) else embedding_VW[c.text_pad].float()
        fed_TW = talker.model.embed(talked.frame) + reply_W[None]
        positions_3T = torch.full((3, 1), float(told.next + 2 + len(found)))
        found += talked.frame
    return found


def spec(talker: Talker, speakers: Sequence[str] = ("Chelsie", "Ethan")) -> Talk:
    """The loop of a card."""
    reads = {"prompt": Slot(type="token"), "positions": Slot(type="positions"), "states": Slot(type="states", mode="stream")}
    c = talker.config
    told: dict[str, Any] = {"context": c.decoder.positions, "text_end": c.text_eos, "text_pad": c.text_pad}
    return Talk(expert="talker", reads=reads, ports={"codes": Port(type="frame")}, speakers=tuple(speakers), **told)


class Thinker:
    """Hands over states in parts of any size, as they come."""

    def __init__(self, run: int, told: Told, slots: Slots, most: int = 9) -> None:
        self._run, self._told, self._slots, self._most, self._done = run, told, slots, most, 0
        prompt, self.states, positions = Channel(), Channel(), Channel()
        prompt.push(0, [0] * told.prompt)
        shift = float(told.next - told.prompt)
        where = np.arange(told.prompt, dtype=np.float32)[None].repeat(3, 0) if told.position_3N is None else told.position_3N
        positions.push(0, [(where, shift)])
        self.channels = {"prompt": prompt, "positions": positions, "states": self.states}

    def feed(self, rng: Random) -> None:
        """One part more, or the end."""
        whole = len(self._told.v_TW)
        if self._done == whole:
            self.states.close("stop")
            return
        stop = min(self._done + rng.randint(1, self._most), whole)
        part_TW = self._told.v_TW[self._done : stop].clone()
        ref: TensorRef = self._slots.keep(Row(self._run, "think", 1, 0, (), None), "states", self._done, part_TW)  # type: ignore[arg-type]
        self.states.push(self.states.tail, [ref])
        self._done = stop
