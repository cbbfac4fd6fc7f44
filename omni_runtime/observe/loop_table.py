"""What every loop of a request did and how long it took, as a table of text."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from omni_runtime.observe.record import Record, UnitFact

HEAD = ("loop", "units", "of one batch", "steps", "queue s", "run s", "steps/s")


class LoopRow(Struct, frozen=True):
    """One loop of one request."""

    loop: str
    units: int
    batched: float  # units of the batches it was in, on average
    size: int  # tokens, frames, steps or calls that ran
    queue: float  # seconds from when units were ready until they began, summed
    run: float  # seconds from then until they were answered, summed
    rate: float  # size over the time from the first unit's readiness to the last answer


def rows(record: Record, run: int) -> list[LoopRow]:
    """By loop, in the order in which they began. Units that are not back, or were discarded, do not count."""
    found: dict[str, list[UnitFact]] = {}
    for unit in record.units:
        if unit.run.id == run and unit.outcome == "done":
            found.setdefault(unit.loop, []).append(unit)
    return [_row(loop, units) for loop, units in found.items()]


def _row(loop: str, units: Sequence[UnitFact]) -> LoopRow:
    answered = [unit.batch.answered or 0.0 for unit in units]
    size = sum(unit.size for unit in units)
    lasted = max(answered) - min(unit.ready for unit in units)
    return LoopRow(
        loop,
        len(units),
        sum(unit.batch.units for unit in units) / len(units),
        size,
        sum(max(0.0, unit.batch.started - unit.ready) for unit in units),
        sum(end - unit.batch.started for end, unit in zip(answered, units, strict=True)),
        size / lasted if lasted > 0 else 0.0,
    )


def table(record: Record, run: int) -> list[str]:
    """Lines: a head, and one for each loop."""
    lines = [HEAD]
    for row in rows(record, run):
        numbers = (str(row.units), f"{row.batched:.1f}", str(row.size), f"{row.queue:.3f}", f"{row.run:.3f}", f"{row.rate:.1f}")
        lines.append((row.loop, *numbers))
    wide = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    return ["  ".join([line[0].ljust(wide[0]), *(line[i].rjust(wide[i]) for i in range(1, len(HEAD)))]) for line in lines]
