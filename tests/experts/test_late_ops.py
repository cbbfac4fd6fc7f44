"""Ops of flows, vocoders and pictures, launched as on a GPU: two batches at once give what each gives by itself, and what is
found when they are read changes nothing."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from fake_graphs import launching, noticed  # noqa: E402
from hibari_toys import decode, frames, row, steps, toy  # noqa: E402

from omni_runtime.draw import Draw  # noqa: E402
from omni_runtime.experts import hibari_vocoder  # noqa: E402
from omni_runtime.experts.flow_op import FlowOp  # noqa: E402
from omni_runtime.experts.flow_window import Moved  # noqa: E402
from omni_runtime.experts.sd3_vae import SD3VAE  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.work import CallStep, FlowStep, Row  # noqa: E402

CPU = torch.device("cpu")


# -- hibari: three streams in pieces, up to two batches on the device


def spoken(seed: int) -> None:
    draw, expert, slots = random.Random(seed), toy(), Slots("gpu#1")
    expert.late = True
    tables = [frames(30, 41, seed=1), frames(52, seed=2), frames(9, 3, 40, seed=3)]
    todo = [list(steps(table, [draw.randint(3, 30) for _ in range(3)])) for table in tables]
    found: list[list[Any]] = [[] for _ in tables]
    flying: list[Any] = []
    while any(todo) or flying:
        free = [i for i, left in enumerate(todo) if left and all(i not in some for some, _ in flying)]
        if free and len(flying) < 2:
            some = draw.sample(free, draw.randint(1, len(free)))
            flying.append((some, expert.decode_audio([row(todo[i].pop(0), i) for i in some], slots)))
        if flying and (len(flying) == 2 or draw.random() < 0.5):
            some, launched = flying.pop(0)
            for i, result in zip(some, launched.collect(), strict=True):
                found[i].append(result.items["samples"])
    for table, parts in zip(tables, found, strict=True):
        np.testing.assert_allclose(np.concatenate(parts), decode(toy(), table), rtol=0, atol=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_hibari_streams(seed: int) -> None:
    spoken(seed)


def test_a_row_that_gets_anothers_noise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug planted: all rows of a batch get the noise of its first."""
    send = hibari_vocoder.Staging.send

    def mixed(self: Any, arrays: Any) -> Any:
        complex_ = [name for name, array in arrays.items() if np.iscomplexobj(array)]
        first = {name: np.resize(arrays[complex_[0]], arrays[name].shape) for name in complex_}
        return send(self, {**arrays, **first})

    monkeypatch.setattr(hibari_vocoder.Staging, "send", mixed)
    with noticed():
        spoken(0)


# -- A flow whose velocity is made up


class Pull:
    """Pulls towards the sum of its codes."""

    class config:
        block, repeats, mels = 4, 1, 3

    device, exact = CPU, True

    def voice(self, condition_K: Any, mel_TM: Any) -> Any:
        return condition_K

    def velocity(self, windows: Any) -> Any:
        pulls = [1 if one.past is None else 1 + one.past.mean() for one in windows]
        return [Moved(sum(one.codes) - one.x_TM * pull, one.x_TM.mean(0)) for one, pull in zip(windows, pulls, strict=True)]


def flows(late: bool, poison: bool = False) -> dict[int, list[Any]]:
    """Two streams of two chunks of four calls; with `late`, the second's batch is launched while the first's is on the device."""
    expert, slots = FlowOp(Pull(), {"x": (torch.zeros(2), torch.zeros(1, 3))}), Slots("gpu#1")  # type: ignore[arg-type]
    expert.late = late
    found: dict[int, list[Any]] = {1: [], 2: []}
    for chunk in range(2):
        for call in range(4):
            flying = []
            for run in found:
                width, (start, stop) = 1e38 if poison and run == 2 else 0.3, (4 * chunk, 4 * chunk + 4)
                codes = (run, 2, 3, 4)
                step = FlowStep(chunk, call, 4, call / 4, width, start, stop, stop, codes, 0.0, Draw(run, 1), "x")
                with launching() if late else nullcontext():
                    made = expert.velocity([Row(run, "flow", 1, 0, (), step)], slots)
                flying.append((run, made))
            for run, made in flying:
                results = made.collect() if late else made
                found[run] += [result.items["mel"] for result in results if "mel" in result.items]
    return found


def test_flows() -> None:
    late, plain = flows(True), flows(False)
    for run, parts in plain.items():
        assert len(parts) == 2 and np.array_equal(np.concatenate(parts), np.concatenate(late[run])) and np.std(parts) > 0.1


def test_frames_that_are_no_numbers_are_found_when_they_are_read() -> None:
    with pytest.raises(FloatingPointError, match="frames 0 to 4 of a flow are not numbers"):
        flows(True, poison=True)


# -- Pictures


def pictures(late: bool, latents: list[Any]) -> Any:
    expert, slots = SD3VAE(lambda latent: latent[:, :3] * 0.5, 2.0, 0.1, late), Slots("gpu#1")
    rows = []
    for run, latent in enumerate(latents):
        ref = slots.keep(Row(run, "x", 1, 0, (), CallStep(0, {}, {}, {})), "latent", 0, latent)
        rows.append(Row(run, "decode", 1, 0, (), CallStep(0, {}, {"latent": (ref,)}, {})))
    with launching() if late else nullcontext():
        return expert.decode(rows, slots)


def test_pictures() -> None:
    latents = [torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    late, plain = pictures(True, latents).collect(), pictures(False, latents)
    for one, other in zip(late, plain, strict=True):
        assert np.array_equal(one.items["image"][0], other.items["image"][0]) and one.items["image"][0].std() > 5
    latents[1][0, 0, 0] = float("inf")
    launched = pictures(True, latents)
    with pytest.raises(FloatingPointError, match="request 1, loop 'decode': the picture is not finite"):
        launched.collect()
