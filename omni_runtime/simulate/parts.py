"""What the loops of a program give when nothing computes them: as many items as was learned, of the right kinds and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from omni_runtime.messages import heft
from omni_runtime.program import Plan
from omni_runtime.scheduler.cost import Costs
from omni_runtime.simulate.prose import Prose
from omni_runtime.work import ArStep, AudioStep, CallStep, DenoiseStep, FlowStep, Row, StepResult, TalkStep, TensorRef

TOKEN = 5  # ends no answer of a card here, so an answer is as long as the workload says
FIRST = 1000  # id of a prompt's first token
USUAL = {"token": 0.25, "text": 1.0, "frame": 5.0, "samples": 1.0}  # items of a call by character, where nothing was learned
NO_MEDIA: dict[str, tuple[Any, ...]] = {"sound": (), "picture": (), "inset": (), "turns": (), "positions": ((None, 0.0),)}
# A talker ends with a frame whose number is a multiple of so many seconds, once its text has ended: 32 frames of Qwen3-Omni.
AFTER, FRAMES = 2.56, 12.5  # seconds; frames a second where no sound is made of them
ZERO = np.zeros(1, np.float32)
NOTHING = StepResult()


class Script(Struct):
    """What a simulated request will say."""

    parts: dict[str, Part]
    number: int  # of the request
    variant: int  # of what it says
    prompt_tokens: int = 0  # that a tokenizer makes of its text; 0: as was learned
    shared_tokens: int = 0  # of them, those that other prompts begin with too


class Part:
    """One loop of a program."""

    __slots__ = ("after", "cache", "last", "learned", "plain", "said", "spec")

    def __init__(self, spec: Any, learned: Mapping[str, float], prose: Prose | None, marks: int, frames: float) -> None:
        self.spec = spec
        self.after = max(1, round(AFTER * frames))  # `frames`: of a talker, a second
        self.learned = learned  # items for a unit of work, by port
        said_by = prose.said if prose is not None else []
        pieces = {piece: StepResult(TOKEN, piece.encode()) for piece in {p for said in said_by for p in said}}
        self.said = [[pieces[piece] for piece in said] for said in said_by]
        self.cache: dict[Any, StepResult] = {}  # results are only read, so equal ones are one
        self.plain = (0.0,) * (marks + 1)  # a frame
        self.last = (1.0,) * (marks + 1)  # one that ends a segment, whatever column its reader looks at

    def give(self, script: Script, row: Row, home: str) -> StepResult:
        """What a unit of it gives."""
        payload = row.payload
        if type(payload) is ArStep:
            kept = self._kept(row, payload, home) if payload.hidden or payload.inner else {}
            if payload.index < 0:
                return StepResult(tensors=kept) if kept else NOTHING
            said = self.said[script.variant]
            one = said[payload.index % len(said)]
            return StepResult(TOKEN, one.piece, {}, kept) if kept else one
        if type(payload) is TalkStep:
            if payload.index < 0:
                return NOTHING
            over = payload.text[-1:] == (self.spec.text_pad,) and payload.index % self.after == self.after - 1
            return StepResult(items={"codes": [] if over else [(0,) * len(self.plain)]})
        if type(payload) is FlowStep:
            if payload.call < payload.calls - 1:
                return NOTHING
            return StepResult(items={"mel": np.broadcast_to(ZERO, (payload.stop - payload.start, 1))})
        if type(payload) is AudioStep:
            found = self.cache.get((payload.size, payload.fresh))
            if found is None:
                samples = payload.size * self.spec.hop - (self.spec.lag if payload.fresh else 0)
                silence = np.broadcast_to(ZERO, (samples,))  # a view: minutes of sound are 4 bytes
                found = self.cache[payload.size, payload.fresh] = StepResult(items={"samples": silence})
            return found
        if type(payload) is DenoiseStep:
            if not payload.keep:
                return NOTHING
            kept = {}
            for port in payload.keep:
                kept[port] = (TensorRef(home, row.run, row.loop, port, payload.step, payload.size),)
            return StepResult(items={"latent": [0.0]} if payload.save else {}, tensors=kept)
        assert type(payload) is CallStep
        return self._call(script, row, payload, home)

    def _kept(self, row: Row, payload: ArStep, home: str) -> dict[str, tuple[TensorRef, ...]]:
        """Tensors of a decoding that somebody reads."""
        at, count = payload.start, len(payload.tokens)
        found: dict[str, tuple[TensorRef, ...]] = {}
        if payload.hidden:
            found["hidden"] = tuple([TensorRef(home, row.run, row.loop, "hidden", at + i) for i in range(count)])
        if payload.inner and "states" in self.spec.ports:
            found["states"] = (TensorRef(home, row.run, row.loop, "states", at, (count, 1)),)
        return found

    def _call(self, script: Script, row: Row, payload: CallStep, home: str) -> StepResult:
        heavy = weight(payload)
        items: dict[str, Any] = {}
        tensors: dict[str, tuple[TensorRef, ...]] = {}
        for port, kind in self.spec.ports.items():
            if kind.device:
                tensors[port] = (TensorRef(home, row.run, row.loop, port, payload.index),)
                continue
            usual = USUAL.get(kind.type)
            count = max(1, round(heavy * self.learned.get(port, usual))) if usual is not None else 1
            if kind.type == "token":
                items[port] = prompt(script.number, script.prompt_tokens or count, script.shared_tokens)
            elif kind.type == "text":
                items[port] = ["a" * count]
            elif kind.type == "samples":
                items[port] = np.broadcast_to(ZERO, (count,))
            elif kind.type == "frame":
                items[port] = [self.plain] * (count - 1) + [self.last]
            elif kind.type in NO_MEDIA:
                items[port] = list(NO_MEDIA[kind.type])
            else:
                items[port] = [0.0]
        return StepResult(items=items, tensors=tensors)


def prompt(number: int, count: int, shared: int) -> list[int]:
    """Token ids of a prompt: of two, only the `shared` first are alike."""
    shared = min(shared, count)
    return [TOKEN] * shared + [FIRST + 7 * number + i for i in range(count - shared)]


def weight(payload: CallStep) -> float:
    """What a call works through, counted as `loops/items.py` does."""
    found = 0.0
    for items in payload.inputs.values():
        for item in items:
            if isinstance(item, str):
                found += len(item)
            elif isinstance(item, list | tuple):
                found += sum(heft(turn.get("content", "")) if isinstance(turn, Mapping) else 1 for turn in item)
            else:
                found += 1
    for refs in payload.tensors.values():
        found += sum(prod(ref.shape) for ref in refs)
    return max(1.0, found)


CUT = 0.8  # of the limit: a clause that was cut at its last blank before it has more than this


def clauses_of(plan: Plan, costs: Costs) -> tuple[list[float], list[float]]:
    """Characters of the clauses that a program was seen to speak, and of those that its answers began with.

    A first clause of about the length at which it is cut anyway was cut: its text went on, and the loop had to see that it did.
    """
    for step in plan.steps:
        pace = costs.paces.get((plan.program, step.name))
        if step.spec.kind == "each" and step.spec.segment == "clauses" and pace is not None and pace.weights:
            limit = step.spec.first
            if limit is None:
                return pace.weights, pace.firsts
            return pace.weights, [2.0 * limit if first > CUT * limit else first for first in pace.firsts]
    return [], []


def parts(plan: Plan, costs: Costs, seed: int) -> dict[str, Part]:
    """The loops of a program. What was learned under another program of the same name and node serves as well."""
    clauses, firsts = clauses_of(plan, costs)
    marks = max([step.spec.mark or 0 for step in plan.steps if step.spec.kind == "audio_decode"], default=0)
    rates = [step.spec.sample_rate / step.spec.hop for step in plan.steps if step.spec.kind == "audio_decode"]
    repeats = max((step.spec.repeats for step in plan.steps if step.spec.kind == "flow_decode"), default=1)
    frames = min(rates, default=FRAMES) / repeats
    found = {}
    for number, step in enumerate(plan.steps):
        pace = costs.paces.get((plan.program, step.name))
        learned = pace.items if pace is not None and pace.runs else {}
        # characters of a unit, and every unit but a cut prefill is a token
        per_token = learned.get("text", 0.0) * pace.work if pace is not None else 0.0
        prose = Prose(clauses, firsts, per_token, seed + number) if step.spec.kind == "ar_decode" else None
        found[step.name] = Part(step.spec, learned, prose, marks, frames)
    return found
