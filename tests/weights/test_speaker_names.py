"""Speakers by name, without torch, and without what a pickle may do."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from omni_runtime.errors import CheckpointError
from omni_runtime.weights.speaker_names import SPEAKERS, read_speaker_names


@pytest.mark.torch
@pytest.mark.parametrize("zipped", [True, False])
def test_names_are_those_that_torch_reads(tmp_path: Path, zipped: bool) -> None:
    torch = pytest.importorskip("torch")
    voice = {"bos_token": 7, "cond": torch.randn(1, 8), "ref_mel": torch.randn(1, 30, 4)}
    many = {name: {**voice, "more": torch.nn.Parameter(torch.ones(2))} for name in ("Ethan", "Chelsie", "日")}
    torch.save(many, tmp_path / SPEAKERS, _use_new_zipfile_serialization=zipped)
    assert read_speaker_names(tmp_path) == ("Chelsie", "Ethan", "日")


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("made_by_a_pickle",)


def packed(path: Path, data: bytes) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("spk_dict/data.pkl", data)


def test_nothing_in_the_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    packed(tmp_path / SPEAKERS, pickle.dumps({"Ann": Evil()}))
    assert read_speaker_names(tmp_path) == ("Ann",)
    assert not Path("made_by_a_pickle").exists()


@pytest.mark.parametrize("data", [b"", b"no pickle", pickle.dumps([1]), pickle.dumps({}), pickle.dumps({1: 2}), b"\x80\x04."])
def test_what_is_no_file_of_speakers_is_told(tmp_path: Path, data: bytes) -> None:
    packed(tmp_path / SPEAKERS, data)
    with pytest.raises(CheckpointError, match=r"spk_dict\.pt.*fetch the file again"):
        read_speaker_names(tmp_path)
    (tmp_path / SPEAKERS).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"spk_dict\.pt.*fetch the file again"):
        read_speaker_names(tmp_path)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((), "holds no speaker"),
        (("Ann", ""), "'' is no name of a speaker"),
        (("Ann", "Bob", "ann"), "'Ann' is there twice, but for its case"),
    ],
)
def test_speakers_that_nobody_could_ask_for(tmp_path: Path, names: tuple[str, ...], told: str) -> None:
    packed(tmp_path / SPEAKERS, pickle.dumps(dict.fromkeys(names, 1)))
    with pytest.raises(CheckpointError, match=told):
        read_speaker_names(tmp_path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"spk_dict\.pt does not exist, .* fetch the file"):
        read_speaker_names(tmp_path)
