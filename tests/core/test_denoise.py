"""The denoise loop without a device: schedules, limits, units, previews."""

from __future__ import annotations

import re
from itertools import pairwise
from math import exp, isfinite
from typing import Any

import pytest
from toys import CARD, PROGRAMS
from watch import Watch

from omni_runtime.card import DiffusionDenoise, FlowMatch, Raster
from omni_runtime.errors import CardError, RequestError
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.loops.flow_match import levels, mu, timestep
from omni_runtime.program import Program
from omni_runtime.request import resolve
from omni_runtime.sim import SimHandle, Simulation
from omni_runtime.work import Command, DenoiseStep, Preempt, RunBatch

SCHEDULES = {
    "plain": FlowMatch(),
    "static": FlowMatch(shift=3.0),
    "exponential": FlowMatch(use_dynamic_shifting=True),
    "linear": FlowMatch(use_dynamic_shifting=True, time_shift_type="linear"),
    "terminal": FlowMatch(use_dynamic_shifting=True, shift_terminal=0.02),
    "static-terminal": FlowMatch(shift=2.0, shift_terminal=0.1),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 3, 9, 27, 999, 1000])
def test_n_steps_are_n_finite_falling_levels(name: str, steps: int) -> None:
    """Case 19: schedules that divide by n - 1, or by 1 - the last level, give NaN at n = 1."""
    found = levels(SCHEDULES[name], steps, 64)
    assert len(found) == steps + 1
    assert all(map(isfinite, found))
    assert found[0] == 1.0, "it starts from pure noise"
    assert found[-1] == 0.0
    assert all(high > low for high, low in pairwise(found))
    assert timestep(SCHEDULES[name], found[0]) == 1000.0


def test_the_shifts_do_what_their_formulas_say() -> None:
    third = levels(FlowMatch(), 3, 1)[1]
    assert third == pytest.approx((1 + 0.001) / 2)
    ends = 3 * 0.001 / (1 + 2 * 0.001)
    middle = (1 + ends) / 2
    assert levels(FlowMatch(shift=3.0), 3, 1)[1] == pytest.approx(3 * middle / (1 + 2 * middle), rel=1e-6)
    moving = SCHEDULES["exponential"]
    assert (mu(moving, 256), mu(moving, 4096)) == pytest.approx((0.5, 1.15))
    weight = exp(mu(moving, 1024))
    assert levels(moving, 3, 1024)[1] == pytest.approx(weight / (weight + 1 / third - 1), rel=1e-6)
    weight = mu(moving, 1024)
    assert levels(SCHEDULES["linear"], 3, 1024)[1] == pytest.approx(weight / (weight + 1 / third - 1), rel=1e-6)
    assert levels(SCHEDULES["terminal"], 9, 64)[-2] == pytest.approx(0.02)
    assert levels(moving, 9, 64) != levels(moving, 9, 4096), "the picture's size is looked at"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shift": 0.0}, "shift"),
        ({"shift_terminal": 1.0}, "shift_terminal"),
        ({"time_shift_type": "cubic"}, "time_shift_type"),
        ({"base_image_seq_len": 4096}, "differ"),
        ({"use_karras_sigmas": True}, "use_karras_sigmas"),
    ],
)
def test_a_wrong_schedule_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(CardError, match=words):
        FlowMatch(**fields)


# -- Case 18: sizes


def picture(**fields: Any) -> Program:
    """The toy's `paint` on a model of 512 x 512 pictures in steps of 16."""
    raster = Raster(channels=4, factor=8, patch=2, largest=1536, width=512, height=512)
    loop = CARD.loops["paint"].model_copy(update={"raster": raster, **fields})
    card = CARD.model_copy(update={"loops": {**CARD.loops, "paint": loop}})
    p = Program("picture", card)
    p.output("progress", p.loop("paint", conditioning=p.loop("encode", messages=p.input("messages")).hidden).progress)
    return p


def ask(program: Program, **fields: Any) -> Any:
    return resolve(1, program, 0, {"messages": "m", **fields})[1].params["paint"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"width": 1920, "height": 1080}, "width: multiples of 16 from 16 to 1536 are allowed, nearest 1536, not 1920"),
        ({"width": 1000}, "nearest 992 and 1008, not 1000"),
        ({"height": 1080}, "height: multiples of 16 from 16 to 1536 are allowed, nearest 1072 and 1088, not 1080"),
        ({"width": 17, "height": 16}, "nearest 16 and 32, not 17"),
        ({"width": 8, "height": 8}, "nearest 16, not 8"),
        ({"width": 0, "height": 0}, "nearest 16, not 0"),
        ({"width": -16}, "nearest 16, not -16"),
        ({"width": 16, "height": 100_000}, "nearest 1536, not 100000"),
        ({"width": "512X512"}, "width"),
        ({"width": "512x"}, "width"),
        ({"width": 512.0}, "width"),
    ],
)
def test_a_size_off_the_grid_is_refused_with_the_nearest(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match=re.escape(told)):
        ask(picture(), **fields)


def test_sizes_on_the_grid_are_taken_and_the_cards_is_the_default() -> None:
    made = ask(picture(), width=1536, height=16)
    assert (made.width, made.height) == (1536, 16)
    assert (ask(picture()).width, ask(picture()).height) == (512, 512)
    raster = picture().spec("paint").raster
    assert raster.latent(1536, 16) == (4, 2, 192)


@pytest.mark.parametrize("fields", [{"largest": 8, "factor": 8, "patch": 2}, {"width": 20, "factor": 8}, {"patch": 0}])
def test_a_raster_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(CardError):
        Raster(**fields)


