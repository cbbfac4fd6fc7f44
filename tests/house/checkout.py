"""The files of this checkout, found and never listed, so that a house test also holds for what is added tomorrow."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {  # what ships, and the name it has there
    "omni_runtime": ROOT / "omni_runtime",
    "omni_runtime.cards": ROOT / "cards",
    "omni_runtime.programs": ROOT / "programs",
    "omni_runtime.kernels": ROOT / "kernels",
}


@cache
def modules() -> dict[str, Path]:
    """Every module that ships, by its import name; a package goes by the name of its folder."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([package, *parts]).removesuffix(".__init__")] = path
    return found


@cache
def files() -> list[Path]:
    """Every file that is tracked or about to be."""
    ask = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(ask, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive has no git
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
        names = [n for n in names if not any(part.startswith(".") or part in ("build", "__pycache__") for part in Path(n).parts)]
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]
