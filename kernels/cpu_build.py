"""Compiles the C files beside it for the processor that it will run on, once, and loads it.

The library lies in `OMNI_CACHE`, else in `XDG_CACHE_HOME/omni_runtime` or `~/.cache/omni_runtime`, under a name that tells
source, compiler, flags and processor apart: a home that several machines share holds one for each. Without a compiler, or
where it fails, there is none, and `why()` says so.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch  # brings the OpenMP threads that the library shares with it; with two pools, each waits for the other's

from omni_runtime.errors import OmniError

HERE = Path(__file__).parent
SOURCES = (HERE / "cpu.c", HERE / "cpu_flow.c", HERE / "cpu_sound.c")
PARTS = (*SOURCES, HERE / "cpu_product.h", HERE / "cpu_threads.h")
# No errno, or expf and sqrtf are calls. Contraction as GCC does it by default: every product-sum is one rounding in every kernel.
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC")
SECONDS = 120.0
COMPILERS = ("cc", "gcc", "clang")


def compiler() -> str | None:
    """The command that it would be compiled with, which may have arguments."""
    return os.environ.get("CC") or next((found for name in COMPILERS if (found := shutil.which(name))), None)


def wanted() -> bool:
    """Whether they are taken where nobody names a form: there is a compiler, and `OMNI_KERNELS` does not ask for another form."""
    return compiler() is not None and not os.environ.get("OMNI_KERNELS")


@lru_cache(maxsize=1)
def _built() -> tuple[ctypes.CDLL | None, str]:
    command = compiler()
    if command is None:
        return None, f"no C compiler is installed ({', '.join(COMPILERS)} were looked for)"
    try:
        version = _run([command, "--version"])
        key = "\n".join(
            [*(part.read_text() for part in PARTS), version, *FLAGS, platform.machine(), _processor(), torch.__version__]
        )
        path = _folder() / f"cpu-{hashlib.sha256(key.encode()).hexdigest()[:20]}.so"
        if not path.exists():
            _compile(command, path)
        return ctypes.CDLL(str(path)), ""
    except (OSError, RuntimeError, subprocess.SubprocessError, OmniError) as error:  # RuntimeError: nobody has this home
        return None, f"{command} cannot build {SOURCES[0].name}: {error}"


def library() -> ctypes.CDLL | None:
    """The library, compiled by the first call (two seconds); None where there is none."""
    return _built()[0]


def why() -> str:
    """Why there is none."""
    return _built()[1]


def _compile(command: str, path: Path) -> None:
    """Written beside and renamed: several processes may compile at once."""
    with tempfile.TemporaryDirectory(dir=path.parent) as kept:
        whole = Path(kept) / "cpu.so"

        def build(*more: str) -> None:
            made = [Path(kept) / f"{source.stem}.o" for source in SOURCES]
            for source, part in zip(SOURCES, made, strict=True):
                _run([command, *FLAGS, *more, "-c", str(source), "-o", str(part)])
            _run([command, "-shared", *map(str, made), "-o", str(whole), "-lm"])

        # Linked without OpenMP: its functions are found in the one that torch has loaded.
        build("-fopenmp")
        try:
            ctypes.CDLL(str(whole))
        except OSError:  # torch brought another OpenMP: one thread, then
            build()
        os.replace(whole, path)


def _run(command: list[str]) -> str:
    whole = [*shlex.split(command[0]), *command[1:]]
    found = subprocess.run(whole, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
    if found.returncode:
        raise OmniError(f"{' '.join(command[:1])} failed: {found.stderr.strip()[-400:]}")
    return found.stdout


def _folder() -> Path:
    if named := os.environ.get("OMNI_CACHE"):
        Path(named).mkdir(parents=True, exist_ok=True)
        return Path(named)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omni_runtime"
    for place in (home, Path(tempfile.gettempdir()) / f"omni_runtime-{os.getuid()}"):
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            about = place.stat()
            if about.st_uid != os.getuid() or about.st_mode & 0o022:
                continue  # somebody else could lay a library there for us to run
            with tempfile.TemporaryFile(dir=place):
                return place
        except OSError:
            continue
    raise OmniError(f"neither {home} nor {tempfile.gettempdir()} has a folder that only we can write to; name one in OMNI_CACHE")


def _processor() -> str:
    """What the processor can do: -march=native depends on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
