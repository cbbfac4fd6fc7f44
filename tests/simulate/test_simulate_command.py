"""`omni simulate` and `omni calibrate` on the command line: a table, JSON, a page, and mistakes in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def omni(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "omni_runtime", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=300, check=False)


def test_a_simulation_as_json_is_the_same_from_its_own_trace(tmp_path: Path) -> None:
    asked = ("--mix", "speak=2,chat=1", "--requests", "30", "--rate", "0.5", "--seed", "4", "--json")
    made = omni("simulate", *asked, "--save", "w.jsonl", "--report", "r.html", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout)
    assert found["requests"] == found["completed"] == 30
    assert found["policy"] == "deadline"
    assert 0.0 < found["utilisation"]["smollm2/thinker"] < 1.0
    assert found["first_token"]["p50"] < found["first_sound"]["p50"] < found["total"]["p50"]
    assert "smollm2/thinker.forward" in found["notes"][0]
    assert (tmp_path / "r.html").read_text().count("<svg") == 4
    again = json.loads(omni("simulate", "--trace", "w.jsonl", "--seed", "4", "--json", cwd=tmp_path).stdout)
    for name in ("total", "first_sound", "goodput", "silence", "units"):
        assert again[name] == found[name]


@pytest.mark.slow
def test_policies_differ_and_a_table_is_shown(tmp_path: Path) -> None:
    shown = omni("simulate", "--requests", "20", "--policy", "stages", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for word in ("goodput", "first sound", "hibari/vocoder", "units in"):
        assert word in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("simulate", "--mix", "speek"), ["speek", "did you mean 'speak'"]),
        (("simulate", "--mix", "smollm2"), ["smollm2", "is a card"]),
        (("simulate", "--policy", "fifo"), ["policy", "fifo", "first_come"]),
        (("simulate", "--tokens", "many"), ["tokens='many'", "LOW-HIGH"]),
        (("simulate", "--rate", "0"), ["rate=0", "above 0"]),
        (("simulate", "--costs", "nowhere.json"), ["nowhere.json", "omni calibrate"]),
        (("simulate", "--costs", "bad.json"), ["bad.json", "no JSON"]),
        (("simulate", "--trace", "nowhere.jsonl"), ["nowhere.jsonl"]),
        (("simulate", "--trace", "bad.jsonl"), ["bad.jsonl, line 1", "progam", "did you mean 'program'"]),
        (("simulate", "--guarantee", "always"), ["guarantee", "always", "no-underrun"]),
        (("simulate", "--report", "nowhere/r.html"), ["nowhere/r.html", "folder does not exist"]),
        (("calibrate", "smollm2"), ["smollm2", "is a card"]),
        (("calibrate", "--concurrency", "one"), ["concurrency=", "one", "1,4,16"]),
        (("calibrate", "--concurrency", "0"), ["concurrency", "from 1 on"]),
        (("calibrate", "-o", "nowhere/c.json"), ["nowhere/c.json", "folder does not exist"]),
    ],
)
def test_mistakes_are_one_sentence(args: tuple[str, ...], words: list[str], tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "bad.jsonl").write_text('{"at": 0, "progam": "speak"}\n')
    found = omni(*args, cwd=tmp_path)
    assert found.returncode == 1, found
    assert found.stdout == ""
    assert found.stderr.startswith("omni: ")
    assert len(found.stderr.strip().splitlines()) == 1, found.stderr
    for word in words:
        assert word in found.stderr, found.stderr
