"""`omni replay`: what a log tells."""

from __future__ import annotations

from pathlib import Path

from omni_runtime.errors import RequestError
from omni_runtime.replay.play import Replayed, play

SHOWN = 12  # requests or batches that are named


def replay(path: Path, story: int | None = None, until: int | None = None, full: bool = False) -> int:
    """Prints what a replay finds; returns the exit status: 1 where decisions differ or books disagree.

    Raises:
        ReplayError: the file cannot be replayed, or the request is not in it.
        RequestError: an option is out of range.
    """
    if until is not None and until < 1:
        raise RequestError(f"until: feeds are numbered from 1 on, not {until}")
    played = play(path, until)
    wrong = played.books() if played.difference is None else ""
    told = played.story(story) if story is not None else []
    print("\n".join([*summary(path, played), *told, *(["books: " + wrong] if wrong else [])]))
    if played.difference is not None:
        print("\n".join(played.difference.tell(full)))
    return int(bool(played.difference or wrong))


def summary(path: Path, played: Replayed) -> list[str]:
    """Lines about a replay, but for its first difference."""
    head = played.head
    seconds = played.now - (played.now if played.start is None else played.start)
    counts = f"{_many(played.feeds, 'feed')}, {_many(played.runs, 'request')}, {_many(played.units, 'unit')}"
    cards = ", ".join(f"{name} {key}" for name, key in head.hashes.items())
    lines = [
        f"{path}: {counts} in {seconds:.3f} s" + (", redacted" if head.redacted else ""),
        f"recorded by omni_runtime {head.version}, policy {head.policy}, cards {cards or 'none'}",
    ]
    if played.torn:
        lines.append("the last line was cut while it was written, and is left out")
    if played.broke:
        lines.append(f"feed {played.feeds} never came back when recorded: the core broke or hung in it; here it {played.broke}")
    if played.difference is None:
        lines.append(f"same decisions in {_many(played.feeds - bool(played.broke), 'feed')}")
    alive = played.alive
    if alive:
        lines.append(f"alive at the end: {_some([str(run) for run in alive])}; --story {alive[0]} tells why")
    flying = [f"batch {n} on {ex} for {played.now - since:.3f} s" for n, (ex, since) in played.flying.items()]
    if flying:
        lines.append(f"in flight at the end: {_some(flying)}")
    return lines


def _many(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
