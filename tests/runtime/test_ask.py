"""`ask`: options that need each other are told before anything loads, and JSON is one value whatever else is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from omni_runtime.ask import Question, ask  # noqa: E402
from omni_runtime.errors import RequestError  # noqa: E402
from omni_runtime.weights.toy_qwen3_omni import write_toy_omni  # noqa: E402


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_omni(tmp_path_factory.mktemp("ask") / "tiny")


def test_json_with_statistics_is_one_value(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.wav"
    ask(Question("Hi", checkpoint=tiny, json=True, stats=True, speak=out, max_tokens=3, seed=1, speaker="ETHAN", threads=1))
    said = json.loads(capsys.readouterr().out)
    loops = {row["loop"]: row for row in said["loops"]}
    assert loops["think"]["made"] == 3 and {"units", "batch", "computed", "rate", "queue", "run"} <= set(loops["think"])
    assert {name: row["units"] for name, row in loops.items()} == {name: n for name, n in said["units"].items() if n}


def test_json_alone_has_no_table(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(Question("Hi", checkpoint=tiny, json=True, max_tokens=2, threads=1))
    assert "loops" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speaker": "Ethan"}, "speaker='Ethan': .*--speaker needs --speak FILE"),
        ({"speed": 1.5, "speak": Path("x.wav")}, "speed=1.5: not known by qwen3_omni, only by hibari; leave --speed out"),
        ({"use_audio_in_video": True}, "use_audio_in_video: .*--use-audio-in-video needs --video FILE"),
        ({"use_audio_in_video": True, "audios": (Path("a.wav"),)}, "--use-audio-in-video needs --video FILE"),
    ],
)
def test_options_that_miss_their_company(tiny: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ask(Question("Hi", checkpoint=tiny, **options))


def test_a_text_model_has_no_speakers() -> None:
    with pytest.raises(RequestError, match="speaker='Ethan': not known by smollm2, hibari, only by qwen3_omni"):
        ask(Question("Hi", speak=Path("x.wav"), speaker="Ethan"))


def test_a_folder_without_a_voice_says_so(tmp_path: Path) -> None:
    silent = write_toy_omni(tmp_path, {"enable_audio_output": False, "talker_config": None, "code2wav_config": None})
    with pytest.raises(RequestError, match="enable_audio_output is false"):
        ask(Question("Hi", checkpoint=silent, speak=Path("x.wav"), speaker="Ethan"))
