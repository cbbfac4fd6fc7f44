"""What every loop did, out of a record: sums that can be done by hand."""

from __future__ import annotations

from typing import Any

import pytest

from omni_runtime.observe.loop_table import rows, table
from omni_runtime.observe.record import BatchFact, Record, RunFact, UnitFact

RUN = RunFact(1, "", "omni", 0.0, 1, ("text",), {"think": "ar_decode", "speak": "audio_decode", "see": "each"}, {})
OTHER = RunFact(2, "", "omni", 0.0, 1, ("text",), {"think": "ar_decode"}, {})


def unit(loop: str, ready: float, started: float, answered: float | None, *, run: RunFact = RUN, **more: Any) -> UnitFact:
    batch = BatchFact(
        1, "cpu", "e", "o", (), more.get("units", 1), 1, started, started, answered, 0.0, more.get("outcome", "done")
    )
    size, index = more.get("size", 1), more.get("index", 0)
    return UnitFact(run, loop, batch, 0, size, 0, 1, 9, 0, index, 0, ready, 0.0, ready, False, 0, 0, 0, "", (), ready)


def test_sums_and_rates() -> None:
    units = [
        unit("see", 0.0, 1.0, 3.0, units=4),
        unit("think", 3.0, 3.0, 4.0, size=30, index=-1),
        unit("think", 4.0, 4.5, 6.0, size=5),
        unit("think", 6.0, 6.0, 7.0, index=1, units=3),
        unit("think", 7.0, 7.25, 8.0, index=2),
        unit("think", 8.0, 8.0, None, index=3, outcome=""),
        unit("speak", 5.0, 6.0, 7.0, size=2),
        unit("speak", 7.0, 7.0, 9.0, size=8),
        unit("think", 0.0, 0.0, 1.0, run=OTHER),
    ]
    record = Record(units, [RUN, OTHER], 9.0)
    see, think, speak = rows(record, 1)
    assert (see.loop, see.units, see.batch, see.made, see.queue, see.run) == ("see", 1, 4.0, 1, 1.0, 2.0)
    assert (think.units, think.computed, think.made) == (4, 37, 3)
    assert think.rate == pytest.approx(2 / 2)  # three tokens: two steps from one to the next, in two seconds
    assert (think.queue, think.run) == (0.75, 4.25)
    assert (speak.made, speak.rate) == (10, pytest.approx(8 / 2))
    lines = table(record, 1)
    assert lines[0].split()[:5] == ["loop", "units", "batch", "computed", "made"]
    assert lines[2].split() == ["think", "4", "1.5", "37", "3", "1.0", "0.750", "4.250"]
    assert len(table(record, 7)) == 1
