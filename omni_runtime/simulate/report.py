"""What a simulation came to as one HTML file: tables and charts, nothing is fetched and no script runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from omni_runtime.simulate.charts import cdf, lines
from omni_runtime.simulate.measures import Measures
from omni_runtime.simulate.outcome import Outcome

STRETCHES = 160  # points of a chart over time
STYLE = """body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.3rem} h2{font-size:1rem;margin-top:1.6rem}
table{border-collapse:collapse} td,th{padding:.15rem .9rem .15rem 0;text-align:left}
td+td,th+th{text-align:right;font-variant-numeric:tabular-nums} th{font-weight:600;border-bottom:1px solid #ccc}
svg{margin:.2rem .4rem .2rem 0;border:1px solid #eee} p{max-width:48rem} .note{color:#666}"""


def write(
    path: str | Path,
    title: str,
    facts: Mapping[str, object],
    measures: Measures,
    outcomes: Sequence[Outcome],
    busy: Mapping[str, Mapping[int, float]] | None = None,
    width: float = 1.0,
    devices: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> None:
    """
    Args:
        path: of the file.
        title: of the page.
        facts: what was simulated: name and value of every setting.
        measures: the numbers.
        outcomes: the requests.
        busy: device-seconds by expert and stretch of `width` seconds.
        width: seconds.
        devices: how many host each expert.
        notes: sentences that a reader must know.

    Raises:
        OSError: it cannot be written.
    """
    charts = [*latencies(outcomes), *over_time(outcomes), utilisation(busy or {}, width, devices or {}), silences(outcomes)]
    page = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>',
        f"<h1>{escape(title)}</h1>",
        *(f'<p class="note">{escape(note)}</p>' for note in notes),
        "<h2>What was simulated</h2>",
        _table(("", ""), [(name, str(value)) for name, value in facts.items()]),
        "<h2>What came of it</h2>",
        _table(("", ""), rows(measures)),
        "<h2>Latency</h2>",
        _table(("seconds", "p50", "p90", "p99"), latency_rows(measures)),
        "<h2>Utilisation</h2>",
        _table(("expert", "share of the device-seconds"), [(e, f"{u:.1%}") for e, u in measures.utilisation.items()]),
        "<h2>Charts</h2>",
        *charts,
        "<p class='note'>A request counts as good if it completed, was silent for at most 50 ms in all between pieces of "
        "sound, and kept the times that were set for it. Sound plays from its first delivery on.</p></html>",
    ]
    Path(path).write_text("\n".join(page), encoding="utf-8")


def rows(m: Measures) -> list[tuple[str, str]]:
    """The numbers of a table, with their units."""
    found = [
        ("requests", f"{m.requests}"),
        ("completed", f"{m.completed}"),
        ("simulated time", f"{m.span:.1f} s"),
        ("throughput", f"{m.throughput:.3f} requests/s, {m.units_per_s:.1f} units/s"),
        ("goodput", f"{m.goodput:.3f} requests/s, {m.good_share:.1%} of all"),
    ]
    if m.refused or m.failed:
        found.insert(2, ("refused, failed", f"{m.refused}, {m.failed}"))
    if m.sound:
        found.append(("sound", f"{m.sound:.1f} s, {m.sound / m.span:.2f} s a second"))
        found.append(("silence", f"{m.silence:.2%} of the sound; {m.interrupted:.1%} of the requests were interrupted"))
    found += [(f"goodput of {name or 'no tenant'}", f"{value:.3f} requests/s") for name, value in m.tenants.items()]
    return found


def latency_rows(m: Measures) -> list[tuple[str, ...]]:
    """Percentiles of what there is, in seconds."""
    shown = (("first token", m.first_token), ("first sound", m.first_sound), ("all of it", m.total))
    return [(name, *(f"{value:.3f}" for value in found.values())) for name, found in shown if found]


def latencies(outcomes: Sequence[Outcome]) -> list[str]:
    """Distribution of the three latencies."""
    named = {
        "first token": [o.first_token - o.arrival for o in outcomes if o.first_token is not None],
        "first sound": [o.first_sound - o.arrival for o in outcomes if o.first_sound is not None],
        "all of it": [o.ended - o.arrival for o in outcomes if o.ended is not None and o.reason == "done"],
    }
    series = {name: cdf(values) for name, values in named.items() if values}
    return [lines("Latency", "seconds, logarithmic", "share of requests", series, log=True, top=1.0)]


def over_time(outcomes: Sequence[Outcome]) -> list[str]:
    """How many requests were there, and how many of them had given nothing yet."""
    alive: list[tuple[float, int]] = []
    waiting: list[tuple[float, int]] = []
    for o in outcomes:
        end = o.ended if o.ended is not None else o.arrival
        alive += [(o.arrival, 1), (end, -1)]
        waiting += [(o.arrival, 1), (o.first if o.first is not None else end, -1)]
    series = {"alive": _level(alive), "without any output yet": _level(waiting)}
    return [lines("Requests", "seconds", "requests", series, step=True)]


def _level(changes: list[tuple[float, int]]) -> list[tuple[float, float]]:
    """Mean level over each of STRETCHES stretches."""
    changes = sorted(changes)
    if not changes:
        return []
    begin, end = changes[0][0], changes[-1][0]
    width = max((end - begin) / STRETCHES, 1e-9)
    found, level, now, at = [], 0, begin, 0
    for i in range(STRETCHES):
        until, area = begin + (i + 1) * width, 0.0
        while at < len(changes) and changes[at][0] <= until:
            when, step = changes[at]
            area += level * (when - now)
            level, now, at = level + step, when, at + 1
        area += level * (until - now)
        now = until
        found.append((begin + i * width - changes[0][0], area / width))
    return found


def utilisation(busy: Mapping[str, Mapping[int, float]], width: float, devices: Mapping[str, int]) -> str:
    """How busy each expert kept its devices, over time."""
    series = {}
    last = max((max(cells) for cells in busy.values() if cells), default=0)
    group = max(1, -(-(last + 1) // STRETCHES))
    for expert, cells in sorted(busy.items()):
        share = width * group * devices.get(expert, 1)
        points = []
        for start in range(0, last + 1, group):
            points.append((start * width, sum(cells.get(i, 0.0) for i in range(start, start + group)) / share))
        series[expert] = points
    return lines("Utilisation by expert", "seconds", "share of the device-seconds", series, step=True, top=1.0)


def silences(outcomes: Sequence[Outcome]) -> str:
    """Interruptions over time, and the share of requests by their silence."""
    moments = sorted(moment for o in outcomes for moment in o.underruns)
    begin = min((o.arrival for o in outcomes), default=0.0)
    end = max((o.ended or o.arrival for o in outcomes), default=1.0)
    width = max((end - begin) / STRETCHES, 1e-9)
    counts = [0] * (STRETCHES + 1)
    for moment in moments:
        counts[min(STRETCHES, int((moment - begin) / width))] += 1
    points = [(i * width, count / width) for i, count in enumerate(counts)]
    return lines("Silences of more than 50 ms", "seconds", "a second", {"interruptions": points}, step=True)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    cells = ["<tr>" + "".join(f"<th>{escape(c)}</th>" for c in head) + "</tr>"] if any(head) else []
    cells += ["<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in body]
    return "<table>" + "".join(cells) + "</table>"
