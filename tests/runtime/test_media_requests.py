"""Requests with media from `submit` and from the command line, on threads and processes, to a stand-in for the model's loops."""

from __future__ import annotations

import json
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import omni_stub  # noqa: E402
from test_cli import omni  # noqa: E402

from omni_runtime import Runtime  # noqa: E402
from omni_runtime.card import ModelCard  # noqa: E402
from omni_runtime.errors import MissingExtra, OmniError, RequestError, RequestFailed  # noqa: E402
from omni_runtime.find import made  # noqa: E402
from omni_runtime.program import Program  # noqa: E402
from omni_runtime.toy import write_toy_checkpoint  # noqa: E402
from omni_runtime.weights.toy_qwen3_omni import write_toy_omni  # noqa: E402

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 40, 3)).astype(np.uint8)
CLIP = np.stack([np.roll(PICTURE, i, 0) for i in range(8)])
TONE = (0.3 * np.sin(np.arange(8000) / 5)).astype(np.float32)
PARTS: list[dict[str, Any]] = [
    {"type": "image", "image": PICTURE},
    {"type": "audio", "audio": TONE, "rate": 8000},
    {"type": "video", "video": CLIP, "fps": 4, "audio": TONE, "rate": 8000},
    {"type": "text", "text": "What is it?"},
]
TOLD = "picture (1, 10, 10, 96); picture (2, 24, 24, 96)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_omni(tmp_path_factory.mktemp("toy") / "omni")


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_mixed_media(folder: Path, executor: Any) -> None:
    if executor == "process":
        pytest.importorskip("zmq")
    program = omni_stub.omni(omni_stub.card(str(folder)))
    messages = [{"role": "user", "content": PARTS}]
    with Runtime(list(program.cards.values()), executor=executor) as runtime:
        silent = runtime.submit(program, messages=messages)
        mixed = runtime.submit(program, messages=messages, use_audio_in_video=True, speaker="chelsie", outputs=["text", "audio"])
        wrong = runtime.submit(program, messages=[{"role": "user", "content": [{"type": "image", "image": b"no picture"}]}])
        plain = runtime.submit(program, messages="hi", outputs="text")
        assert "sound (128, 100); picture" in silent.result().text and TOLD in silent.result().text
        assert silent.result().text.endswith("picture0,sound0,picture1")
        assert "sound (128, 100); sound (128, 100); " + TOLD in mixed.result().text
        assert len(mixed.result().audio) == 5 * 240 and mixed.result().audio[0] == pytest.approx(0.07)
        assert mixed.result().units["hear"] == 2 and mixed.result().units["see"] == 2
        with pytest.raises(RequestFailed, match=r"messages\[0\]\.content\[0\]: image: the file cannot be decoded"):
            wrong.result()
        assert plain.result().text.endswith("tokens; ; ")


def test_what_submit_refuses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = omni_stub.omni(omni_stub.card(str(folder)))
    cases: list[tuple[Any, str]] = [
        (
            {"type": "image", "image": "http://x/y.png"},
            r"messages\[0\]\.content\[0\]\.image: 'http://x/y\.png': this runtime fetches",
        ),
        ({"type": "video", "video": CLIP}, r"messages\[0\]\.content\[0\]\.video: fps=None"),
        ({"type": "audio", "audio": TONE}, r"messages\[0\]\.content\[0\]\.audio: rate=None"),
        ({"type": "smell"}, r"messages\[0\]\.content\[0\]\.type: unknown type of part 'smell'"),
    ]
    with Runtime(list(program.cards.values())) as runtime:
        for part, message in cases:
            with pytest.raises(RequestError, match=message):
                runtime.submit(program, messages=[{"role": "user", "content": [part]}])
        with pytest.raises(RequestError, match="speaker"):
            runtime.submit(program, messages="hi", speaker="nobody")
        monkeypatch.setitem(sys.modules, "av", None)
        with pytest.raises(MissingExtra, match=r"messages\[0\]\.content\[0\]: this video file needs PyAV"):
            runtime.submit(program, messages=[{"role": "user", "content": [{"type": "video", "video": b"mp4"}]}])


