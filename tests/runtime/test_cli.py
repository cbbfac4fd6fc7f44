"""The `omni` command: one sentence and a non-zero exit for everything that is wrong, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import wave
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def omni(*args: str, cwd: Path | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "omni_runtime", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, input=stdin, timeout=300, check=False)


def test_show_and_check() -> None:
    shown = omni("show", "speak")
    assert shown.returncode == 0, shown.stderr
    for word in ("tokenize", "ar_decode", "<~ think.text", "output audio = speak.samples"):
        assert word in shown.stdout
    assert omni("show", "speak", "--mermaid").stdout.startswith("flowchart LR")
    for name in ("chat", "speak", "smollm2", "hibari", "omni_runtime.programs.speak:speak"):
        found = omni("check", name)
        assert found.returncode == 0, found.stderr
        assert found.stdout.strip().endswith("fine")


BROKEN = """
from omni_runtime import Program, ModelCard
from omni_runtime.cards.smollm2 import smollm2
def dangling():
    p = Program("dangling", smollm2())
    p.loop("think")
    return p
def silent():
    return Program("silent", smollm2())
number = 3
raise_ = lambda: 1 / 0
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("show", "speek"), ["speek", "did you mean 'speak'"]),
        (("show", "smollm2"), ["is a card", "omni check smollm2"]),
        (("check", "nowhere:x"), ["nowhere"]),
        (("check", "broken.py:dangling"), ["prompt", "not wired"]),
        (("check", "broken.py:silent"), ["has no output"]),
        (("check", "broken.py:number"), ["int", "not a ModelCard"]),
        (("check", "broken.py:nothing"), ["nothing", "unknown name"]),
        (("check", "missing.py:x"), ["missing.py", "no such file"]),
        (("check", "broken.py:raise_"), ["raise_", "ZeroDivisionError"]),
        (("run", ""), ["question is empty"]),
        (("run", "hi", "--speak", "nowhere/x.wav"), ["nowhere/x.wav", "folder does not exist"]),
        (("run", "hi", "--timeline", "nowhere/x.html"), ["nowhere/x.html", "folder does not exist"]),
        (("demo", "--trace", "nowhere/x.json"), ["nowhere/x.json", "folder does not exist"]),
        (("run", "hi", "--temperature", "-1"), ["temperature", "-1"]),
        (("run", "hi", "--top-p", "0"), ["top_p", "0"]),
        (("run", "hi", "--max-tokens", "-3"), ["max_tokens", "-3"]),
        (("run", "hi", "--seed", "-3"), ["seed", "-3"]),
        (("run", "hi", "--repetition-penalty", "0"), ["repetition_penalty", "0"]),
        (("run", "hi", "--max-tokens", "3", "--min-tokens", "4"), ["min_tokens", "4 is more than max_tokens, 3"]),
        (("run", "hi", "--logprobs", "2"), ["logprobs", "add --json"]),
        (("run", "hi", "--samples", "2", "--speak", "x.wav"), ["samples", "leave --speak out"]),
        (("run", "hi", "--stop", ""), ["stop", "empty"]),
        (("run", "hi", "--speed", "1.5"), ["speed=1.5", "--speak"]),
        (("run", "hi", "--speak", "x.wav", "--speed", "3"), ["speed", "less than or equal to 2", "3"]),
        (("run", "hi", "--checkpoint", "nowhere"), ["nowhere", "no such folder"]),
        (("run", "hi", "--checkpoint", "."), ["config.json does not exist"]),
        (("check", "folder"), ["config.json", "hidden_sice", "did you mean 'hidden_size'"]),
        (("run", "hi", "--checkpoint", "folder"), ["config.json", "hidden_sice"]),
    ],
)
def test_errors_are_one_sentence(args: tuple[str, ...], words: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text('{"model_type": "llama", "hidden_sice": 8}')
    found = omni(*args, cwd=tmp_path)
    assert found.returncode == 1, found
    assert found.stdout == ""
    assert found.stderr.startswith("omni: ")
    assert len(found.stderr.strip().splitlines()) == 1, found.stderr
    for word in words:
        assert word in found.stderr, found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("args", [("run",), ("fly",), ("run", "hi", "--max-tokens", "x"), ("show", "speak", "--colour")])
def test_usage_errors(args: tuple[str, ...]) -> None:
    found = omni(*args)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
    assert found.stderr


def test_help() -> None:
    found = omni("--help")
    assert found.returncode == 0
    for command in ("demo", "run", "show", "check"):
        assert command in found.stdout


@pytest.mark.oracle
def test_run_in_json_with_speech(tmp_path: Path) -> None:
    out, page, trace = tmp_path / "out.wav", tmp_path / "out.html", tmp_path / "out.json"
    looks = ("--timeline", str(page), "--trace", str(trace), "--live")
    found = omni("run", "-", "--json", "--speak", str(out), "--max-tokens", "12", *looks, stdin="What is the capital of France?")
    assert found.returncode == 0, found.stderr
    said = json.loads(found.stdout)
    assert "Paris" in said["text"]
    assert said["usage"]["think"]["completion_tokens"] <= 12
    assert said["units"]["think"] >= 2
    with wave.open(str(out)) as file:
        assert file.getnframes() == round(said["audio"]["seconds"] * 24_000) > 24_000
    assert "smollm2/thinker" in page.read_text()
    bars = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("cat") == "unit"]
    assert len(bars) == sum(said["units"].values())


