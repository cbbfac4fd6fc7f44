"""Inputs of a core with stand-ins for what is private, that lead to the same decisions. `designs/0019-replay.md` lists them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from msgspec.structs import replace

from omni_runtime.draw import TokenLogprob
from omni_runtime.program import Plan, Step
from omni_runtime.replay.encode import Foreign, called
from omni_runtime.replay.looks import Looks
from omni_runtime.replay.shape import Mask, shaped
from omni_runtime.request import ArParams
from omni_runtime.work import StepResult, Submit

HIGH = 1 << 30  # every stand-in of a token id has this bit, and no vocabulary is so large
BEGUN = b""
PLANS = ("inset", "positions", "turns")  # see designs/0022-messages.md


class _Run:
    """What must be remembered of a request, so that its next result can be replaced."""

    def __init__(self, plan: Plan) -> None:
        self.steps = {step.name: step for step in plan.steps}
        self.ports: dict[tuple[str, str], bytes] = {}  # (node, port) -> digest of the tokens that it gave
        self.loops: dict[str, bytes] = {}  # node -> digest of its prompt and answer
        self.drawn: dict[str, list[int]] = {}  # node -> stand-ins of its answer, where another loop reads them
        self.masks: dict[str, Mask] = {}  # node -> its text
        self.stops: dict[str, frozenset[int]] = {}  # step -> tokens that end it
        self.texts: dict[str, tuple[str, ...]] = {}  # step -> stop strings


class Redactor:
    """Replaces inputs. The key of its token ids is random, and forgotten with it."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._runs: dict[int, _Run] = {}

    def forget(self, run: int) -> None:
        """A request has ended."""
        self._runs.pop(run, None)

    def submit(self, item: Submit) -> Submit:
        run = self._runs[item.run] = _Run(item.plan)
        kinds: dict[str, set[str]] = {}
        for step in item.plan.steps:
            for slot, edge, _ in step.reads:
                if not edge.port.node:
                    kinds.setdefault(edge.port.port, set()).add(step.spec.reads[slot].type)
        inputs = {name: self._input(run, name, kinds.get(name, set()), value) for name, value in item.inputs.items()}
        params = {name: self._params(run, run.steps[name], given) for name, given in item.params.items()}
        return replace(item, inputs=inputs, params=params, label="")

    def _input(self, run: _Run, name: str, kinds: set[str], value: Any) -> Any:
        if "token" in kinds:
            found, run.ports["", name] = self._tokens(BEGUN, value, frozenset())
            return found
        return shaped(value) if "text" in kinds and isinstance(value, str) else hidden(value)

    def _params(self, run: _Run, step: Step, given: Any) -> Any:
        if isinstance(given, ArParams):
            run.stops[step.name] = frozenset((*given.stop_tokens, *step.spec.stop_tokens))
            run.texts[step.name] = given.stop
            return given.model_copy(update={"logit_bias": {}})
        if isinstance(given, Mapping):
            free = {name for name, value in given.items() if isinstance(value, str) and name not in step.spec.choices}
            return {name: hidden(value) if name in free else value for name, value in given.items()}
        return given

    def result(self, slot: tuple[int, str] | None, result: StepResult, ports: Looks) -> StepResult:
        """A result of (run, loop); None: of a batch that is not in flight, which nobody will read."""
        run = self._runs.get(slot[0]) if slot is not None else None
        if slot is None or run is None:
            items = {port: hidden(value) for port, value in result.items.items()}
            return StepResult(0 if result.token >= 0 else -1, b"", items, result.tensors, None, hidden(result.copies))
        node = slot[1]
        step = run.steps[node.partition("#")[0]]
        token, piece = result.token, result.piece
        if token >= 0:
            token = self._drawn(run, step, node, token)
        if piece:
            if node not in run.masks:
                run.masks[node] = Mask(run.texts.get(step.name, ()))
            piece = run.masks[node].feed(piece)
        items = {port: self._items(run, step, node, port, value, ports.get(port, ())) for port, value in result.items.items()}
        logprobs = TokenLogprob(0, 0.0) if result.logprobs is not None else None
        return StepResult(token, piece, items, result.tensors, logprobs, hidden(result.copies))

    def _items(self, run: _Run, step: Step, node: str, port: str, value: Any, columns: tuple[int, ...] | None) -> Any:
        kind = step.spec.ports[port].type if port in step.spec.ports else ""
        if kind == "token" and isinstance(value, Sequence | np.ndarray):
            if not all(isinstance(token, int | np.integer) for token in value):
                return np.zeros_like(value) if isinstance(value, np.ndarray) else hidden(value)
            found, run.ports[node, port] = self._tokens(run.ports.get((node, port), BEGUN), value, frozenset())
            return np.array(found, np.int64) if isinstance(value, np.ndarray) else found
        if kind == "text" and isinstance(value, list | tuple):
            return [shaped(item) if isinstance(item, str) else hidden(item) for item in value]
        if kind in PLANS:
            return _plan(kind, value)
        if columns and isinstance(value, list | tuple):
            return [_frame(item, columns) for item in value]
        return hidden(value)

    def _drawn(self, run: _Run, step: Step, node: str, token: int) -> int:
        state = run.loops.get(node)
        if state is None:
            state = self._prompt(run, step, node)
        (found,), run.loops[node] = self._tokens(state, (token,), run.stops.get(step.name, frozenset()))
        if "tokens" in step.wants:
            run.drawn.setdefault(node, []).append(found)
        return found

    def _prompt(self, run: _Run, step: Step, node: str) -> bytes:
        """The digest of what this loop's tokens begin with."""
        edge = next(edge for slot, edge, _ in step.reads if slot == "prompt")
        _, number, sample = node.partition("#")
        for source in (edge.port.node + number + sample, edge.port.node):
            if source in run.drawn:
                return blake2b(repr(run.drawn[source]).encode(), digest_size=16).digest()
            if (source, edge.port.port) in run.ports:
                return run.ports[source, edge.port.port]
        return BEGUN

    def _tokens(self, state: bytes, tokens: Iterable[int], stay: frozenset[int]) -> tuple[list[int], bytes]:
        """Stand-ins that are equal where the tokens and all before them are (but for a chance of 2**-30)."""
        found = []
        for token in tokens:
            state = blake2b(state + int(token).to_bytes(8, "little", signed=True), digest_size=16, key=self._key).digest()
            found.append(int(token) if token in stay else HIGH | int.from_bytes(state[:4], "little") & (HIGH - 1))
        return found, state


