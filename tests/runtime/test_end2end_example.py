"""The examples of both omni families, with the tiny checkpoints that they write."""

from __future__ import annotations

import os
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from omni_runtime.cards.qwen3_omni import qwen3_omni

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / "examples" / "omni"
HOP = {"qwen3_omni": 48, "qwen2_5_omni": 2 * 240}  # samples of a frame of codes


def end2end(family: str, *args: str, cwd: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / family / "end2end.py"), *args]
    found = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=200, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("family", HOP)
def test_mixed_streamed_with_statistics(tmp_path: Path, family: str) -> None:
    asked = ("--use-audio-in-video", "--speaker", "chelsie", "--max-tokens", "8", "--max-frames", "9", "--requests", "2")
    shown = end2end(family, "--stream", "--stats", *asked, cwd=tmp_path)
    for words in (f"a tiny random {family}", "s of sound]", "first text after", "real-time factor", "all 2 requests after"):
        assert words in shown, shown
    assert "written to output: answer.wav, text.txt" in shown
    table = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if len(line.split()) == 8}
    assert table["hear"][0] == table["see"][0] == "2" and table["think"][3] == "8", shown
    with wave.open(str(tmp_path / "output" / "answer.wav")) as file:
        assert 0 < file.getnframes() <= 9 * HOP[family]
    assert (tmp_path / "output" / "text.txt").read_text().count("\n") >= 2


def test_text_only_leaves_the_voice_out(tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "older.txt").write_text("of another run")
    shown = end2end("qwen3_omni", "-q", "text", "--outputs", "text", "--stats", "--out", "o", "--question", "hi", cwd=tmp_path)
    assert shown.splitlines()[-1] == "written to o: text.txt"
    assert "think" in shown and "speak" not in shown and not (tmp_path / "o" / "answer.wav").exists()


@pytest.mark.parametrize(
    ("args", "status", "told"),
    [
        (("-q", "use_image", "--image", "nowhere.png"), 1, "nowhere.png"),
        (("-q", "text", "--checkpoint", "nowhere"), 1, "nowhere: there is no such folder"),
        (("-q", "text", "--speaker", "nobody"), 1, "unknown speaker 'nobody'"),
        (("-q", "text", "--out", "taken"), 1, "taken"),
        (("-q", "text", "--image", "x.png"), 2, "--image: nothing of the kind goes into query type text"),
        (("-q", "use_image", "--use-audio-in-video"), 2, "--use-audio-in-video: nothing of the kind goes into"),
        (("-q", "text", "--requests", "0"), 2, "--requests: a whole number from 1 on is needed, not '0'"),
    ],
)
def test_what_a_user_can_mend_is_one_line(
    args: tuple[str, ...],
    status: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(SHARED))
    import asking as example

    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file, not a folder")
    family = example.Family("Qwen3-Omni", qwen3_omni, "qwen3-omni", 12.5)
    monkeypatch.setattr(sys, "argv", ["end2end.py", *args])
    if status == 2:  # usage, told by argparse
        with pytest.raises(SystemExit, match="2"):
            example.main(family)
    else:
        assert example.main(family) == status
    shown = capsys.readouterr().err
    assert told in shown and (status == 2 or len(shown.strip().splitlines()) == 1), shown


def test_every_query_type_has_its_media(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SHARED))
    import asking as example

    from omni_runtime.messages import MEDIA, normal

    kinds = {}
    family = example.Family("Qwen3-Omni", qwen3_omni, "qwen3-omni", 12.5)
    for query in example.QUERIES:
        monkeypatch.setattr(sys, "argv", ["end2end.py", "--query-type", query])
        system, user = normal(example.messages(example.options(family)), MEDIA)
        assert system["role"] == "system"  # type: ignore[index]
        kinds[query] = [part["type"] for part in user["content"]]  # type: ignore[index]
    assert kinds == {
        "text": ["text"],
        "use_audio": ["audio", "text"],
        "use_image": ["image", "text"],
        "use_video": ["video", "text"],
        "use_mixed_modalities": ["audio", "image", "video", "text"],
    }
    assert np.ptp(example.sound()) > 0.5 and np.ptp(example.clip()[0].astype(int) - example.clip()[-1]) > 100
