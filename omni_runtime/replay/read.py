"""Reads a log: its head, and its feeds one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from omni_runtime.card import OpLimits
from omni_runtime.core import Core
from omni_runtime.errors import OmniError, ReplayError
from omni_runtime.program import Plan
from omni_runtime.replay.encode import Decoder
from omni_runtime.replay.log import FORMAT
from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.policy import policy_named
from omni_runtime.work import Submit

REMEDY = "`omni run --record FILE` or Runtime(record=FILE) writes one"


class Head(Struct):
    """What a core was before its first feed."""

    log: str
    format: int
    version: str
    policy: str
    tenants: dict[str, float]
    max_runs: int
    max_waiting: int
    limits: list[tuple[str, str, Any]]
    costs: dict[str, Any]
    gaps: int
    cards: dict[str, dict[str, Any]]
    redacted: bool = False
    watchdog: tuple[float, float] | None = None

    @property
    def hashes(self) -> dict[str, str]:
        """Of the cards, by name."""
        return {name: str(card.get("hash")) for name, card in self.cards.items()}


class Feed(Struct, frozen=True):
    """A feed as it was recorded."""

    number: int  # from 1 on
    line: int  # of the file
    now: float
    inputs: tuple[Any, ...]
    out: str | None = None  # digest of what was decided; None: the core never came back
    full: list[Any] | None = None  # what was decided, packed, where the log has it


class Log:
    """A log file.

    Args:
        path: of the file.

    Attributes:
        head: what the core was.
        torn: whether the last line was cut, once all have been read.

    Raises:
        ReplayError: there is no such file, or it is no log that this version reads.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.torn = False
        try:
            with open(self.path, "rb") as file:
                self.head = self._head(file.readline())
        except (FileNotFoundError, IsADirectoryError):
            raise ReplayError(f"{path}: there is no such file; {REMEDY}") from None
        plain = Decoder()
        cards = {name: plain.unpack(card.get("card")) for name, card in self.head.cards.items()}
        self.decoder = Decoder({(name, key): loop for name, card in cards.items() for key, loop in card.loops.items()})

    def _head(self, line: bytes) -> Head:
        try:
            found = msgspec.json.decode(line)
            if not isinstance(found, dict) or found.get("log") != "omni_runtime":
                raise ValueError("its first line is no head")
        except ValueError as error:
            raise ReplayError(f"{self.path}: no log of omni_runtime ({error}); {REMEDY}") from None
        if found.get("format") != FORMAT:
            other = f"format {found.get('format')!r}, written by omni_runtime {found.get('version')}"
            raise ReplayError(f"{self.path}: {other}; this version reads format {FORMAT}, so replay it with that one")
        try:
            return msgspec.convert(found, Head)
        except ValueError as error:
            raise ReplayError(f"{self.path}: its head is damaged: {error}") from None

    def core(self) -> Core:
        """A core as the recorded one was before its first feed. It remembers all of its story.

        Raises:
            ReplayError: the head is damaged.
        """
        head = self.head
        costs = Costs()
        try:
            costs.load(head.costs)
            costs.gaps = head.gaps
            limits = {(expert, op): self.decoder.unpack(packed) for expert, op, packed in head.limits}
            if not all(isinstance(limit, OpLimits) for limit in limits.values()):
                raise ValueError(f"limits are needed, not {head.limits!r:.80}")
            policy = policy_named(head.policy)
            core = Core(limits, head.max_runs, (), costs, policy, head.tenants, head.watchdog, remembered=None)
        except (OmniError, ValueError) as error:
            raise ReplayError(f"{self.path}: its head is damaged: {error}") from None
        core.scheduler.admission.most = head.max_waiting
        return core

    def feeds(self) -> Iterator[Feed]:
        """
        Raises:
            ReplayError: a line before the last is damaged; says which.
        """
        plans: dict[int, Plan] = {}
        number = 0
        with open(self.path, "rb") as file:
            file.readline()
            for at, line in enumerate(file, 2):
                found = self._line(at, line)
                if found is None:
                    return
                try:
                    if "plan" in found:
                        plans[found["plan"]] = self.decoder.unpack(found["is"])
                        continue
                    number += 1
                    inputs = self.decoder.unpack(found["in"])
                    inputs = tuple(replace(x, plan=plans[x.plan]) if type(x) is Submit else x for x in inputs)
                    feed = Feed(number, at, float(found["now"]), inputs, found.get("out"), found.get("full"))
                except (ReplayError, KeyError, TypeError, ValueError) as error:
                    raise ReplayError(f"{self.path}, line {at}: {error!s:.200}; it was changed after it was written") from None
                yield feed

    def _line(self, at: int, line: bytes) -> dict[str, Any] | None:
        """What a line holds; None for a last one that was cut."""
        for text in (line,) if line.endswith(b"\n") else (line, line + b"}"):  # a feed that never came back lacks its end
            try:
                found = msgspec.json.decode(text)
            except ValueError as error:
                wrong = str(error)
                continue
            if isinstance(found, dict):
                return found
            wrong = f"an object is needed, not {found!r:.40}"
        if line.endswith(b"\n"):
            raise ReplayError(f"{self.path}, line {at}: {wrong}; it was changed after it was written")
        self.torn = True
        return None
