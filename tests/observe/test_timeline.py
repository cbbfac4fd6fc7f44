"""The page holds the data, fetches nothing, and takes nothing in it for markup."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from scenes import busy

from omni_runtime.observe import timeline
from omni_runtime.observe.recorder import Recorder

HOSTILE = "</script><script>alert({0})</script><img src=x onerror=alert(1)> & <!-- \u2028 'q\" /* data */ $& \\u003c"


class Page(HTMLParser):
    """What a browser makes of it: tags, attributes that could fetch or run, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [(n, v) for n, v in attrs if n in ("src", "href", "srcset", "action") or n.startswith("on")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script" and self.scripts:
            self.scripts[-1] += data


def data(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.scripts[0])
    return found


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    made = Recorder()
    busy(made, label=HOSTILE.replace("{0}", "{}"))
    return made


def test_hostile_labels_stay_text(recorder: Recorder) -> None:
    text = timeline.html(recorder, title=HOSTILE)
    page = Page(text)
    assert page.tags.count("script") == 2 and "img" not in page.tags
    shown = data(page)
    assert shown["title"] == HOSTILE
    assert shown["runs"][3]["label"] == HOSTILE.replace("{0}", "3")
    assert "innerHTML" not in text and "insertAdjacent" not in text and "document.write" not in text


def test_nothing_is_fetched(recorder: Recorder) -> None:
    text = timeline.html(recorder)
    assert Page(text).links == []
    assert "default-src 'none'" in text
    for word in ("http://", "https://", "//", "@import", "url(", "fetch(", "XMLHttp", "import("):
        found = [m.start() for m in re.finditer(re.escape(word), text)]
        comments = [at for at in found if word == "//" and text[at - 1] in "\n " and text[at + 2] == " "]
        assert found == comments, f"{word}: {text[found[0] - 40 : found[0] + 40]}" if found else ""


def test_the_data_is_the_record(recorder: Recorder) -> None:
    record = recorder.record()
    shown = data(Page(timeline.html(record)))
    assert len(shown["units"]) == len(record.units)
    assert [b[0] for b in shown["batches"]] == list(dict.fromkeys(u.batch.number for u in record.units))
    for u, row in zip(record.units, shown["units"], strict=True):
        run, loop, batch, place, size, lo, hi, told, ready, memory, due, why, outcome, since, blocked = row
        number, executor, group, dispatched, started, answered, mates, total = shown["batches"][batch]
        assert (shown["runs"][run]["id"], shown["loops"][loop], number) == (u.run.id, u.loop, u.batch.number)
        assert (place, size, lo, hi, mates, total) == (u.place, u.size, u.lo, u.hi, u.batch.units, u.batch.size)
        assert [shown["texts"][t] for t in (told, why, outcome)] == [u.told, u.why, u.outcome]
        assert shown["executors"][executor] == u.batch.executor and shown["groups"][group][:2] == [u.batch.expert, u.batch.op]
        assert u.batch.answered is not None
        for got, true in (
            (ready, u.ready), (memory, u.memory), (due, u.due), (since, u.since), (dispatched, u.batch.dispatched),
            (started, u.batch.started), (answered, u.batch.answered),
        ):  # fmt: skip
            assert got == round((true - record.start) * 1e6)
        assert ("", "input", "reader")[blocked] == u.blocked


def test_an_empty_record_and_one_in_flight(tmp_path: Path) -> None:
    timeline.write(tmp_path / "empty.html", Recorder())
    assert data(Page((tmp_path / "empty.html").read_text()))["units"] == []
    with pytest.raises(FileNotFoundError):
        timeline.write(tmp_path / "nowhere" / "x.html", Recorder())


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("empty", [False, True])
def test_the_script_runs(recorder: Recorder, empty: bool, tmp_path: Path) -> None:
    """On a page without a screen: every key, both groupings, every tip; an exception fails."""
    page = Page(timeline.html(Recorder() if empty else recorder))
    (tmp_path / "data.json").write_text(page.scripts[0])
    (tmp_path / "page.js").write_text(page.scripts[1])
    shutil.copy(Path(__file__).parent / "no_screen.js", tmp_path)
    ran = subprocess.run(["node", "no_screen.js"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    words = json.loads(ran.stdout)
    assert words["painted"] > 50
    if not empty:
        assert any("batch" in w for w in words["told"]) and any("why then" in w for w in words["told"])
        assert any(HOSTILE.replace("{0}", "0") in w for w in words["told"])
