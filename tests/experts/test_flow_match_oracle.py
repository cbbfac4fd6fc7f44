"""Our noise levels against the scheduler of diffusers: the same floats, for every option that we offer."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("diffusers")

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import calculate_shift

from omni_runtime.card import FlowMatch
from omni_runtime.loops.flow_match import levels, mu, timestep

pytestmark = [pytest.mark.torch, pytest.mark.oracle]

OPTIONS: list[dict[str, Any]] = [
    {},
    {"shift": 3.0},
    {"shift": 0.4},
    {"shift": 7.3, "num_train_timesteps": 777},
    {"shift": 3.0, "shift_terminal": 0.1},
    {"shift": 3.0, "shift_terminal": 0.0},
    {"use_dynamic_shifting": True},
    {"use_dynamic_shifting": True, "time_shift_type": "linear"},
    {"use_dynamic_shifting": True, "shift_terminal": 0.02, "shift": 3.0},
    {"use_dynamic_shifting": True, "base_shift": 0.3, "max_shift": 2.0, "base_image_seq_len": 64, "max_image_seq_len": 1000},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()) or "plain")
def test_the_same_levels_and_timesteps(options: dict[str, Any]) -> None:
    ours, theirs = FlowMatch(**options), FlowMatchEulerDiscreteScheduler(**options)
    for tokens in (16, 1024, 4096):
        given: dict[str, Any] = {}
        if ours.use_dynamic_shifting:
            line = (ours.base_image_seq_len, ours.max_image_seq_len, ours.base_shift, ours.max_shift)
            given["mu"] = calculate_shift(tokens, *line)
            assert mu(ours, tokens) == pytest.approx(given["mu"], abs=1e-12)
        for steps in (1, 2, 3, 9, 27, 50, 500, 777):
            if steps == 1 and ours.shift_terminal:
                continue  # 0/0 there: see below
            theirs.set_timesteps(steps, **given)
            found = levels(ours, steps, tokens)
            np.testing.assert_array_equal(np.array(found, np.float32), theirs.sigmas.numpy())
            told = [timestep(ours, level) for level in found[:-1]]
            np.testing.assert_array_equal(np.array(told, np.float32), theirs.timesteps.numpy())


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_one_step_with_a_terminal_is_where_we_differ() -> None:
    """Case 19: theirs is NaN, ours the step from noise to nothing that it is without a terminal."""
    theirs = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift_terminal=0.02)
    theirs.set_timesteps(1, mu=0.5)
    assert theirs.sigmas.isnan().any(), "they have mended it: compare above"
    assert levels(FlowMatch(use_dynamic_shifting=True, shift_terminal=0.02), 1, 256) == [1.0, 0.0]


def test_the_euler_step_is_theirs() -> None:
    """As `kernels/euler.py` defines it, over a whole trajectory of a velocity that depends on where it is."""
    from omni_runtime.kernels import guided_euler

    theirs = FlowMatchEulerDiscreteScheduler(shift=3.0)
    theirs.set_timesteps(9)
    mine = x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    found = [torch.tensor([level]) for level in levels(FlowMatch(shift=3.0), 9, 16)]
    here = torch.tensor([0])
    for i, t in enumerate(theirs.timesteps):
        x = theirs.step(torch.tanh(x), t, x, return_dict=False)[0]
        mine, clean = guided_euler(mine, torch.tanh(mine), here, here, torch.ones(1), found[i], found[i + 1])
        torch.testing.assert_close(mine, x, rtol=0, atol=0)
    torch.testing.assert_close(clean, mine, rtol=0, atol=1e-6)
