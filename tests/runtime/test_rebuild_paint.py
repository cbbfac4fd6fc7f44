"""A picture whose latent is lost again and again is the picture that it is undisturbed, whatever it begins again from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forced import Killing, Preempting

from omni_runtime.executors.lineup import lineup
from omni_runtime.runtime import Runtime

pytest.importorskip("diffusers")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experts"))
import tiny_sd3

pytestmark = [pytest.mark.oracle, pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return tiny_sd3.write(tmp_path_factory.mktemp("sd3"))


@pytest.mark.parametrize(("save_every", "kind"), [(0, "loopback"), (3, "loopback"), (8, "loopback"), (3, "process")])
def test_a_picture_goes_on(folder: Path, save_every: int, kind: str) -> None:
    program = tiny_sd3.seen(folder, save_every=save_every)
    cards = list(program.cards.values())
    given: dict[str, Any] = {"prompt": "two birds", "steps": 10, "seed": 3, "preview_every": 2}
    with Runtime(cards, threads=1) as runtime:
        alone = runtime.submit(program, **given).result(60)
    executors: list[Any] = lineup(cards, kind, threads=1)  # type: ignore[arg-type]
    at = len(executors) - 1
    executors[at] = Preempting(executors[at]) if kind == "loopback" else Killing(executors[at], 4, most=9)
    with Runtime(cards, executors=executors) as runtime:
        handle = runtime.submit(program, **given)
        seen: dict[str, int] = {}
        for chunk in handle:
            assert chunk.start == seen.get(chunk.output, 0)
            seen[chunk.output] = chunk.start + len(chunk.items or ())
        result = handle.result(1)
        assert result.rebuilt >= (10 if kind == "loopback" else 1)
        assert result.outputs.keys() == alone.outputs.keys()
        for name, items in alone.outputs.items():
            for mine, his in zip(result.outputs[name], items, strict=True):
                np.testing.assert_allclose(mine, his, atol=1e-4)
        assert runtime.idle
