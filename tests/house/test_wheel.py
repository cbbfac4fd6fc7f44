"""The wheel holds what the tree holds: a folder that pyproject.toml does not list stays out without a word."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checkout import FOLDERS, ROOT

BUILD = "from setuptools import build_meta; build_meta.build_wheel('out')"


def build(source: Path) -> zipfile.ZipFile:
    """Builds the wheel of a copy of the tree, since setuptools also packs what an earlier build left behind."""
    (source / "out").mkdir()
    subprocess.run([sys.executable, "-W", "ignore", "-c", BUILD], cwd=source, check=True, capture_output=True)
    return zipfile.ZipFile(next((source / "out").glob("*.whl")))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in FOLDERS.values():
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def in_tree(root: Path) -> set[str]:
    return {
        f"{package.replace('.', '/')}/{path.relative_to(root / folder.name).as_posix()}"
        for package, folder in FOLDERS.items()
        for path in (root / folder.name).rglob("*")
        if path.is_file()
    }


def in_wheel(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_wheel_is_the_tree(copy: Path) -> None:
    wheel = build(copy)
    assert in_wheel(wheel) == in_tree(copy)
    assert "omni_runtime/py.typed" in wheel.namelist()
    meta = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    assert {"LICENSE", "NOTICE"} <= set(meta)
    assert "omni = omni_runtime.cli:main" in wheel.read(meta["entry_points.txt"]).decode()


def test_a_folder_that_nobody_listed_is_seen(copy: Path) -> None:
    lost = copy / "cards" / "inner"
    lost.mkdir()
    (lost / "__init__.py").write_text("")
    assert in_tree(copy) - in_wheel(build(copy)) == {"omni_runtime/cards/inner/__init__.py"}
