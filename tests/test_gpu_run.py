"""The one command for a GPU, rehearsed on a CPU: every part runs; one that fails or hangs is written down, and the next runs."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
WITHOUT = ("picture",)  # has a test of its own, in which diffusers is there


@pytest.fixture(scope="module")
def gpu() -> Iterator[ModuleType]:
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location("gpu_run", FOLDER / "gpu.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = [str(FOLDER), *before]
    yield module
    sys.path[:] = before


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUT", str(tmp_path))
    return tmp_path


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "gpu.jsonl").read_text().splitlines()]


def test_a_rehearsal_runs_every_part(gpu: ModuleType, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {name: part for name, part in gpu.PARTS.items() if name not in WITHOUT}
    monkeypatch.setattr(gpu, "PARTS", parts)
    assert gpu.main(["--rehearse"]) == 0, (out / "gpu.md").read_text()
    found = rows(out)
    assert {row["part"] for row in found} == set(parts)
    for name in parts:
        judged = [row for row in found if row["part"] == name and row["ok"] is not None]
        assert judged and all(row["ok"] for row in judged), name
    table = (out / "gpu.md").read_text()
    assert "rehearsed on a CPU" in table and time.strftime("%Y-%m-%d") in table
    assert table.count("\n|") == len(found) + 2


@pytest.mark.oracle
def test_a_rehearsal_paints(gpu: ModuleType, out: Path) -> None:
    pytest.importorskip("diffusers")
    assert gpu.main(["--rehearse", "--only", "picture"]) == 0
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--only", "spede"])
    assert sum(row["ok"] is True for row in rows(out)) == 2


def test_without_a_gpu_it_says_so(gpu: ModuleType, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 0
    assert "not run on a GPU" in (out / "gpu.md").read_text()


def test_a_part_that_fails_is_told_and_the_next_one_runs(gpu: ModuleType, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scene: Any) -> Iterator[dict[str, Any]]:
        yield {"name": "first", "ok": True}
        raise ValueError("planted")

    def wrong(scene: Any) -> Iterator[dict[str, Any]]:
        yield {"name": "wrong", "ok": False, "error": 0.5}

    part = type(gpu.PARTS["environment"])
    monkeypatch.setattr(gpu, "PARTS", {"broken": part(broken, 30.0), "wrong": part(wrong, 30.0)})
    assert gpu.main(["--rehearse"]) == 1
    found = rows(out)
    assert [row["name"] for row in found] == ["first", "failed", "took", "wrong", "took"]
    assert "planted" in found[1]["problem"] and "Traceback" in found[1]["trace"]
    assert (out / "gpu.md").read_text().count("**no**") == 2


def test_a_process_that_ends_or_hangs_is_told(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "child.py"
    monkeypatch.setattr(gpu, "__file__", str(script))
    monkeypatch.setattr(gpu, "GRACE", 0.0)
    script.write_text('import os, sys\nprint(\'{"part": "x", "name": "a", "ok": true}\', flush=True)\nos._exit(7)\n')
    found = list(gpu.apart("x", 20.0, []))
    assert [row["name"] for row in found] == ["a", "failed"] and "ended with 7" in found[1]["problem"]
    script.write_text("import time\ntime.sleep(60)\n")
    start = time.monotonic()
    (late,) = gpu.apart("x", 1.0, [])
    assert late["problem"] == "too late" and time.monotonic() - start < 30
