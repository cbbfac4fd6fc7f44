"""The parts of `gpu.py`, in their order: each yields rows of what was found, `ok` where it can be right or wrong.

A scene is full or tiny: tiny ones are rehearsals on a CPU, where each kernel is its definition and nothing is fast.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import _gpu_text
import numpy as np

HERE = Path(__file__).resolve().parent
NEAR = 1e-3  # of samples within -1..1, and of log-probabilities
LEVELS = 2  # of 255, by which pictures may differ

Row = dict[str, Any]


class Scene(NamedTuple):
    """Where a part runs, and for how long."""

    device: str
    tiny: bool
    folder: Path  # empty, and its own
    end: float  # on the monotonic clock
    sd3: Path | None = None
    smollm2: Path | None = None

    @property
    def late(self) -> bool:
        return time.monotonic() > self.end


class Part(NamedTuple):
    """What it does, and the seconds that it has."""

    run: Callable[[Scene], Iterator[Row]]
    seconds: float


def environment(scene: Scene) -> Iterator[Row]:
    """What stands here, so that figures mean something."""
    import torch

    found: Row = {"name": "versions", "python": platform.python_version(), "machine": platform.machine()}
    for name in ("torch", "triton", "transformers", "diffusers", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    if scene.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        major, minor = torch.cuda.get_device_capability()
        found |= {"chip": torch.cuda.get_device_name(), "sm": f"{major}{minor}", "cuda": torch.version.cuda or torch.version.hip}
        found |= {"free_gib": round(free / 2**30, 1), "total_gib": round(total / 2**30, 1)}
    x = torch.ones(64, 64, device=scene.device)
    yield found | {"ok": float((x @ x).sum()) == 64.0**3}


def _kernels() -> Any:
    """`kernels.py` of this folder: a package of that name is elsewhere."""
    spec = spec_from_file_location("benchmark_of_kernels", HERE / "kernels.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


def _cases(scene: Scene, module: Any) -> Iterator[Any]:
    """Cases of `kernels.py`; where a scene is tiny, by definitions alone."""
    for case in module.cases(module.Maker(scene.device, scene.tiny)):
        yield replace(case, op=lambda form, op=case.op: op("torch")) if scene.tiny else case


def kernels(scene: Scene) -> Iterator[Row]:
    """Every kernel against its definition, at full size."""
    import torch

    module = _kernels()
    for case in _cases(scene, module):
        if scene.late:
            yield {"name": case.name, "ok": None, "why": "too late"}
            continue
        start = time.monotonic()
        try:
            found = module.error(case)
            if scene.device == "cuda":
                torch.cuda.synchronize()
            row: Row = {"error": found, "ok": found <= (0.0 if case.exact else module.ERROR)}
        except Exception as problem:
            row = {"ok": False, "problem": f"{type(problem).__name__}: {problem}"[:300]}
        yield {"name": case.name, **row, "seconds": round(time.monotonic() - start, 2)}


def speed(scene: Scene) -> Iterator[Row]:
    """Times of kernels beside definitions, torch's own ops and its compiler, as shares of what the device can do."""
    module = _kernels()
    if scene.tiny:
        module.microseconds = _clock
        rate = {"copy": 1e9, "matmul": 1e9}
    else:
        rate = module.rates()
        yield {"name": "rates", "ok": None, "copy_tb_s": rate["copy"] / 1e12, "matmul_tflops": rate["matmul"] / 1e12}
    for case in _cases(scene, module):
        if scene.late:
            yield {"name": case.name, "ok": None, "why": "too late"}
            continue
        case.compiles = case.compiles and not scene.tiny
        try:
            row = module.measure(case, rate, lambda: scene.late)
            yield {"ok": row.pop("right"), **row}
        except Exception as problem:
            yield {"name": case.name, "ok": False, "problem": f"{type(problem).__name__}: {problem}"[:300]}