# -- Case 19: steps


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"steps": 0}, "0"),
        ({"steps": -1}, "-1"),
        ({"steps": 2.5}, "2.5"),
        ({"steps": "9"}, "'9'"),
        ({"steps": True}, "True"),
        ({"steps": 1001}, "at most 1000"),
        ({"guidance_scale": 0.9}, "0.9"),
        ({"guidance_scale": float("inf")}, "finite"),
    ],
)
def test_wrong_steps_and_scales_are_refused(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(RequestError, match=rf"{next(iter(fields))}.*{re.escape(word)}"):
        ask(picture(), **fields)


def test_a_model_without_guidance_refuses_it() -> None:
    assert ask(picture(branches=1), guidance_scale=1.0).guidance_scale == 1.0
    with pytest.raises(RequestError, match=r"guidance_scale.*takes no guidance"):
        ask(picture(branches=1), guidance_scale=2.0)


def run(outputs: tuple[str, ...] | None = None, **fields: Any) -> tuple[SimHandle, list[tuple[int, DenoiseStep]]]:
    """A painted request, and the size and payload of every denoise step that it took."""
    world = Watch()
    handle = world.submit(PROGRAMS["paint"], messages="m", outputs=outputs, paint=fields)
    world.finish_all()
    rows = [row for batch in world.batches for row in batch.rows]
    return handle, [(row.size, row.payload) for row in rows if isinstance(row.payload, DenoiseStep)]


@pytest.mark.parametrize("steps", [1, 2, 3, 9])
@pytest.mark.parametrize(("scale", "rows"), [(1.0, 1), (7.0, 2)])
def test_exactly_n_units_of_as_many_rows_as_branches(steps: int, scale: float, rows: int) -> None:
    """Without guidance a step is one row: the unconditional pass is not run and not paid for."""
    handle, took = run(steps=steps, guidance_scale=scale)
    assert [size for size, _ in took] == [rows] * steps
    assert [step.step for _, step in took] == list(range(steps))
    assert handle.chunks["progress"] == [(i + 1) / steps for i in range(steps)]
    assert [step.keep for _, step in took] == [()] * (steps - 1) + [("latent",)]
    for (_, one), (_, after) in pairwise(took):
        assert one.target == after.sigma


@pytest.mark.parametrize(
    ("steps", "every", "at"), [(9, 3, [3, 6]), (9, 2, [2, 4, 6, 8]), (9, 1, [*range(1, 9)]), (9, 0, []), (9, 9, []), (1, 1, [])]
)
def test_previews_every_k_steps_and_never_instead_of_the_picture(steps: int, every: int, at: list[int]) -> None:
    handle, took = run(steps=steps, preview_every=every)
    assert [step.step + 1 for _, step in took if "preview" in step.keep] == at
    assert len(handle.chunks.get("preview", [])) == len(at)
    assert set(handle.ends) == {"image", "progress", "preview"}


def test_a_preview_that_nobody_reads_is_not_made() -> None:
    _, took = run(outputs=("progress",), steps=4, preview_every=1)
    assert [step.keep for _, step in took] == [()] * 4, "nor is a latent that nobody decodes"


def test_every_field_of_a_request_reaches_the_device() -> None:
    """Equal but for one of them, two requests give different pictures."""
    fields: list[dict[str, Any]] = [
        {},
        {"steps": 5},
        {"guidance_scale": 2.0},
        {"guidance_scale": 3.0},
        {"width": 2},
        {"height": 2},
    ]
    pictures = [run(**{"steps": 4, **given})[0].chunks["image"][0] for given in fields]
    assert len(set(pictures)) == len(fields)
    assert run(steps=4, preview_every=1)[0].chunks["image"] == pictures[:1], "previews change nothing"


def test_a_denoise_loop_draws() -> None:
    """So that the samples of a request part there."""
    assert DiffusionDenoise(expert="x").draws


@pytest.mark.parametrize("every", [0, 1, 3, 8])
def test_it_goes_on_from_what_was_saved(every: int) -> None:
    """Preempted after 7 steps it begins again at the last multiple of `every` with the latent of then, else with its seed."""
    spec = CARD.loops["paint"].model_copy(update={"save_every": every})
    card = CARD.model_copy(update={"loops": {**CARD.loops, "paint": spec}})
    p = Program("paint", card)
    latent = p.loop("paint", conditioning=p.loop("encode", messages=p.input("messages")).hidden)
    p.output("image", p.loop("image", latent=latent.latent).image)
    p.output("progress", latent.progress)
    p.output("preview", p.loop("glimpse", latent=latent.preview).image)
    given: dict[str, Any] = {"messages": "m", "seed": 4, "paint": {"steps": 10, "preview_every": 2}}
    answers = []
    for preempted in (False, True):
        sim = Remembering(SimulatedExecutor("x", card), cards=(card,))
        handle = sim.submit(p, **given)
        while sim.busy:
            if preempted and len(sim.steps) == 8:
                preempted = False
                sim.feed(Preempt(handle.run))  # the eighth step is in flight, and counts
            sim.complete(sim.busy[0])
        answers.append(handle.chunks)
    assert answers[0] == answers[1]
    begun = sim.steps[8]
    assert begun.step == {0: 0, 1: 8, 3: 6, 8: 8}[every]
    assert (begun.latent is not None) == (every > 0)
    assert sum("preview" in step.keep for step in sim.steps) == 4, "each is made once"
    assert [step.step for step in sim.steps[8:]] == list(range(begun.step, 10))


class Remembering(Simulation):
    """Keeps the payloads of denoise steps."""

    def __init__(self, *executors: Any, **more: Any) -> None:
        self.steps: list[DenoiseStep] = []
        super().__init__(*executors, **more)

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, RunBatch):
            self.steps += [row.payload for row in command.rows if isinstance(row.payload, DenoiseStep)]
        super()._carry_out(command)
