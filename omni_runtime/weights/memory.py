"""What a decoder needs in memory, from its shape alone: asked before anything is read. Loads without torch."""

from __future__ import annotations

import math
from pathlib import Path

from omni_runtime.errors import CheckpointError
from omni_runtime.weights.decoder_config import DecoderConfig, layer_shapes, parameter_shapes

PACKED_FROM = 400_000  # elements: a smaller weight gains nothing (row 2 of the table in `experts/linear.py`)
ROOM = 1024  # positions of KV that must fit beside the weights
_FUSED = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


def weight_bytes(config: DecoderConfig, layout: str = "auto", each: int = 4) -> int:
    """Bytes of the resident weights: of layout "auto" without a compiler, with the second copies of large matrices; by our own
    kernels one copy in their type, without the padding of their panels; else one of `each` bytes a number."""
    from omni_runtime.kernels.cpu_build import wanted  # brings torch

    element = {"native": 4, "bfloat16": 2, "int8": 1, "auto": 4 if wanted() else 0}.get(layout, 0)
    if element:
        shapes = parameter_shapes(config)
        flat = {name: math.prod(shape) for name, shape in shapes.items()}
        whole = [
            size for name, size in flat.items() if len(shapes[name]) == 1 or name.endswith(("gate.weight", "embed_tokens.weight"))
        ]
        head = flat["model.embed_tokens.weight"] if config.head and config.tied else 0
        return 4 * sum(whole) + element * (sum(flat.values()) - sum(whole) + head)
    sparse = config.sparse.layers if config.sparse else frozenset()
    dense = next((i for i in range(config.layers) if i not in sparse), None)
    head = config.vocab * config.width
    total = config.vocab * (config.embedding or config.width) + config.width
    if config.head:
        total += (0 if config.tied and layout != "packed" else head) + _second(head, layout)
    for example, count in ((next(iter(sparse), None), len(sparse)), (dense, config.layers - len(sparse))):
        if example is not None:
            shapes = layer_shapes(config, example)
            linear = {name: math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and ".experts." not in name}
            seconds = [sum(size for name, size in linear.items() if name.split(".")[1] in parts) for parts in _FUSED]
            total += count * (sum(map(math.prod, shapes.values())) + sum(_second(size, layout) for size in seconds))
    return each * total


def _second(elements: int, layout: str) -> int:
    return elements if layout == "auto" and elements >= PACKED_FROM else 0


def available() -> int | None:
    """Bytes that the system could give without swapping (MemAvailable of Linux), or None where it does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kilobytes is None else 1024 * int(kilobytes)


def needs(config: DecoderConfig, layout: str = "auto", each: int = 4) -> tuple[int, int]:
    """(bytes of weights, bytes of KV of the shortest context that is of use: `ROOM` positions, or all if there are fewer)."""
    return weight_bytes(config, layout, each), config.kv_bytes * each // 4 * min(ROOM, config.positions)


def check(folder: Path, config: DecoderConfig, layout: str = "auto", max_bytes: int = 0, each: int = 4) -> None:
    """Whether weights and a short context fit.

    Args:
        folder: for the message.
        config: the shape.
        layout: of linear layers.
        max_bytes: what may be used; 0 means what the system has available, and no check where it does not tell.
        each: bytes of a number, in layouts that keep weights as they are.

    Raises:
        CheckpointError: they do not; says what is needed and what there is.
    """
    room = max_bytes or available()
    weights, cache = needs(config, layout, each)
    if room is not None and weights + cache > room:
        positions, bytes_each = min(ROOM, config.positions), config.kv_bytes * each // 4
        what = f"weights need {_gib(weights)}, KV of {positions} positions {_gib(cache)} ({bytes_each} bytes each)"
        source = "max_bytes allows" if max_bytes else "available are"
        twice = " linear='bfloat16' or 'int8' takes a half or a quarter of that;" if layout in ("auto", "native") else ""
        raise CheckpointError(f"{folder}: {what}, {source} {_gib(room)};{twice} free memory or use a smaller model")


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.2f} MiB"