def test_the_command_line(folder: Path, tmp_path: Path) -> None:
    Image.fromarray(PICTURE).save(tmp_path / "a.png")
    frames = [Image.fromarray(frame) for frame in CLIP]
    frames[0].save(tmp_path / "c.webp", save_all=True, append_images=frames[1:], duration=250, lossless=True)
    with wave.open(str(tmp_path / "b.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes((TONE * 32767).astype("<i2").tobytes())
    stub = str(Path(omni_stub.__file__).parent)
    shown = ("run", "what?", "--card", "omni_stub:card", "--program", "omni_stub:omni", "--checkpoint", str(folder))
    shown += ("--image", "a.png", "--image", "a.png", "--audio", "b.wav", "--video", "c.webp")
    (tmp_path / "omni_stub.py").symlink_to(Path(stub) / "omni_stub.py")
    found = omni(*shown, "--speak", "x.wav", "--speaker", "chelsie", "--stats", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    for words in ("sound (128, 100)", TOLD.replace(";", "; picture (1, 10, 10, 96);"), "time to first sound", "real-time factor"):
        assert words in found.stdout, found.stdout
    table = [line.split() for line in found.stdout.splitlines()]
    assert ["see", "3"] in [line[:2] for line in table] and ["hear", "1"] in [line[:2] for line in table]
    with wave.open(str(tmp_path / "x.wav")) as file:
        assert file.getnframes() == 1200
    wrong = omni(*shown[:-1], "nowhere.webp", cwd=tmp_path)
    assert wrong.returncode == 1 and wrong.stdout == ""
    assert wrong.stderr.startswith("omni: messages[0].content[3].video: 'nowhere.webp' cannot be read: No such file"), (
        wrong.stderr
    )
    said = omni(*shown, "--json", "--use-audio-in-video", cwd=tmp_path)
    assert json.loads(said.stdout)["units"]["prepare"] == 1


def test_the_toy_command(tmp_path: Path) -> None:
    written = omni("toy", "qwen3-omni", "x", cwd=tmp_path)
    assert written.returncode == 0 and "qwen3_omni" in written.stdout, written.stderr
    assert (tmp_path / "x" / "preprocessor_config.json").is_file()
    Image.fromarray(PICTURE).save(tmp_path / "a.png")
    asked = ("--checkpoint", "x", "--image", "a.png", "--speaker", "chelsie", "--max-tokens", "4", "--seed", "1")
    found = omni("run", "What is it?", *asked, "--speak", "o.wav", "--json", cwd=tmp_path)  # its folder says what it is
    assert found.returncode == 0, found.stderr
    said = json.loads(found.stdout)
    assert said["usage"]["think"]["completion_tokens"] <= 4 and said["units"]["see"] == 1 and said["units"]["hear"] == 0
    with wave.open(str(tmp_path / "o.wav")) as file:
        assert file.getnframes() == round(said["audio"]["seconds"] * 24_000)
    with pytest.raises(OmniError, match="unknown card or program 'nothing'"):
        made("nothing", ModelCard, "x")
    with pytest.raises(OmniError, match="a Program is needed"):
        made("qwen3-omni", Program, str(tmp_path / "x"))
    with pytest.raises(OmniError, match="positional"):
        made("qwen3-omni", ModelCard, 1, 2, 3)
    with pytest.raises(RequestError, match="x is there already"):
        write_toy_checkpoint("qwen3-omni", tmp_path / "x")
    with pytest.raises(RequestError, match="did you mean 'qwen"):
        write_toy_checkpoint("qwen4", tmp_path / "y")
    assert not (tmp_path / "y").exists()
    assert write_toy_checkpoint("Qwen3-MoE", tmp_path / "y").startswith(f"{tmp_path / 'y'}: a tiny random qwen3_moe")
