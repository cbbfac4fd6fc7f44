"""Line charts as SVG, each complete in itself: it can stand in a page or lie beside one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10

Series = Mapping[str, Sequence[tuple[float, float]]]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # told apart by the colour-blind too
WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 34, 46
FONT = 'font-family="system-ui, sans-serif" fill="#333"'


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Series,
    *,
    log: bool = False,
    step: bool = False,
    dots: bool = False,
    top: float | None = None,
    marks: Sequence[float] = (),
) -> str:
    """A chart.

    Args:
        title, x_label, y_label: texts.
        series: name -> points, by x.
        log: the x axis is logarithmic; points at 0 or below are left out.
        step: a value holds until the next point.
        dots: mark every point.
        top: of the y axis; None: as high as the points are.
        marks: moments on the x axis to be marked.
    """
    shown = {name: [(x, y) for x, y in points if not log or x > 0.0] for name, points in series.items()}
    xs = [x for points in shown.values() for x, _ in points]
    ys = [y for points in shown.values() for _, y in points]
    low, high = (min(xs), max(xs)) if xs else (1e-3 * log, 1.0)
    if not log and 0.0 <= low < 0.5 * high:
        low = 0.0
    if high <= low:
        high = low * 2 if low > 0 else 1.0
    peak = top if top is not None else (max(ys, default=0.0) * 1.05 or 1.0)

    def across(x: float) -> float:
        part = (log10(x) - log10(low)) / (log10(high) - log10(low)) if log else (x - low) / (high - low)
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - min(y / peak, 1.02) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="14" font-size="12" font-weight="600" {FONT}>{escape(title)}</text>',
    ]
    floor_y = HEIGHT - BOTTOM
    for y in ticks(0.0, peak):
        at = up(y)
        out.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#e5e5e5"/>')
        out.append(f'<text x="{LEFT - 5}" y="{at + 3:.1f}" font-size="9" text-anchor="end" {FONT}>{number(y)}</text>')
    for x in decades(low, high) if log else ticks(low, high):
        at = across(x)
        out.append(f'<line x1="{at:.1f}" y1="{floor_y}" x2="{at:.1f}" y2="{floor_y + 3}" stroke="#888"/>')
        out.append(f'<text x="{at:.1f}" y="{floor_y + 13}" font-size="9" text-anchor="middle" {FONT}>{number(x)}</text>')
    for x in marks:
        at = across(x)
        out.append(f'<line x1="{at:.1f}" y1="{floor_y}" x2="{at:.1f}" y2="{TOP}" stroke="#d55e00" stroke-dasharray="2 3"/>')
    out.append(f'<line x1="{LEFT}" y1="{floor_y}" x2="{WIDTH - RIGHT}" y2="{floor_y}" stroke="#888"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{floor_y + 26}" font-size="10" text-anchor="middle" {FONT}>{escape(x_label)}</text>')
    turned = f'transform="rotate(-90 12 {(TOP + floor_y) / 2})" text-anchor="middle"'
    out.append(f'<text x="12" y="{(TOP + floor_y) / 2}" font-size="10" {turned} {FONT}>{escape(y_label)}</text>')
    place = float(LEFT)
    for (name, points), colour in zip(shown.items(), COLOURS * (len(shown) // len(COLOURS) + 1), strict=False):
        path: list[str] = []
        before: float | None = None
        for x, y in points:
            if step and before is not None:
                path.append(f"L{across(x):.1f} {up(before):.1f}")
            path.append(f"{'L' if path else 'M'}{across(x):.1f} {up(y):.1f}")
            before = y
        out.append(f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if dots:
            out += [f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="2.4" fill="{colour}"/>' for x, y in points]
        out.append(f'<rect x="{place:.0f}" y="20" width="9" height="3" fill="{colour}"/>')
        out.append(f'<text x="{place + 12:.0f}" y="25" font-size="9" {FONT}>{escape(name)}</text>')
        place += 22 + 5.2 * len(name)
    return "\n".join([*out, "</svg>"])


def ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers."""
    span = high - low
    size = 10.0 ** floor(log10(span))
    size = next(s for s in (size / 5, size / 2, size, size * 2) if span / s <= 8)
    first = floor(low / size) + (low % size > 1e-9)
    return [n * size for n in range(int(first), int(high / size + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """1, 2, 5 of every power of ten in between, or the powers alone where these would be many."""
    found = [m * 10.0**p for p in range(floor(log10(low)), floor(log10(high)) + 1) for m in (1, 2, 5)]
    inside = [x for x in found if low <= x <= high]
    return inside if len(inside) <= 9 else [x for x in inside if f"{x:e}".startswith("1")]


def number(x: float) -> str:
    """Short, and without an exponent where it can be."""
    return f"{x:.0f}" if abs(x) >= 100 or x == int(x) else f"{x:.3g}"


def cdf(values: Sequence[float], points: int = 200) -> list[tuple[float, float]]:
    """Value against the share that does not exceed it; of many values, so many spread evenly over the shares."""
    ordered = sorted(values)
    n = len(ordered)
    chosen = range(n) if n <= points else sorted({round(i * (n - 1) / (points - 1)) for i in range(points)})
    return [(ordered[i], (i + 1) / n) for i in chosen]
