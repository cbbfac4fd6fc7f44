"""Imports go down the list of layers and never up; everything down to the core is pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest
from checkout import modules

VOCABULARY = {"errors", "card", "request", "draw", "work", "orders", "channel", "program", "loop", "messages"}
VOCABULARY |= {"sound_file", "file_kinds"}
PURE = ["vocabulary", "loops", "scheduler", "flow", "core"]
DEVICE = ["kernels", "weights", "experts", "executors"]
WHOLE = [
    "wav",
    "media_files",
    "sim",
    "costs_file",
    "replay",
    "observe",
    "engine",
    "handle",
    "runtime",
    "serve",
    "find",
    "simulate",
    "toy",
]
WHOLE += ["ask", "picture", "calibrate", "commands", "stopping", "cli", "__main__"]

MAY: dict[str, set[str]] = {}  # layer → layers it may import
MAY |= {layer: set(PURE[: i + 1]) for i, layer in enumerate(PURE)}
MAY |= {layer: {"vocabulary", *DEVICE[: i + 1]} for i, layer in enumerate(DEVICE)}
MAY |= {layer: {*PURE, *DEVICE, *WHOLE[: i + 1]} for i, layer in enumerate(WHOLE)}
MAY["serve"] |= {"cards", "programs"}
MAY["ask"] |= {"cards", "programs"}
MAY["picture"] |= {"cards", "programs"}
MAY["commands"] |= {"package"}
MAY["cli"] |= {"package"}
MAY["package"] = {*PURE, *DEVICE, *WHOLE, "package"}  # what it exports, it imports when asked for

ONLY = {"cards": {"errors", "card", "cards"}, "programs": {"errors", "card", "program", "cards", "programs"}}
# What cards read folders with: small JSON files, no torch. test_import_light.py loads them without it.
LIGHT = {f"omni_runtime.weights.{name}" for name in ("json_file", "decoder_config", "folder_config", "generation")}
LIGHT |= {f"omni_runtime.weights.{name}" for name in ("omni_parts", "speaker_names")}
LIGHT |= {f"omni_runtime.weights.{family}_omni_{name}" for family in ("qwen3", "qwen2_5") for name in ("config", "parts")}

IMPURE = {"torch", "triton", "onnx", "onnxruntime", "time", "datetime", "threading", "asyncio", "concurrent", "multiprocessing"}
IMPURE |= {"queue", "random", "secrets", "uuid"}
FOREIGN = {
    "transformers",
    "diffusers",
}  # what tests compare with; it runs only in the experts below, imported when they are built
WRAPS = {"omni_runtime.experts.sd3_text": "transformers", "omni_runtime.experts.sd3_vae": "diffusers"}


def place(module: str) -> tuple[str, str]:
    """A module's layer, and its name below the package."""
    name = module.removeprefix("omni_runtime").removeprefix(".")
    first = name.split(".")[0]
    return ("vocabulary" if first in VOCABULARY else first or "package"), first


@cache
def nodes(source: str) -> list[ast.AST]:
    """Imports, and uses of numpy's generators; kept, since thirty mutants read the same hundred files."""
    found: list[ast.AST] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Attribute) and node.attr == "random" and ast.unparse(node) in ("np.random", "numpy.random")
        ):
            found.append(node)
    return found


def imports(source: str, module: str, known: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of everything a source imports, also inside functions and under TYPE_CHECKING."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                is_package = any(other.startswith(module + ".") for other in known)
                above = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if inner in known else base
        elif isinstance(node, ast.Attribute):
            yield node.lineno, "random"


@cache
def in_functions(source: str) -> set[int]:
    """Lines that run only when a function is called."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return {line for body in bodies for line in range(body[0].lineno, (body[-1].end_lineno or 0) + 1)}


def violations(sources: Mapping[str, str]) -> list[str]:
    """What is wrong with a set of sources, in the words that a failing test shows."""
    wrong = []
    for module, source in sources.items():
        layer, name = place(module)
        if layer not in MAY and name not in ONLY:
            wrong.append(f"{module} stands in no layer: add it to tests/house/test_layers.py, as low as it can live")
            continue
        pure = layer in PURE or name in ONLY
        inside = in_functions(source)
        for line, target in imports(source, module, sources):
            root = target.split(".")[0]
            if root in ("cards", "programs", "kernels"):
                wrong.append(f"{module}:{line} imports {target}: its name is omni_runtime.{target}")
            wrapped = WRAPS.get(module) == root and line in inside
            if (root in FOREIGN and not wrapped) or (pure and root in IMPURE):
                wrong.append(f"{module}:{line} imports {root}")
            if root == "omni_runtime":
                layer_of_target, name_of_target = place(target)
                fine = name_of_target in ONLY[name] if name in ONLY else layer_of_target in MAY[layer]
                fine = fine or (name == "cards" and target in LIGHT)
                if not fine:
                    wrong.append(f"{module}:{line} imports {target}, which is not below it")
    return wrong


def cycle(sources: Mapping[str, str]) -> list[str]:
    """The modules of one circle of imports, or nothing. What the package itself exports lazily does not count."""
    graph = {m: {t for _, t in imports(s, m, sources) if t in sources and t != m} for m, s in sources.items()}
    graph["omni_runtime"] = set()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return {name: path.read_text() for name, path in modules().items()}


def test_imports_go_down(sources: dict[str, str]) -> None:
    assert violations(sources) == []


def test_no_circles(sources: dict[str, str]) -> None:
    assert cycle(sources) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("loops.mutant", "from omni_runtime.scheduler import rank"),
        ("loops.mutant", "from ..core import Core"),
        ("loops", "from .. import core"),
        ("errors", "import omni_runtime.engine"),
        ("scheduler.mutant", "def now():\n    import time\n    return time.time()"),
        ("scheduler.mutant", "from random import random"),
        ("flow.mutant", "import numpy as np\nnp.random.default_rng()"),
        ("core", "import concurrent.futures"),
        ("core", "import torch.nn as nn"),
        ("experts.mutant", "from transformers import AutoModel"),
        ("experts.mutant", "def build():\n    import diffusers"),
        ("experts.sd3_vae", "import diffusers"),
        ("experts.sd3_vae", "def build():\n    import transformers"),
        ("kernels.mutant", "from omni_runtime.experts import decoder"),
        ("weights.mutant", "from omni_runtime.experts.decoder import Decoder"),
        ("executors.mutant", "from omni_runtime import engine"),
        ("engine", "from omni_runtime.runtime import Runtime"),
        ("handle", "from omni_runtime import Runtime"),
        ("cards.mutant", "from omni_runtime.loop import Loop"),
        ("cards.mutant", "import torch"),
        ("cards.mutant", "from omni_runtime.weights.folder import FolderWeights"),
        ("programs.mutant", "from omni_runtime.runtime import Runtime"),
        ("experts.mutant", "from kernels import rmsnorm"),
        ("misplaced", ""),
    ],
)
def test_a_mutant_is_caught(sources: dict[str, str], module: str, source: str) -> None:
    names = ("scheduler", "scheduler.rank", "core", "engine", "runtime", "experts.decoder", "loop", "loops.other")
    with_mutant = {f"omni_runtime.{n}": "" for n in names} | sources | {f"omni_runtime.{module}": source}
    assert [w for w in violations(with_mutant) if w.startswith(f"omni_runtime.{module}")]


def test_a_circle_is_caught() -> None:
    assert cycle({"omni_runtime.loops.a": "from omni_runtime.loops import b", "omni_runtime.loops.b": "from . import a"})