def _clock(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


def tokens(scene: Scene) -> Iterator[Row]:
    """Greedy decode through the whole runtime: whether tokens are right, and how many there are a second."""
    yield from _gpu_text.decode(scene)


def invariant(scene: Scene) -> Iterator[Row]:
    """Batch-invariant mode: bits of a crowd and of each alone, and what that costs."""
    yield from _gpu_text.invariant(scene)


def omni(scene: Scene) -> Iterator[Row]:
    """Tiny omni models: text, codes and sound there are those of a CPU."""
    from omni_runtime.cards.qwen2_5_omni import qwen2_5_omni
    from omni_runtime.cards.qwen3_omni import qwen3_omni
    from omni_runtime.programs.omni import omni as program_of

    from omni_runtime.runtime import Runtime
    from omni_runtime.toy import write_toy_checkpoint

    for kind, card_of, frames in (("qwen3_omni", qwen3_omni, 12), ("qwen2_5_omni", qwen2_5_omni, 60)):
        folder = scene.folder / kind
        write_toy_checkpoint(kind, folder, 3)
        card = card_of(str(folder))
        program = program_of(card)
        greedy: Row = {
            "temperature": 0.0,
            "repetition_penalty": 1.0,
            "speaker": "ethan",
            "max_frames": frames // (1 + scene.tiny),
        }
        greedy |= {"predict": {"temperature": 0.0}} if kind == "qwen3_omni" else {}
        asked = _messages()[: 2 if scene.tiny else 4]
        answers: dict[str, list[Any]] = {}
        seconds: dict[str, list[float]] = {}
        for device in ("cpu", scene.device):
            with Runtime([card], device=device) as runtime:
                for turn in range(1 if scene.tiny or device == "cpu" else 3):
                    start = time.perf_counter()
                    handles = [
                        runtime.submit(program, messages=messages, seed=turn, think={"max_tokens": 8}, talk=greedy)
                        for messages in asked
                    ]
                    found = [handle.result(120) for handle in handles]
                    seconds.setdefault(device, []).append(time.perf_counter() - start)
                    answers.setdefault(device, found)
        for i, (right, ours) in enumerate(zip(answers["cpu"], answers[scene.device], strict=True)):
            same = {
                port: [tuple(np.atleast_1d(x)) for x in right.outputs[port]]
                == [tuple(np.atleast_1d(x)) for x in ours.outputs[port]]
                for port in ("tokens", "codes")
            }
            apart = float(np.abs(right.audio - ours.audio).max()) if len(right.audio) == len(ours.audio) else -1.0
            fine = all(same.values()) and 0.0 <= apart <= NEAR
            yield {"name": f"{kind}, request {i}", "ok": fine, **{f"same_{k}": v for k, v in same.items()}, "apart": apart}
        yield {"name": kind, "ok": None, "seconds": median(seconds[scene.device]), "first_s": seconds[scene.device][0]}


def _listed(items: Any) -> list[tuple[int, ...]]:
    return [tuple(int(x) for x in np.atleast_1d(item)) for item in items]


def _messages() -> list[Any]:
    dice = np.random.default_rng(5)
    picture = {"type": "image", "image": dice.integers(0, 256, (17, 30, 3)).astype(np.uint8)}
    sound = {"type": "audio", "audio": (0.2 * dice.standard_normal(13_000)).astype(np.float32), "rate": 16_000}
    clip = {"type": "video", "video": dice.integers(0, 256, (6, 24, 17, 3)).astype(np.uint8), "fps": 2.0, "look_fps": 2}
    said = {"type": "text", "text": "What is it?"}
    return ["Hello omni", *([{"role": "user", "content": [one, said]}] for one in (picture, sound, clip))]


def picture(scene: Scene) -> Iterator[Row]:
    """A tiny Stable Diffusion 3: pictures there are those of a CPU."""
    from omni_runtime.cards.sd3 import sd3
    from omni_runtime.programs.paint import paint

    from omni_runtime.runtime import Runtime

    folder = scene.sd3
    if folder is None:
        sys.path.append(str(HERE.parent / "tests" / "experts"))
        try:
            import tiny_sd3
        except ImportError as error:
            yield {"name": "tiny sd3", "ok": None, "why": f"no --sd3, and none can be made: {error}"}
            return
        folder = tiny_sd3.write(scene.folder / "sd3")
    card = sd3(str(folder))
    program = paint(card)
    prompts = ("a cat", "a dog on a mat")
    shown: dict[str, list[Any]] = {}
    for device in ("cpu", scene.device):
        with Runtime([card], device=device) as runtime:
            start = time.perf_counter()
            told = {"steps": 3 if scene.tiny else 8, "width": 32, "height": 32}
            handles = [runtime.submit(program, prompt=prompt, seed=i, denoise=told) for i, prompt in enumerate(prompts)]
            shown[device] = [np.asarray(handle.result(120).outputs["image"][-1], np.int64) for handle in handles]
            seconds = time.perf_counter() - start
    for prompt, right, ours in zip(prompts, shown["cpu"], shown[scene.device], strict=True):
        most = int(np.abs(right - ours).max())
        flat = int(right.max() - right.min()) < 20
        yield {"name": f"tiny sd3, {prompt!r}", "ok": most <= LEVELS and not flat, "levels": most}
    yield {"name": "tiny sd3", "ok": None, "seconds": seconds}


PARTS = {
    "environment": Part(environment, 40.0),
    "kernels": Part(kernels, 120.0),
    "speed": Part(speed, 150.0),
    "tokens": Part(tokens, 130.0),
    "omni": Part(omni, 80.0),
    "picture": Part(picture, 40.0),
    "invariant": Part(invariant, 60.0),
}
