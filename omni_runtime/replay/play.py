"""Feeds a log to a fresh core, and compares what it decides with what was decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from omni_runtime.card import ModelCard
from omni_runtime.core import Core
from omni_runtime.errors import ReplayError
from omni_runtime.replay.digest import decided, digest
from omni_runtime.replay.encode import Encoder
from omni_runtime.replay.log import card_hash
from omni_runtime.replay.read import Feed, Head, Log
from omni_runtime.work import Answer, Broken, Cancel, End, ExecutorDown, RunBatch, Submit

SHOWN = 8  # decisions of a feed that are shown
WIDE = 200  # characters of one


class Difference(Struct, frozen=True):
    """The first feed in which other decisions were taken."""

    feed: int
    line: int  # of the file
    now: float
    runs: tuple[int, ...]  # that the feed is about
    recorded: str  # digest of what was decided
    found: str  # digest of what is decided here; an error that was raised
    decisions: tuple[Any, ...]  # what is decided here: orders of the scheduler, then commands
    first: tuple[str, str] | None = None  # the first that differ, as recorded and as found; of full logs

    def tell(self, full: bool = False) -> list[str]:
        """Lines for a human."""
        about = f", about requests {', '.join(map(str, self.runs))}" if self.runs else ""
        lines = [
            f"this code decides differently from feed {self.feed} on (line {self.line}, at {self.now:.6f}{about})",
            f"  recorded {self.recorded}, here {self.found}",
        ]
        if self.first is not None:
            lines += [f"  recorded: {_cut(self.first[0], full)}", f"  here:     {_cut(self.first[1], full)}"]
        shown = self.decisions if full else self.decisions[:SHOWN]
        lines += [f"  here: {_cut(repr(item), full)}" for item in shown]
        if len(shown) < len(self.decisions):
            lines.append(f"  and {len(self.decisions) - len(shown)} more")
        return lines


class Replayed(Struct):
    """What came of a replay.

    `play("hang.jsonl").check()` is a test: it fails where decisions differ from the recorded ones, or books disagree, or somebody
    waits for nothing.
    """

    head: Head
    core: Core  # as it is after the last feed
    now: float = 0.0  # of the last feed
    start: float | None = None  # of the first
    feeds: int = 0
    asked: dict[int, None] = field(default_factory=dict)  # requests, in order
    units: int = 0  # that came back
    difference: Difference | None = None
    torn: bool = False  # the last line was cut
    broke: str = ""  # the last feed never came back when it was recorded; here it raised this, or "came back"
    flying: dict[int, tuple[str, float]] = field(default_factory=dict)  # batch -> executor, since when

    @property
    def runs(self) -> int:
        """How many requests came."""
        return len(self.asked)

    @property
    def alive(self) -> list[int]:
        """Requests that have not ended."""
        return [run.id for run in self.core.flow.runs.values() if not run.ended]

    def story(self, run: int) -> list[str]:
        """What led a request to where it is, oldest first.

        Raises:
            ReplayError: it is not in the log.
        """
        if run not in self.asked:
            many = f"{self.runs} came, {min(self.asked)} to {max(self.asked)}" if self.asked else "none came"
            raise ReplayError(f"story: request {run} is not among those of the log up to here; {many}")
        return self.core.story(run)

    def books(self) -> str:
        """What is wrong with the books, or with who waits for what; nothing where all is well."""
        try:
            self.core.check()
        except AssertionError as error:
            return str(error) or repr(error)
        return ""

    def check(self) -> None:
        """
        Raises:
            AssertionError: other decisions were taken, or `core.check()` finds something.
        """
        assert self.difference is None, "\n".join(self.difference.tell())
        self.core.check()


class _Ear:
    """An observer that keeps what flow and scheduler said in the last feed."""

    said: Sequence[Any] = ()

    def see(self, now: float, inputs: Sequence[Any], said: Sequence[Any], commands: Sequence[Any]) -> None:
        self.said = said


def play(path: str | Path, until: int | None = None, cards: Iterable[ModelCard] = ()) -> Replayed:
    """Replays a log, to its end, to the first difference, or to a feed.

    Args:
        path: of the log.
        until: the last feed.
        cards: must be those of the log.

    Raises:
        ReplayError: the file is no log, is damaged, or was made with other cards.
    """
    log = Log(path)
    for card in cards:
        known = log.head.hashes
        if known.get(card.name) != card_hash(card):
            what = f"hash {known[card.name]} there, {card_hash(card)} here" if card.name in known else f"it has {sorted(known)}"
            raise ReplayError(f"{path}: was not made with this card {card.name!r}: {what}; give the card as it was")
    ear = _Ear()
    core = log.core()
    core.observers.append(ear)
    played = Replayed(log.head, core)
    for feed in log.feeds():
        if until is not None and feed.number > until:
            break
        _take(played, feed)
        try:
            commands = core.feed(feed.now, *feed.inputs)
        except Exception as error:
            if feed.out is None:
                played.broke = f"raised {error!r}"
                break
            played.difference = _differs(feed, f"raised {error!r}", (), ())
            break
        if feed.out is None:
            played.broke = "came back"
        elif (found := digest(ear.said, commands, log.head.redacted)) != feed.out:
            played.difference = _differs(feed, found, decided(ear.said), commands)
            break
        for command in commands:
            if type(command) is RunBatch:
                played.flying[command.batch] = command.executor, feed.now
    played.torn = log.torn
    core.observers.remove(ear)
    return played


def _take(played: Replayed, feed: Feed) -> None:
    """Counts what a feed brings."""
    played.feeds, played.now = feed.number, feed.now
    if played.start is None:
        played.start = feed.now
    for item in feed.inputs:
        if type(item) is Submit:
            played.asked[item.run] = None
        elif type(item) is Answer:
            played.units += len(item.results)
        if type(item) is Answer or type(item) is Broken:
            played.flying.pop(item.batch, None)
        elif type(item) is ExecutorDown:
            played.flying = {b: flight for b, flight in played.flying.items() if flight[0] != item.executor}


def _differs(feed: Feed, found: str, said: Sequence[Any], commands: Sequence[Any]) -> Difference:
    decisions = (*said, *commands)
    runs = {item.run for item in (*feed.inputs, *commands) if isinstance(item, Submit | Cancel | End)}
    runs |= {row.run for item in commands if isinstance(item, RunBatch) for row in item.rows}
    first = None
    if feed.full is not None:
        there, here = ([*side, "nothing more"] for side in (feed.full, Encoder().pack(decisions)))
        first = next(((str(a), str(b)) for a, b in zip(there, here, strict=False) if a != b), None)
    return Difference(feed.number, feed.line, feed.now, tuple(sorted(runs)), str(feed.out), found, decisions, first)


def _cut(text: str, full: bool) -> str:
    return text if full or len(text) <= WIDE else f"{text[:WIDE]} ..."
