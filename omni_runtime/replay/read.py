"""Reads a log: its head, and its feeds one by one."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from omni_runtime.card import ModelCard, OpLimits
from omni_runtime.core import Core
from omni_runtime.errors import OmniError, ReplayError
from omni_runtime.program import Plan
from omni_runtime.replay.encode import Decoder
from omni_runtime.replay.log import FORMAT
from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.policy import policy_named
from omni_runtime.work import Submit

REMEDY = "`omni run --record FILE` or Runtime(record=FILE) writes one"
CHANGED = "it was changed after it was written; replay the file as it was"
LONGEST = 1 << 26  # bytes of a head: cards and prices of some hundred experts are less than one million
UNREADABLE = (OmniError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, MemoryError, RecursionError)


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
        if not isinstance(path, str | Path):
            raise ReplayError(f"path: the path of a log is needed, not {path!r:.60}; {REMEDY}")
        self.path = Path(path)
        self.torn = False
        self.head = self._head(next(self._lines(), b""))
        plain = Decoder()
        try:
            cards = {name: plain.unpack(card.get("card")) for name, card in self.head.cards.items()}
            if odd := [name for name, card in cards.items() if not isinstance(card, ModelCard)]:
                raise ValueError(f"{odd[0]!r} is no card")
        except UNREADABLE as error:
            raise self._damaged(error) from None
        self.decoder = Decoder({(name, key): loop for name, card in cards.items() for key, loop in card.loops.items()})

    def _lines(self) -> Iterator[bytes]:
        """The lines of the file."""
        try:
            what = self.path.stat().st_mode
            if not stat.S_ISREG(what):  # a pipe or a device may have no end, and a log is read twice
                name = "a folder" if stat.S_ISDIR(what) else "no file but a device, pipe or socket"
                raise ReplayError(f"{self._name}: is {name}; name the file of a log: {REMEDY}")
            with open(self.path, "rb") as file:
                yield file.readline(LONGEST)
                yield from file
        except FileNotFoundError:
            raise ReplayError(f"{self._name}: there is no such file; {REMEDY}") from None
        except (OSError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ReplayError(f"{self._name}: cannot be read: {why}; name the file of a log: {REMEDY}") from None
        except ReplayError:
            raise
        except ValueError as error:  # no name of a file: a null character
            raise ReplayError(f"{self._name}: names no file: {error}; {REMEDY}") from None

    @property
    def _name(self) -> str:
        """The path, so that it can be printed."""
        return name if (name := str(self.path)).isprintable() and len(name) < 300 else f"{name!r:.300}"

    def _damaged(self, error: Exception) -> ReplayError:
        return ReplayError(f"{self.path}: its head is damaged: {error!s:.300}; {CHANGED}")

    def _head(self, line: bytes) -> Head:
        try:
            found = msgspec.json.decode(line)
            if not isinstance(found, dict) or found.get("log") != "omni_runtime":
                raise ValueError("its first line is no head")
        except (ValueError, RecursionError) as error:
            if line.startswith(b'{"log":"omni_runtime"') and not line.endswith(b"\n"):
                raise ReplayError(f"{self.path}: was cut in its first line, before anything happened; {REMEDY}") from None
            raise ReplayError(f"{self.path}: no log of omni_runtime ({error}); {REMEDY}") from None
        if found.get("format") != FORMAT:
            other = f"format {found.get('format')!r}, written by omni_runtime {found.get('version')}"
            raise ReplayError(f"{self.path}: {other}; this version reads format {FORMAT}, so replay it with that one")
        try:
            return msgspec.convert(found, Head)
        except (ValueError, RecursionError) as error:
            raise self._damaged(error) from None

    def core(self) -> Core:
        """A core as the recorded one was before its first feed. It remembers all of its story.

        Raises:
            ReplayError: the head is damaged.
        """
        head = self.head
        costs = Costs()
        theirs = head.costs.get("version", ours := costs.save()["version"])
        if theirs != ours:
            other = f"prices of version {theirs!r:.40}, written by omni_runtime {head.version}"
            raise ReplayError(f"{self.path}: {other}; this version reads version {ours}, so replay it with that one")
        try:
            costs.load(head.costs)
            costs.gaps = head.gaps
            limits = {(expert, op): self.decoder.unpack(packed) for expert, op, packed in head.limits}
            if not all(isinstance(limit, OpLimits) for limit in limits.values()):
                raise ValueError(f"limits are needed, not {head.limits!r:.80}")
            policy = policy_named(head.policy)
            core = Core(limits, head.max_runs, (), costs, policy, head.tenants, head.watchdog, remembered=None)
        except UNREADABLE as error:
            raise self._damaged(error) from None
        core.scheduler.admission.most = head.max_waiting
        return core

    def feeds(self) -> Iterator[Feed]:
        """
        Raises:
            ReplayError: a line before the last is damaged; says which.
        """
        plans: dict[int, Plan] = {}
        number = 0
        for at, line in enumerate(self._lines(), 1):
            if at == 1:
                continue
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
                if not isinstance(feed.full, list | None):
                    raise TypeError(f"full: a list is needed, not {feed.full!r:.40}")
            except UNREADABLE as error:
                why = f"{error.args[0]!r} is missing" if type(error) is KeyError else str(error)
                raise ReplayError(f"{self.path}, line {at}: {why:.200}; {CHANGED}") from None
            yield feed

    def _line(self, at: int, line: bytes) -> dict[str, Any] | None:
        """What a line holds; None for a last one that was cut."""
        last = not line.endswith(b"\n")
        for text in (line, line + b"}") if last else (line,):  # a feed that never came back lacks its end
            try:
                found = msgspec.json.decode(text)
            except (ValueError, RecursionError) as error:
                wrong = str(error)
                continue
            if isinstance(found, dict) and (text is line or found.keys() & {"in", "is"}):  # `{"now":29` is not even half of one
                return found
            wrong = f"an object is needed, not {found!r:.40}"
        if not last:
            raise ReplayError(f"{self.path}, line {at}: {wrong}; {CHANGED}")
        self.torn = True
        return None
