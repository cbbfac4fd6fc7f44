"""The page and its charts: well formed, complete in themselves, and drawn from the numbers."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from omni_runtime.simulate import report
from omni_runtime.simulate.charts import cdf, decades, lines, ticks
from omni_runtime.simulate.measures import measure
from omni_runtime.simulate.outcome import Outcome
from omni_runtime.work import Chunk, End


def outcomes() -> list[Outcome]:
    found = []
    for i in range(30):
        one = Outcome(float(i), {"audio": 100}, frozenset(["text"]))
        one.take(i + 0.1, Chunk(1, "text", 0, ("a",)))
        one.take(i + 0.5, Chunk(1, "audio", 0, np.zeros(100)))
        one.take(i + 2.0 + i / 10, Chunk(1, "audio", 100, np.zeros(100)))
        one.take(i + 3.0 + i / 10, End(1, "done"))
        found.append(one)
    return found


class Page(HTMLParser):
    """Tags and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def test_a_page_stands_alone(tmp_path: Path) -> None:
    file = tmp_path / "r.html"
    found = measure(outcomes(), {"x/y": 20.0})
    busy = {"x/y": dict.fromkeys(range(30), 0.66)}
    report.write(file, "<script>alert(1)</script>", {"devices": "<b>3"}, found, outcomes(), busy, 1.0, {"x/y": 1}, ["a & b"])
    text = file.read_text()
    page = Page(text)
    assert page.links == []
    assert page.tags.count("svg") == 4
    assert "script" not in page.tags and "b" not in page.tags
    assert "url(" not in text and "@import" not in text
    for chart in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(chart)
    assert f"{found.throughput:.3f} requests/s" in text


def test_a_page_of_nothing(tmp_path: Path) -> None:
    report.write(tmp_path / "r.html", "empty", {}, measure([]), [])
    assert Page((tmp_path / "r.html").read_text()).tags.count("svg") == 4


def points(chart: str) -> list[list[tuple[float, float]]]:
    """Of every line of a chart, in pixels."""
    paths = [e.attrib["d"] for e in ElementTree.fromstring(chart).iter() if e.tag.endswith("path")]
    return [[tuple(map(float, p.split())) for p in re.split("[ML]", d) if p] for d in paths]  # type: ignore[misc]


def test_a_line_is_where_its_numbers_are() -> None:
    (line,) = points(lines("t", "x", "y", {"a": [(0.0, 0.0), (5.0, 1.0), (10.0, 0.5)]}, top=1.0))
    (x0, y0), (x1, y1), (x2, y2) = line
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(2 * (y0 - y2), abs=0.2)
    assert y1 < y2 < y0


def test_a_logarithmic_axis_has_equal_decades() -> None:
    (line,) = points(lines("t", "x", "y", {"a": [(0.0, 0.3), (0.1, 0.0), (1.0, 0.5), (10.0, 1.0)]}, log=True))
    assert len(line) == 3
    assert line[1][0] - line[0][0] == pytest.approx(line[2][0] - line[1][0], abs=0.2)


def test_steps_hold_their_value() -> None:
    (line,) = points(lines("t", "x", "y", {"a": [(0.0, 1.0), (1.0, 2.0)]}, step=True))
    assert len(line) == 3 and line[0][1] == line[1][1] and line[1][0] == line[2][0]


def test_a_level_is_the_mean_of_each_stretch() -> None:
    chart = report._level([(0.0, 1), (80.0, 1), (160.0, -2)])
    assert chart[10] == (10.0, 1.0)
    assert chart[100] == (100.0, 2.0)
    assert report._level([(0.0, 1), (0.5, 1), (1.0, -1), (160.0, -1)])[0][1] == pytest.approx(1.5)


def test_distributions_and_ticks() -> None:
    assert cdf([3.0, 1.0, 2.0, 2.0]) == [(1.0, 0.25), (2.0, 0.5), (2.0, 0.75), (3.0, 1.0)]
    many = cdf([float(i) for i in range(10_000)])
    assert len(many) <= 200 and many[-1] == (9999.0, 1.0)
    assert ticks(0.0, 1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert decades(0.05, 3.0) == pytest.approx([0.05, 0.1, 0.2, 0.5, 1.0, 2.0])
    assert decades(1e-6, 1e6) == pytest.approx([10.0**p for p in range(-6, 7)])
