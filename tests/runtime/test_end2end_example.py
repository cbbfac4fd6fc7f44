"""The example of Qwen3-Omni: every query type runs to its end, with a stand-in for the model's loops."""

from __future__ import annotations

import os
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "qwen3_omni"
STUB = ("--card", "omni_stub:card", "--program", "omni_stub:omni")


def end2end(*args: str, cwd: Path) -> str:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "runtime")])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLE / "end2end.py"), *STUB, *args]
    found = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=200, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_mixed_streamed_with_statistics(tmp_path: Path) -> None:
    shown = end2end("--stream", "--stats", "--use-audio-in-video", "--speaker", "chelsie", "--requests", "2", cwd=tmp_path)
    for words in ("a tiny random qwen3_omni", "sound (128, 150); sound (128, 200); picture", "s of sound]", "real-time factor"):
        assert words in shown, shown
    assert "written to output: answer.wav, text.txt" in shown
    with wave.open(str(tmp_path / "output" / "answer.wav")) as file:
        assert file.getnframes() == 1200
    assert len((tmp_path / "output" / "text.txt").read_text().splitlines()) == 2


def test_text_only_leaves_the_voice_out(tmp_path: Path) -> None:
    shown = end2end("-q", "text", "--outputs", "text", "--stats", "--out", "o", "--question", "hi", cwd=tmp_path)
    assert "tokens; ; " in shown and "speak" not in shown and not (tmp_path / "o" / "answer.wav").exists()


def test_every_query_type_has_its_media(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import end2end as example

    from omni_runtime.messages import MEDIA, normal

    kinds = {}
    for query in example.QUERIES:
        monkeypatch.setattr(sys, "argv", ["end2end.py", "--query-type", query])
        system, user = normal(example.messages(example.options()), MEDIA)
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