@pytest.mark.oracle
def test_samples_and_logprobs() -> None:
    asked = [
        "run",
        "Name a colour.",
        "--max-tokens",
        "6",
        "--seed",
        "5",
        "--temperature",
        "1.5",
        "--top-k",
        "40",
        "--min-p",
        "0.01",
    ]
    asked += ["--repetition-penalty", "1.2", "--presence-penalty", "0.1", "--frequency-penalty", "0.1", "--min-tokens", "3"]
    found = omni(*asked, "--samples", "2", "--logprobs", "3", "--json")
    assert found.returncode == 0, found.stderr
    said = json.loads(found.stdout)
    assert [sample["seed"] for sample in said["samples"]] == [5, 6]
    for sample in said["samples"]:
        assert len(sample["tokens"]) >= 3
        assert [told["token"] for told in sample["logprobs"]] == sample["tokens"]
        assert all(told["logprob"] <= 0 and len(told["top"]) == 3 for told in sample["logprobs"])
    shown = omni(*asked, "--samples", "2")
    assert shown.stdout.split("\n\n") == [
        f"-- sample 1, seed 5\n{said['samples'][0]['text']}",
        f"-- sample 2, seed 6\n{said['samples'][1]['text']}\n",
    ]


@pytest.mark.torch
def test_a_checkpoint_folder(tmp_path: Path) -> None:
    from omni_runtime.weights.toy_folder import write_toy

    folder = write_toy(
        tmp_path / "toy", "qwen3_moe", shards=2, generation={"do_sample": True, "temperature": 0.5, "num_beams": 4}
    )
    checked = omni("check", "toy", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    for words in (
        "Qwen3MoeForCausalLM: 3 layers",
        "2 of 6 experts",
        "68 tensors",
        "ends with [266]",
        "temperature 0.5",
        "num_beams=4",
    ):
        assert words in checked.stdout, checked.stdout
    assert checked.stdout.strip().endswith("fine")
    answers = []
    for seed in ("5", "6"):
        found = omni("run", "hi", "--checkpoint", "toy", "--json", "--max-tokens", "9", "--seed", seed, cwd=tmp_path)
        assert found.returncode == 0, found.stderr
        answers.append(json.loads(found.stdout))
    assert answers[0]["usage"]["think"]["completion_tokens"] == 9
    assert answers[0]["text"] != answers[1]["text"]  # the folder draws by default
    (folder / "model-00002-of-00002.safetensors").unlink()
    broken = omni("check", "toy", cwd=tmp_path)
    assert broken.returncode == 1
    assert "shard 'model-00002-of-00002.safetensors', which holds tensor" in broken.stderr
    assert len(broken.stderr.strip().splitlines()) == 1, broken.stderr


@pytest.mark.oracle
@pytest.mark.slow
def test_a_checkpoint_folder_speaks(tmp_path: Path) -> None:
    from omni_runtime.weights.toy_folder import write_toy

    write_toy(tmp_path / "toy", seed=1)
    found = omni("run", "hi", "--checkpoint", "toy", "--json", "--speak", "x.wav", "--max-tokens", "12", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["audio"]["sample_rate"] == 24_000
    with wave.open(str(tmp_path / "x.wav")) as file:
        assert file.getnframes() == round(json.loads(found.stdout)["audio"]["seconds"] * 24_000)


@pytest.mark.oracle
def test_demo_in_an_unwritable_place(tmp_path: Path) -> None:
    folder = tmp_path / "answer.wav"
    folder.mkdir()
    found = omni("demo", "--out", str(folder))
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    assert "answer.wav" in found.stderr
