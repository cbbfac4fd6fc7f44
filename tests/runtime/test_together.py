"""Ten requests of all three kinds on one executor: each equals its solo run, and text keeps flowing beside pictures."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("diffusers")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experts"))
import tiny_sd3
from omni_runtime.cards.sd3 import sd3
from omni_runtime.programs.illustrate import illustrate

from omni_runtime.observe.recorder import Recorder
from omni_runtime.runtime import Runtime

pytestmark = [pytest.mark.torch, pytest.mark.oracle, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PROMPTS = ["a red cat", "What do bees make?", "two blue boats", "Name three colours.", "a hill"]


def asked(at: int) -> dict[str, Any]:
    outputs = [["text"], ["image"], ["text", "audio"], ["image", "progress"], ["text", "audio", "image"]][at % 5]
    given: dict[str, Any] = {"prompt": PROMPTS[(at * 3) % 5], "outputs": outputs, "seed": at}
    if "text" in outputs:
        given["max_tokens"] = 8 + 2 * at
    if "image" in outputs:
        given |= {"steps": 4 + 3 * at, "guidance_scale": 1.0 if at % 2 else 5.0}
    return given


def test_ten_requests_of_three_kinds(tmp_path: Path) -> None:
    program = illustrate(brush=sd3(str(tiny_sd3.write(tmp_path / "sd3"))))
    recorder = Recorder()
    with Runtime(program.cards.values(), executor="loopback", threads=1, observers=[recorder]) as runtime:
        alone = [runtime.submit(program, **asked(at)).result(120) for at in range(10)]
        crowd = [h.result(300) for h in [runtime.submit(program, **asked(at)) for at in range(10)]]
    for at, (one, many) in enumerate(zip(alone, crowd, strict=True)):
        assert one.outputs.keys() == many.outputs.keys()
        assert one.finish == many.finish
        for name, value in one.outputs.items():
            if name == "audio":
                np.testing.assert_allclose(value, many.outputs[name], atol=1e-4)
            elif name == "image":
                assert np.abs(np.int16(value[0]) - np.int16(many.outputs[name][0])).max() <= 1, f"request {at}"
            else:
                assert value == many.outputs[name], f"request {at}: {name}"
    units = [u for u in recorder.record().units if u.batch.executor == "cpu#1" and u.run.id > 10]
    order = {batch: place for place, batch in enumerate(sorted({u.batch.number for u in units}))}
    gaps = []
    for run in {u.run.id for u in units}:
        steps = sorted(order[u.batch.number] for u in units if u.run.id == run and u.loop == "think")
        gaps += [b - a for a, b in itertools.pairwise(steps)]
    print(f"largest gap between two tokens of a stream: {max(gaps)} batches, of {len(order)}")
    # Six groups can be ready at once: think, utter, speak, encode, denoise, decode. Pictures are decoded one by one, so a few of
    # those may have been ready longer; the pictures' dozens of steps never go first together.
    assert max(gaps) <= 12
