"""One picture on the command line: progress goes to the terminal, previews and the picture to PNG files."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from omni_runtime.cards.sd3 import sd3
from omni_runtime.errors import MissingExtra, RequestError
from omni_runtime.executors.lineup import Kind
from omni_runtime.handle import Handle
from omni_runtime.observe.watch import Watch
from omni_runtime.programs.paint import paint
from omni_runtime.request import resolve
from omni_runtime.runtime import Runtime


class Order(Struct, frozen=True):
    """What `omni paint` asks for; see its options. None leaves it to the card."""

    prompt: str
    checkpoint: Path
    out: Path
    steps: int | None = None
    guidance_scale: float | None = None
    negative_prompt: str = ""
    width: int | None = None
    height: int | None = None
    seed: int | None = None
    preview_every: int = 0
    json: bool = False
    threads: int | None = None
    device: str = "cpu"
    executor: Kind = "thread"
    batch_invariant: bool = False
    timeline: Path | None = None
    trace: Path | None = None
    live: bool | None = None
    record: Path | None = None
    redact: bool = False


def draw(order: Order) -> None:
    """Loads the model, paints, and writes the picture, with what it took to standard output.

    Raises:
        OmniError: an option is wrong, the model cannot be loaded, or the request failed.
    """
    image_file()  # before anything is loaded
    if not order.out.resolve().parent.is_dir():
        raise RequestError(f"{order.out}: its folder does not exist; make it first")
    live = False if order.json else order.live
    watch = Watch(order.timeline, order.trace, live, order.prompt[:60], order.record, order.redact)
    card = sd3(str(order.checkpoint))
    program = paint(card)
    asked = {name: getattr(order, name) for name in ("steps", "guidance_scale", "width", "height")}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    given |= {"prompt": order.prompt, "negative_prompt": order.negative_prompt, "preview_every": order.preview_every}
    outputs = ("image", "progress", "preview") if order.preview_every else ("image", "progress")
    checked = resolve(0, program, 0, given, outputs=outputs, seed=order.seed)[1]  # wrong options, before loading
    began = time.perf_counter()
    chosen: Any = {"threads": order.threads, "executor": order.executor, "record": watch.recording}
    chosen |= {"device": order.device, "batch_invariant": order.batch_invariant}
    with watch, Runtime([card], observers=watch.observers, **chosen) as runtime:
        loaded = time.perf_counter() - began
        handle = runtime.submit(program, outputs=outputs, seed=order.seed, **given)
        with watch.stream():
            _follow(handle, order, checked.params["denoise"].steps, quiet=order.json or watch.live)
        result = handle.result()
    height, width, _ = result.outputs["image"][0].shape
    told = {
        "path": str(order.out),
        "width": width,
        "height": height,
        "seed": result.seed,
        "steps": result.usage["denoise"]["steps"],
        "units": result.units,
        "load_s": loaded,
        "total_s": result.timings.total,
    }
    if order.json:
        print(json.dumps(told))
    else:
        steps = f"{told['steps']} steps in {result.timings.total:.2f} s"
        print(f"{order.out}: {width} x {height}, seed {result.seed}, {steps}, model loaded in {loaded:.2f} s")


def _follow(handle: Handle, order: Order, steps: int, quiet: bool) -> None:
    """Shows the steps, unless a live view does, and writes what comes."""
    shows = sys.stderr.isatty() and not quiet
    previews = done = 0
    began = time.perf_counter()
    for chunk in handle:
        for item in chunk.items or ():
            if chunk.output == "image":
                write_png(order.out, item)
            elif chunk.output == "preview":
                previews += 1
                write_png(order.out.with_suffix(f".step{previews * order.preview_every}.png"), item)
            else:
                done += 1
                if shows:
                    left = (time.perf_counter() - began) / done * (steps - done)
                    print(f"\r\033[Kstep {done} of {steps}, {left:.0f} s left", end="", file=sys.stderr, flush=True)
    if shows:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def image_file() -> Any:
    """The module that writes picture files.

    Raises:
        MissingExtra: pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra(f"pictures need pillow: pip install 'omni_runtime[diffusers]' ({error})") from None
    return Image


def write_png(path: Path, pixels: Any) -> None:
    """Writes uint8 [height, width, 3] as a PNG file; a reader never sees half of it."""
    half = path.with_name(f".{path.name}.part")
    try:
        image_file().fromarray(pixels).save(half, format="PNG")
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
