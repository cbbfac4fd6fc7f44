"""All that can only be known on a GPU, in one command: what is right there, and how fast it is.

    python benchmarks/gpu.py                    on a machine with a GPU: under ten minutes; JSON lines at once, a table at the end
    python benchmarks/gpu.py --rehearse         the same script at tiny sizes on a CPU: whether it would run
    python benchmarks/gpu.py --pack .gpu        what a bare machine lacks: wheels and a tiny Stable Diffusion 3

Each part is a process of its own, since an illegal access takes a process's GPU with it; one that fails or is late is written
down, and the next one begins. `gpu.jsonl` and `gpu.md` go to $OUT, if there is such a folder. Parts: `_gpu_parts.py`.
Without a GPU it says so and ends well.

On the machine that this workplace lends, whose checkout has no packages of ours (README.md of this folder tells what is carried):

    pip install -q --no-index --no-deps --target .site .gpu/*.whl && PYTHONPATH=.site:. python3 benchmarks/gpu.py --sd3 .gpu/sd3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import omni_runtime  # noqa: E402

assert omni_runtime
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]  # there is kernels/, a name of transformers

from _gpu_parts import PARTS, Scene  # noqa: E402

GRACE = 15.0  # seconds after its time that a part has to end by itself
LIMIT = 560.0  # seconds of all parts together: a command on the lent machine has 600
WHEELS = (
    "pydantic",
    "pydantic-core",
    "msgspec",
    "annotated-types",
    "diffusers",
    "importlib-metadata",
)  # which that machine lacks
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


class Log:
    """Lines as they come: to the screen, and to a file of $OUT."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._folder = Path(folder) if (folder := os.environ.get("OUT")) else None

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        line = json.dumps(row, default=str)
        print(line, flush=True)
        if self._folder:
            with (self._folder / "gpu.jsonl").open("a") as file:
                file.write(line + "\n")

    def table(self, text: str) -> None:
        print(text)
        if self._folder:
            (self._folder / "gpu.md").write_text(text + "\n")


def failed(part: str, error: BaseException) -> dict[str, Any]:
    told = "".join(traceback.format_exception(error))
    return {
        "part": part,
        "name": "failed",
        "ok": False,
        "problem": f"{type(error).__name__}: {error}"[:300],
        "trace": told[-3000:],
    }


def rows_of(part: str, scene: Scene) -> Iterator[dict[str, Any]]:
    """The rows of a part in this process; what goes wrong is the last one."""
    try:
        for row in PARTS[part].run(scene):
            yield {"part": part, **row}
    except Exception as error:
        yield failed(part, error)


