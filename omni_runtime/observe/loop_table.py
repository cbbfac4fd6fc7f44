"""What every loop of a request did and how long it took, as a table of text."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from omni_runtime.observe.record import Record, UnitFact

HEAD = ("loop", "units", "batch", "computed", "made", "made/s", "queue s", "run s")
DRAWING = ("ar_decode", "talk")  # a unit of these makes one token or frame, or none while the prompt goes on


class LoopRow(Struct, frozen=True):
    """One loop of one request."""

    loop: str
    units: int
    batch: float  # units of the batches it was in, on average
    computed: int  # positions, frames, steps or calls
    made: int  # tokens or frames that were drawn; of other loops what was computed
    rate: float  # of what was made, from the first of it to the last
    queue: float  # seconds from when units were ready until they began, summed
    run: float  # seconds from then until they were answered, summed


def rows(record: Record, run: int) -> list[LoopRow]:
    """By loop, in the order in which they began. Units that are not back, or were discarded, do not count."""
    found: dict[str, list[UnitFact]] = {}
    for unit in record.units:
        if unit.run.id == run and unit.outcome == "done":
            found.setdefault(unit.loop, []).append(unit)
    return [_row(loop, units) for loop, units in found.items()]


def _row(loop: str, units: Sequence[UnitFact]) -> LoopRow:
    kind = units[0].run.kinds.get(loop, "")
    makers = [unit for unit in units if unit.index >= 0] if kind in DRAWING else list(units)
    sizes = [1 if kind in DRAWING else unit.size for unit in makers]
    ends = [unit.batch.answered or 0.0 for unit in makers]
    made, since = sum(sizes), units[0].ready
    if len(makers) > 1:  # what came before the first of it is a wait of its own
        made_in, since = made - sizes[0], ends[0]
    else:
        made_in = made
    lasted = max(ends, default=since) - since
    return LoopRow(
        loop,
        len(units),
        sum(unit.batch.units for unit in units) / len(units),
        sum(unit.size for unit in units),
        made,
        made_in / lasted if lasted > 0 else 0.0,
        sum(max(0.0, unit.batch.started - unit.ready) for unit in units),
        sum((unit.batch.answered or 0.0) - unit.batch.started for unit in units),
    )


def table(record: Record, run: int) -> list[str]:
    """Lines: a head, and one for each loop."""
    lines = [HEAD]
    for row in rows(record, run):
        counts = (str(row.units), f"{row.batch:.1f}", str(row.computed), str(row.made), f"{row.rate:.1f}")
        lines.append((row.loop, *counts, f"{row.queue:.3f}", f"{row.run:.3f}"))
    wide = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return ["  ".join([line[0].ljust(wide[0]), *(line[i].rjust(wide[i]) for i in range(1, len(HEAD)))]) for line in lines]