def _plan(kind: str, value: Any) -> Any:
    """Where media stand and how long they are stays; of turns, ids go."""
    if kind != "turns" or not isinstance(value, list | tuple):
        return value
    found = []
    for item in value:
        if isinstance(item, list | tuple) and item and isinstance(item[0], list | tuple):
            parts = [part if isinstance(part, int) else hidden(part) for part in item[0]]
            item = [parts, *item[1:]]
        found.append(item)
    return found


def _frame(item: Any, columns: tuple[int, ...]) -> Any:
    if isinstance(item, list | tuple):
        return tuple(value if at in columns else 0 for at, value in enumerate(item))
    return item if isinstance(item, np.ndarray) else hidden(item)


def error(text: str) -> str:
    """Of an error's text, the name of its type."""
    found = re.match(r"\w+", text)
    return found[0][:60] if found is not None else "error"


def hidden(value: Any) -> Any:
    """A value of the same kind and size."""
    if value is None or isinstance(value, np.ndarray | Foreign):
        return value
    if isinstance(value, str):
        return "x" * len(value)
    if isinstance(value, bytes):
        return bytes(len(value))
    if isinstance(value, bool | int | float | np.generic):
        return type(value)(0)
    if isinstance(value, Mapping):
        return {key: hidden(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        made = [hidden(item) for item in value]
        return made if isinstance(value, list) else tuple(made)
    return Foreign(called(value))