def apart(part: str, seconds: float, given: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a part in a process of its own, which ends when its time is over."""
    command = [sys.executable, __file__, "--part", part, "--seconds", f"{seconds:.0f}", *given]
    said: list[str] = []
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        listener = threading.Thread(target=lambda: said.extend(child.stderr or []), daemon=True)
        listener.start()
        late = threading.Timer(seconds + GRACE, child.kill)  # parts stop by themselves; this is for one that hangs
        late.start()
        try:
            for line in child.stdout:
                try:
                    row = json.loads(line)
                except ValueError:  # somebody's remark
                    print(line, end="", flush=True)
                    continue
                yield row
        finally:
            late.cancel()
            if child.poll() is None and sys.exc_info()[0] is not None:
                child.kill()
            code = child.wait()
            listener.join(5.0)
    if code:
        why = "too late" if code == -9 and time.monotonic() - start > seconds else f"its process ended with {code}"
        yield {"part": part, "name": "failed", "ok": False, "problem": why, "trace": "".join(said)[-3000:]}


def table(rows: list[dict[str, Any]], title: str) -> str:
    """Markdown: a row a result, what was measured of it beside it."""
    lines = [title, "", "| part | name | right | figures |", "|---|---|---|---|"]
    for row in rows:
        told = {key: value for key, value in row.items() if key not in ("part", "name", "ok", "trace")}
        figures = ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in told.items())
        verdict = {True: "yes", False: "**no**", None: ""}[row.get("ok")]
        lines.append(f"| {row['part']} | {row['name']} | {verdict} | {figures.replace('|', '/')} |")
    return "\n".join(lines)


def pack(folder: Path) -> None:
    """Puts what a bare machine lacks into a folder, to be carried there."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12"]
    platforms = [argument for name in PLATFORMS for argument in ("--platform", name)]
    found = {name: version for name in WHEELS if (version := _version(name))}
    wanted = [f"{name}=={version}" for name, version in found.items()]
    missing = [name for name in WHEELS if name not in found]
    subprocess.run([*pip, "--implementation", "cp", *platforms, "-d", str(folder), *wanted, *missing], check=True)
    sys.path.append(str(ROOT / "tests" / "experts"))
    import tiny_sd3

    tiny_sd3.write(folder / "sd3")
    print(f"{folder}: {sum(p.stat().st_size for p in folder.rglob('*') if p.is_file()) / 2**20:.1f} MiB to carry")


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def scene_of(args: argparse.Namespace, folder: Path) -> Scene:
    device = "cpu" if args.rehearse else "cuda"
    return Scene(device, args.rehearse, folder, time.monotonic() + args.seconds, args.sd3, args.smollm2)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a CPU")
    parser.add_argument("--only", default="", help=f"parts whose name contains this: {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=LIMIT, help="of all parts together")
    parser.add_argument("--sd3", type=Path, help="folder of a tiny Stable Diffusion 3; one is made where there is diffusers")
    parser.add_argument("--smollm2", type=Path, help="its GGUF file; else that of the package, or a random model of its shape")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="put there what a bare machine lacks, and end")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.only and not any(args.only in name for name in PARTS):
        parser.error(f"--only {args.only}: no part of that name; there are {', '.join(PARTS)}")
    if args.seconds != args.seconds or args.seconds <= 0:
        parser.error(f"--seconds {args.seconds}: a number above 0 is needed")
    if (out := os.environ.get("OUT")) and not Path(out).is_dir():
        parser.error(f"OUT={out}: no such folder; make it, or unset OUT")
    if args.pack:
        pack(args.pack)
        return 0
    if args.part:
        with tempfile.TemporaryDirectory() as kept:
            for row in rows_of(args.part, scene_of(args, Path(kept))):
                print(json.dumps(row, default=str), flush=True)
        return 0
    import torch

    log = Log()
    if not args.rehearse and not torch.cuda.is_available():
        log.add({"part": "all", "name": "not run on a GPU", "ok": None, "why": "this machine has none"})
        log.table(table(log.rows, f"{time.strftime('%Y-%m-%d')}, not run on a GPU"))
        return 0
    chip = "rehearsed on a CPU" if args.rehearse else torch.cuda.get_device_name()
    end = time.monotonic() + args.seconds
    given = ["--rehearse"] if args.rehearse else []
    given += [f"--{name}={value}" for name in ("sd3", "smollm2") if (value := getattr(args, name))]
    for name, part in PARTS.items():
        if args.only not in name:
            continue
        left = end - time.monotonic()
        if left < 20.0:
            log.add({"part": name, "name": "left out", "ok": None, "why": f"{left:.0f} s were left"})
            continue
        seconds, start = min(part.seconds, left - 15.0), time.monotonic()
        if args.rehearse and name != "environment":  # one child shows that children work
            with tempfile.TemporaryDirectory() as kept:
                found = list(rows_of(name, scene_of(args, Path(kept))))
        else:
            found = []
            for row in apart(name, seconds, given):
                found.append(row)
                log.add(row)
        if args.rehearse and name != "environment":
            for row in found:
                log.add(row)
        log.add({"part": name, "name": "took", "ok": None, "seconds": round(time.monotonic() - start, 1), "rows": len(found)})
    log.table(table(log.rows, f"{time.strftime('%Y-%m-%d')}, {chip}"))
    return int(any(row.get("ok") is False for row in log.rows))


if __name__ == "__main__":
    sys.exit(main())
