"""`omni check` of a Qwen3-Omni folder: what it holds, and what it lacks, before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("typer")

from typer.testing import CliRunner  # noqa: E402

from omni_runtime.commands import cli  # noqa: E402
from omni_runtime.errors import CheckpointError  # noqa: E402
from omni_runtime.weights.toy_qwen3_omni import write_toy_omni  # noqa: E402


def checked(folder: Path) -> str:
    found = CliRunner().invoke(cli, ["check", str(folder)], catch_exceptions=False, standalone_mode=False)
    return found.output


def changed(folder: Path, name: str, **values: object) -> None:
    path = folder / name
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | values))


def test_a_sound_folder_tells_memory_and_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_toy_omni(tmp_path / "tiny")
    changed(folder, "generation_config.json", max_new_tokens=3)
    monkeypatch.chdir(tmp_path)
    for name in (folder, Path("tiny")):
        shown = checked(name)
        for part in ("thinker", "audio_encoder", "vision_encoder", "talker", "predictor", "code2wav"):
            assert any(line.startswith(f"{part}: ") and "bytes in bfloat16" in line for line in shown.splitlines()), shown
        assert "note: generation_config.json: max_new_tokens=3 is not used" in shown
        assert shown.strip().endswith("fine")


@pytest.mark.parametrize("lost", ["model-00002-of-00002.safetensors", "tokenizer.json", "preprocessor_config.json"])
def test_a_folder_that_lacks_a_file_is_refused(tmp_path: Path, lost: str) -> None:
    folder = write_toy_omni(tmp_path / "tiny")
    (folder / lost).unlink()
    with pytest.raises(CheckpointError, match=lost):
        checked(folder)


def test_a_folder_with_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    folder = write_toy_omni(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    config["thinker_config"]["text_config"]["moe_intermediate_size"] += 8
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"thinker\.model\.layers.*shape"):
        checked(folder)


@pytest.mark.parametrize("kind", ["qwen3_omni", None, "llama"])
def test_a_wrong_model_type_is_named_as_the_fault(tmp_path: Path, kind: str | None) -> None:
    folder = write_toy_omni(tmp_path / "tiny")
    changed(folder, "config.json", model_type=kind)
    if kind is None:
        assert checked(folder).strip().endswith("fine")
        return
    with pytest.raises(CheckpointError, match=f"config.json: model_type: '{kind}' contradicts architecture Qwen3Omni"):
        checked(folder)
