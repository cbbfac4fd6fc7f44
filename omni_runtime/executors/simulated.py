"""An executor without a device: outputs are hashes of what a unit reads, durations come from a cost model.

It is strict where a real device is silent: a wrong block table, a gap in positions or a released tensor raises. Since every
output is a hash of all that it depends on, two runs give equal outputs exactly if they computed the same thing.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from omni_runtime.card import LoopSpec, ModelCard
from omni_runtime.draw import TokenLogprob
from omni_runtime.executors.mailbox import Mailbox
from omni_runtime.experts.base import verified
from omni_runtime.experts.slots import Slots
from omni_runtime.work import (
    Answer,
    ArStep,
    AudioStep,
    Broken,
    CallStep,
    DenoiseStep,
    Drop,
    ExecutorUp,
    FlowStep,
    Inset,
    Message,
    Release,
    Report,
    Row,
    RunBatch,
    StepResult,
    TalkStep,
    TensorRef,
)

MASK = (1 << 48) - 1
VOCABULARY = 97  # token ids of a simulated model
WORDS = ("la ", "lo", "é", "! ", "日", "ra, ", "mi. ", "☃ ", "so ", "ti")

Fake = Callable[[Row, Slots], StepResult]


def mix(*values: Any) -> int:
    """A hash that is the same in every process."""
    return hash(tuple(v if isinstance(v, int) else zlib.crc32(repr(v).encode()) for v in values)) & MASK


def prepared(seed: int) -> dict[str, list[Any]]:
    """What a call makes of messages with media, by port: sounds of three rows each, some of them in two stretches."""
    tokens = [mix(seed, "token", i) % VOCABULARY for i in range(mix(seed, "tokens") % 7 + 3)]
    sounds = [mix(seed, "sound", i) % 1000 for i in range(mix(seed, "sounds") % 3)]
    insets: list[list[Any]] = []
    at = 1
    for i, sound in enumerate(sounds):
        first = sound % 2
        if at + 3 - first <= len(tokens):
            insets.append([at, 3 - first, "sound", i, first])
            at += 3 - first + sound // 2 % 2
    shift = len(insets) / 2.0
    positions = np.arange(len(tokens)) * np.ones((3, 1)) * 1.5 if insets else None
    parts: list[Any] = [tokens[1:2], *range(len(insets)), tokens[2:4]]
    return {
        "tokens": tokens,
        "sounds": sounds,
        "insets": insets,
        "positions": [[None if positions is None else positions.astype(np.float32), shift]],
        "turns": [[parts, None, -shift]],
    }


class Cost(Struct, frozen=True):
    """Seconds of a batch: fixed + per_unit * units + per_size * size."""

    fixed: float = 0.001
    per_unit: float = 0.0
    per_size: float = 0.0

    def of(self, batch: RunBatch) -> float:
        return self.fixed + self.per_unit * len(batch.rows) + self.per_size * sum(row.size for row in batch.rows)


class Memory:
    """KV of a simulated loop: values lie at (block, offset) of a pool that is never cleared, so a wrong table shows."""

    def __init__(self, pool: dict[tuple[int, int], int], block: int) -> None:
        self.pool, self.block = pool, block
        self.table: list[int] = []
        self.length = 0
        self.state: Any = None  # of a loop that does not grow
        self.after: Any = None  # the same once the batch has succeeded

    def __getitem__(self, at: int) -> int:
        return self.pool[self.table[at // self.block], at % self.block]

    def __setitem__(self, at: int, value: int) -> None:
        self.pool[self.table[at // self.block], at % self.block] = value


class SimulatedExecutor:
    """Hosts the experts of cards.

    `run(message)` carries a message out at once, and when it counts as done is the caller's business: see `sim.py`. Behind a
    real engine it is an executor like any other.

    Args:
        name: of the executor.
        cards: whose experts are hosted.
        experts: qualified names, or None for all.
        blocks: size of the pool of every expert that keeps KV.
        costs: (expert, op) -> Cost.
        fakes: (expert, op) -> what to do instead of hashing.
        stops: one in so many tokens is the first stop token of its loop; 0: never.
        reuse: keep the KV of ended loops, for others to begin with.
        pace: behind a real engine, how many real seconds a simulated second takes.
    """

    def __init__(
        self,
        name: str,
        *cards: ModelCard,
        experts: tuple[str, ...] | None = None,
        blocks: int = 1 << 16,
        slots: int = 1,
        costs: Mapping[tuple[str, str], Cost] | None = None,
        fakes: Mapping[tuple[str, str], Fake] | None = None,
        stops: int = 13,
        pace: float = 0.0,
        reuse: bool = False,
    ) -> None:
        self.name = name
        self.specs: dict[tuple[str, str], LoopSpec] = {}
        self.block: dict[str, int] = {}
        self.marks = max(1, *(getattr(loop, "mark", None) or 0 for card in cards for loop in card.loops.values()))
        pools: dict[str, int] = {}
        for card in cards:
            for loop in card.loops.values():
                expert = f"{card.name}/{loop.expert}"
                if experts is None or expert in experts:
                    self.specs[expert, loop.op] = loop
                    self.block[expert] = card.experts[loop.expert].block
                    if card.experts[loop.expert].bytes_per_position or loop.state_blocks:
                        pools[expert] = blocks
        self.up = ExecutorUp(name, tuple(self.block), pools, slots, reuse)
        self.slots = Slots(name)
        self.pools: dict[str, dict[tuple[int, int], int]] = {expert: {} for expert in self.block}
        self.costs = dict(costs or {})
        self.fakes = dict(fakes or {})
        self.stops = stops
        self.touched: list[Memory] = []  # of the batch that runs: their state is replaced when all of it has succeeded
        self.calls: dict[str, int] = {}  # units run, by op
        self.pace = pace
        self._mailbox = Mailbox(name, self._paced)

    # -- Behind a real engine

    def start(self, report: Callable[[Report], None]) -> ExecutorUp:
        self._mailbox.start(report)
        return self.up

    def send(self, message: Message) -> None:
        self._mailbox.send(message)

    def close(self) -> None:
        self._mailbox.close()

    def _paced(self, message: Message) -> Answer | Broken | None:
        if self.pace and isinstance(message, RunBatch):
            time.sleep(self.pace * self.seconds(message))
        return self.run(message)

    # -- On a virtual clock

    def seconds(self, batch: RunBatch) -> float:
        return self.costs.get((batch.expert, batch.op), Cost()).of(batch)

    def run(self, message: Message) -> Answer | Broken | None:
        """Carries out one message; batches are answered."""
        if isinstance(message, Release):
            for ref in message.refs:
                self.slots.read(ref)  # released twice, or never made: KeyError
            self.slots.release(message.refs)
            return None
        if isinstance(message, Drop):
            for run, loop in message.slots:
                self.slots.drop(run, loop)
            return None
        try:
            with self.slots.batch(message.brought):
                return self._batch(message)
        except Exception as error:
            return Broken(self.name, message.batch, repr(error))

    def _batch(self, message: RunBatch) -> Answer:
        results = []
        self.touched = []
        spec = self.specs[message.expert, message.op]
        fake = self.fakes.get((message.expert, message.op))
        for row in message.rows:
            result = fake(row, self.slots) if fake else self._row(message.expert, spec, row)
            results += verified([result], [row])
            if result.tensors:
                result.copies = {port: tuple(self.slots.read(ref) for ref in refs) for port, refs in result.tensors.items()}
        for memory in self.touched:
            memory.state = memory.after
        self.calls[message.op] = self.calls.get(message.op, 0) + len(results)
        return Answer(self.name, message.batch, results, self.seconds(message))

    def _row(self, expert: str, spec: LoopSpec, row: Row) -> StepResult:
        memory = self.slots.state(row, lambda: Memory(self.pools[expert], self.block[expert]))
        self.touched.append(memory)
        assert row.first <= len(memory.table), f"a gap in the block table: {row.first} after {len(memory.table)}"
        memory.table[row.first : row.first + len(row.blocks)] = row.blocks
        if row.fork is not None:
            source = self.slots.other(row.fork.run, row.fork.loop)
            assert row.fork.length <= source.length, f"{row.fork} of {source.length} positions"
            for at in range(row.fork.length):
                memory[at] = source[at]
            memory.length = row.fork.length
        payload = row.payload
        if isinstance(payload, ArStep):
            return self._forward(spec, row, payload, memory)
        if isinstance(payload, TalkStep):
            return self._talk(spec, payload, memory)
        if isinstance(payload, AudioStep):
            return self._decode_audio(spec, payload, memory)
        if isinstance(payload, FlowStep):
            return self._velocity(payload, memory)
        if isinstance(payload, DenoiseStep):
            return self._denoise(row, payload, memory)
        return self._call(spec, row, payload)

    def _value(self, ref: TensorRef) -> int:
        return int(self.slots.read(ref)[0])

    def _keep(self, row: Row, port: str, index: int, value: int) -> TensorRef:
        return self.slots.keep(row, port, index, np.array([value], np.int64))

    def _forward(self, spec: LoopSpec, row: Row, p: ArStep, memory: Memory) -> StepResult:
        assert p.start <= memory.length, f"a gap: starts at {p.start}, {memory.length} positions are cached"
        given = [self._value(ref) for ref in p.conditioning or ()]
        if not memory.table:  # the expert keeps no pool here: blocks of its own
            memory.pool = {}
        last = memory[p.start - 1] if p.start else 11
        rows = self._rows(p.insets)
        hidden = []
        for at, token in enumerate(p.tokens, p.start):
            last = mix(last, rows.get(at, token), given[at - p.start] if at - p.start < len(given) else 7, *_place(p, at))
            memory[at] = last
            if p.hidden:
                hidden.append(self._keep(row, "hidden", at, last))
        memory.length = p.start + len(p.tokens)
        tensors = {"hidden": tuple(hidden)} if p.hidden else {}
        if p.inner and "states" in spec.ports:
            states = np.array([mix(memory[at], "state") for at in range(p.start, memory.length)], np.int64)
            tensors["states"] = (self.slots.keep(row, "states", p.start, states),)
        elif p.inner:
            tensors["inner"] = tuple(self._inner(row, p, inset, memory) for inset in p.insets)
        if p.index < 0:
            return StepResult(tensors=tensors)
        drawn = mix(last, p.draw.seed, p.draw.node, p.index)
        stop_tokens: tuple[int, ...] = getattr(spec, "stop_tokens", ())
        token, piece = drawn % VOCABULARY + 1000, WORDS[drawn % len(WORDS)].encode()
        if self.stops and stop_tokens and drawn % self.stops == 0 and (p.draw.edits is None or p.index >= p.draw.edits.least):
            token, piece = stop_tokens[0], b""
        told = None
        if p.draw.logprobs >= 0:
            told = TokenLogprob(token, -drawn / MASK, tuple((1000 + i, -float(i)) for i in range(p.draw.logprobs)))
        return StepResult(token, piece, {}, tensors, told)

    def _rows(self, insets: tuple[Inset, ...]) -> dict[int, int]:
        """What stands at each position in place of an id."""
        return {i.at + n: int(self.slots.read(i.vectors)[i.first + n]) for i in insets for n in range(i.count)}

    def _inner(self, row: Row, p: ArStep, inset: Inset, memory: Memory) -> TensorRef:
        low, high = max(inset.at, p.start), min(inset.at + inset.count, p.start + len(p.tokens))
        assert low < high, f"{inset} is not in {p.start}..{p.start + len(p.tokens)}"
        return self.slots.keep(row, "inner", low, np.array([mix(memory[at], "inner") for at in range(low, high)], np.int64))

    def _talk(self, spec: Any, p: TalkStep, memory: Memory) -> StepResult:
        assert p.start <= memory.length, f"a gap: starts at {p.start}, {memory.length} positions are cached"
        last = memory[p.start - 1] if p.start else 11
        rows = self._rows(p.inner)
        turns = [0] * max(0, min(p.start + p.size, p.before) - p.start) if "states" in spec.reads else p.turns
        assert len(p.frames) == len(p.text) and len(turns) + len(p.opening) + len(p.frames) == p.size
        ids = [*turns, *p.opening, *p.text]
        if "states" in spec.reads:
            needed = {at for at, token in enumerate(ids, p.start) if at < p.before or (token < 0 and at > p.before)}
            assert needed == rows.keys() & set(range(p.start, p.start + p.size)), f"states of {sorted(rows)}, not of {needed}"
        said = [rows.get(at, token) for at, token in enumerate(ids, p.start)]
        bare, opened = len(turns), len(turns) + len(p.opening)
        given: list[tuple[Any, ...]] = [(one,) for one in said[:bare]] + [(one, p.speaker) for one in said[bare:opened]]
        given += [(*frame, one) for frame, one in zip(p.frames, said[opened:], strict=True)]
        for at, values in enumerate(given, p.start):
            last = memory[at] = mix(last, *values, *_place(p, at))
        memory.length = p.start + p.size
        if p.index < 0:
            return StepResult()
        drawn = mix(last, p.draw.seed, p.draw.node, p.index, p.predict.temperature)
        if self.stops and drawn % self.stops == 0:
            return StepResult(items={"codes": []})
        return StepResult(items={"codes": [(drawn % 1000, *[drawn // 1000 % 4 // 3] * self.marks)]})

    def _velocity(self, p: FlowStep, memory: Memory) -> StepResult:
        """A chunk depends on its window, and call by call on what the chunk before left."""
        chunk, call, x, past, kept = memory.state if p.chunk or p.call else (0, 0, 0, (), ())
        assert (chunk, call) == (p.chunk, p.call), f"call {p.call} of chunk {p.chunk} after {call} of {chunk}"
        if not p.call:
            x = mix(p.draw.seed, p.draw.node, p.start, p.high)
        x = mix(x, p.time, p.width, *p.codes, p.guidance_scale, p.speaker, past[p.call] if p.chunk else 3)
        kept = (*kept, mix(x, "kept"))
        if len(kept) < p.calls:
            memory.after = (chunk, call + 1, x, past, kept)
            return StepResult()
        memory.after = (chunk + 1, 0, 0, kept, ())
        return StepResult(items={"mel": np.array([[mix(x, at)] for at in range(p.start, p.stop)], np.int64)})

    def _decode_window(self, spec: Any, p: AudioStep) -> StepResult:
        """Samples depend on `behind` frames before theirs and `ahead` after, and on nothing that is kept."""
        assert p.back == min(p.start, spec.behind) and len(p.frames) >= p.back + p.size, f"{p.back} frames before {p.start}"
        assert p.last or len(p.frames) == p.back + p.size + spec.ahead, "a frame without its look-ahead"
        seen = [int(frame[0]) for frame in p.frames]
        near = [tuple(seen[max(0, at - spec.behind) : at + spec.ahead + 1]) for at in range(p.back, p.back + p.size)]
        samples = [mix(*window, i) % 2001 / 1000 - 1 for window in near for i in range(spec.hop)]
        return StepResult(items={"samples": np.array(samples, np.float32)})

    def _decode_audio(self, spec: Any, p: AudioStep, memory: Memory) -> StepResult:
        if spec.behind is not None:
            return self._decode_window(spec, p)
        if spec.reach is not None:
            return self._decode_waves(spec, p, memory)
        state = (p.start, 5) if p.fresh else memory.state
        assert state[0] == p.start, f"chunks out of order: {p.start} after {state[0]}"
        fold, samples = state[1], []
        assert len(p.frames) >= p.size
        for at in range(p.size):
            frame = p.frames[at]
            over = p.last or (spec.mark is not None and any(f[spec.mark] for f in p.frames[at : at + spec.ahead + 1]))
            assert at + spec.ahead < len(p.frames) or over, "a frame without its look-ahead"
            ahead = []
            for f in p.frames[at : at + spec.ahead + 1]:
                ahead.append(mix(repr(f)))
                if spec.mark is not None and f[spec.mark]:
                    break
            fold = mix(fold, mix(repr(frame)))
            samples += [mix(fold, *ahead, i) % 2001 / 1000 - 1 for i in range(spec.hop)]
            if spec.mark is not None and frame[spec.mark]:  # a segment is decoded alone
                fold = 5
        memory.after = (p.start + p.size, fold)
        return StepResult(items={"samples": np.array(samples, np.float32)})

    def _decode_waves(self, spec: Any, p: AudioStep, memory: Memory) -> StepResult:
        """Samples depend on `reach` frames before theirs, and the last `lag` ones of a frame on the next one too."""
        at, seen = (p.start, ()) if p.fresh else memory.state
        assert at == p.start, f"chunks out of order: {p.start} after {at}"
        samples = []
        for frame in p.frames[: p.size]:
            value = mix(repr(frame))
            late = range(spec.hop - spec.lag, spec.hop) if seen else ()
            samples += [mix(*seen, value, i) for i in late]
            seen = (*seen, value)[-spec.reach - 1 :]
            samples += [mix(*seen, i) for i in range(spec.hop - spec.lag)]
        memory.after = (p.start + p.size, seen)
        return StepResult(items={"samples": np.array([x % 2001 / 1000 - 1 for x in samples], np.float32)})

    def _denoise(self, row: Row, p: DenoiseStep, memory: Memory) -> StepResult:
        if p.latent is not None:
            step, latent = p.step, int(p.latent[0])
        else:
            step, latent = memory.state if p.step else (0, mix(p.draw.seed, p.draw.node))
        assert step == p.step, f"step {p.step} after {step}"
        given = [self._value(ref) for slot in sorted(p.conditioning) for ref in p.conditioning[slot]]
        schedule = (p.step, p.steps, p.sigma, p.target, p.timestep, p.guidance_scale)
        latent = mix(latent, *schedule, *p.size, *given)
        memory.after = (p.step + 1, latent)
        tensors: dict[str, tuple[TensorRef, ...]] = {port: (self._keep(row, port, p.step, mix(latent, port)),) for port in p.keep}
        return StepResult(items={"latent": np.array([latent], np.int64)} if p.save else {}, tensors=tensors)

    def _call(self, spec: LoopSpec, row: Row, p: CallStep) -> StepResult:
        values = [item for name in sorted(p.inputs) for item in p.inputs[name]]
        values += [self._value(ref) for name in sorted(p.tensors) for ref in p.tensors[name]]
        seed = mix(p.index, *values, *(p.params[k] for k in sorted(p.params)))
        items: dict[str, Any] = {}
        tensors: dict[str, tuple[TensorRef, ...]] = {}
        if "insets" in spec.ports:
            return StepResult(items={port: items for port, items in prepared(seed).items() if port in spec.ports})
        for port, kind in spec.ports.items():
            value = mix(seed, port)
            if kind.type == "vectors":
                rows = np.array([mix(value, i) for i in range(3)], np.int64)
                tensors[port] = (self.slots.keep(row, port, p.index, rows),)
            elif kind.device:
                tensors[port] = (self._keep(row, port, p.index, value),)
            elif kind.type == "token":
                items[port] = [mix(value, i) % VOCABULARY for i in range(value % 7 + 1)]
            elif kind.type == "text":
                items[port] = [WORDS[mix(value, i) % len(WORDS)] for i in range(value % 5 + 1)]
            elif kind.type == "samples":
                items[port] = np.array([mix(value, i) % 2001 / 1000 - 1 for i in range(value % 9)], np.float32)
            elif kind.type == "frame":  # a segment: (value, mark), with as many columns as the loops that read it look at
                n = value % 5
                ends = [0.0] * self.marks, [1.0] * self.marks
                items[port] = [(mix(value, i) % 1000, *ends[i == n - 1]) for i in range(n)]
            else:
                items[port] = [value]
        return StepResult(items=items, tensors=tensors)


def _place(p: ArStep | TalkStep, at: int) -> tuple[float, ...]:
    """Where a position stands, if not where it is."""
    if p.positions is not None:
        return (float(p.positions[0, at - p.start]),)
    return (at + p.shift,) if p.shift else ()
