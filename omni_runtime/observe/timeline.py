"""The timeline of a run as one HTML file: nothing is fetched, and nothing in it is taken for markup."""

from __future__ import annotations

import json
from collections.abc import Hashable
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from omni_runtime.observe.record import Record
from omni_runtime.observe.recorder import Recorder

T = TypeVar("T", bound=Hashable)
ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}  # same JSON, no markup


def write(path: str | Path, what: Recorder | Record, title: str = "omni_runtime") -> None:
    """Writes the timeline of all that is remembered.

    Raises:
        OSError: the file cannot be written.
    """
    Path(path).write_text(html(what, title), encoding="utf-8")


def html(what: Recorder | Record, title: str = "omni_runtime") -> str:
    """The page that `write` writes."""
    shown = json.dumps(table(what.record() if isinstance(what, Recorder) else what, title), separators=(",", ":"))
    for char, code in ESCAPED.items():
        shown = shown.replace(char, code)
    here = files("omni_runtime.observe")
    page = here.joinpath("timeline.html").read_text(encoding="utf-8")
    for name in ("timeline.css", "timeline.js", "timeline_hands.js"):
        page = page.replace(f"/* {name} */", here.joinpath(name).read_text(encoding="utf-8"))
    return page.replace("/* data */", shown)  # last, so that nothing in it is taken for a mark


def table(record: Record, title: str = "") -> dict[str, Any]:
    """A record as columns of numbers, times in whole microseconds from its start; what repeats is named by its place."""
    start = record.start
    loops, executors, texts = _Names[str](), _Names[str](), _Names[str]()
    groups = _Names[tuple[str, str, str]]()
    batches: dict[int, int] = {}
    runs = {fact.id: at for at, fact in enumerate(record.runs)}

    def at(when: float | None) -> int | None:
        return None if when is None else round((when - start) * 1e6)

    rows: list[list[Any]] = []
    units: list[list[Any]] = []
    for u in record.units:
        b = u.batch
        if b.number not in batches:
            batches[b.number] = len(batches)
            group = groups((b.expert, b.op, ", ".join(map(str, b.key))))
            times = (at(b.dispatched), at(b.started), at(b.answered))
            rows.append([b.number, executors(b.executor), group, *times, b.units, b.size])
        size = [u.place, u.size, u.lo, u.hi]
        words = [texts(u.why), texts(u.outcome)]
        waits = [at(u.since), ("", "input", "reader").index(u.blocked)]
        who = [runs[u.run.id], loops(u.loop), batches[b.number]]
        units.append([*who, *size, texts(u.told), at(u.ready), at(u.memory), at(u.due), *words, *waits])
    return {
        "title": title,
        "now": at(record.now),
        "dropped": record.dropped,
        "runs": [
            {
                "id": r.id,
                "label": r.label,
                "program": r.program,
                "priority": ("high", "normal", "low")[r.priority],
                "arrival": at(r.arrival),
                "admitted": at(r.admitted),
                "ended": at(r.ended),
                "reason": r.reason,
                "detail": r.detail,
                "loops": [loops(name) for name in r.kinds],
                "first": {name: at(when) for name, when in r.first.items()},
            }
            for r in record.runs
        ],
        "loops": loops.known,
        "kinds": {loops(name): kind for r in record.runs for name, kind in r.kinds.items()},
        "executors": executors.known,
        "groups": groups.known,
        "texts": texts.known,
        "batches": rows,
        "units": units,
    }


class _Names(dict[T, int]):
    """Numbers things in the order they come."""

    def __call__(self, name: T) -> int:
        return self.setdefault(name, len(self))

    @property
    def known(self) -> list[T]:
        return list(self)
