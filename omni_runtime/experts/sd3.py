"""The denoiser of Stable Diffusion 3 as an expert: op `denoise` takes one step of many requests as one batch.

Rows of a batch share the size of their latents and nothing else: each is at its own step of its own schedule, with its own
guidance scale, and finds its conditioning by name. A guided row is two rows of the network's batch.

Suffixes: R rows (requests), B branches, C channels, Y and X rows and columns of a latent, S text tokens, J their width, P pooled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_runtime.errors import CheckpointError, RequestError
from omni_runtime.experts.base import Launched, Op
from omni_runtime.experts.device_queue import queue_of
from omni_runtime.experts.graphs import Graphs, Inputs, Outputs
from omni_runtime.experts.mmdit import MMDiT, MMDiTConfig, parameter_shapes
from omni_runtime.experts.philox_noise import normal_noise
from omni_runtime.experts.sd3_options import read_options
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.staging import Reading, Staging
from omni_runtime.kernels import guided_euler
from omni_runtime.work import DenoiseStep, Row, StepResult, TensorRef

GIVEN = ("embeds", "pooled")  # slots of every row
AGAINST = ("negative_embeds", "negative_pooled")  # slots that guided rows also have
NUMBERS = ("owner", "timestep", "with", "without", "scale", "sigma", "target")  # of the rows and branches of a batch
GRAPHS = 16  # shapes of batches: rows with and without guidance, and a few sizes


class Trajectory:
    """Where the latent of a loop stands. The one before is kept too, so that the last step can be run again."""

    __slots__ = ("before_CYX", "latent_CYX", "step")

    def __init__(self) -> None:
        self.step = -1  # steps done; -1: not even the noise was drawn
        self.latent_CYX: torch.Tensor | None = None
        self.before_CYX: torch.Tensor | None = None

    def at(self, step: int) -> torch.Tensor | None:
        """The latent that a step starts from, or None: noise.

        Raises:
            AssertionError: it is not there (a bug of whoever made the row).
        """
        found = self.latent_CYX if step == self.step else self.before_CYX if step == self.step - 1 else None
        assert step == 0 or found is not None, f"step {step} after {self.step} steps"
        return found

    def move(self, step: int, before_CYX: torch.Tensor, after_CYX: torch.Tensor) -> None:
        self.step, self.before_CYX, self.latent_CYX = step + 1, before_CYX, after_CYX


Branches = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""Text [S, J] and pooled [P]: of the prompt, and of what it is held against."""


@dataclass(frozen=True)
class _Ready:
    """A row with all that its step reads."""

    row: Row
    step: DenoiseStep
    path: Trajectory
    latent_CYX: torch.Tensor
    branches: Branches

    @property
    def shape(self) -> tuple[Any, ...]:
        return (*self.step.size, *self.branches[0][0].shape)


@dataclass(frozen=True)
class _Moved:
    """A batch one step on, as soon as the device has come to it."""

    ready: Sequence[_Ready]
    after: Sequence[torch.Tensor]  # latents [C, Y, X]
    results: list[StepResult]
    reading: Reading  # whether each latent is finite, and the latents that are saved

    def collect(self) -> list[StepResult]:
        fine_R, *saved = self.reading.get()
        for one, fine in zip(self.ready, fine_R.tolist(), strict=True):
            if not fine:
                where = f"request {one.row.run}, loop {one.row.loop!r}"
                raise FloatingPointError(f"{where}: the latent is not finite after step {one.step.step + 1} of {one.step.steps}")
        rest = iter(saved)
        for one, after_CYX, result in zip(self.ready, self.after, self.results, strict=True):
            one.path.move(one.step.step, one.latent_CYX, after_CYX)
            if one.step.save:
                result.items = {"latent": next(rest).numpy()}
        return self.results


class SD3Denoiser:
    """The op around an `MMDiT`. State of a loop: its `Trajectory`.

    On a GPU a batch is launched, by a graph where one of its shape came before, and the host reads it when it is collected.

    Args:
        model: resident weights.
        late: whether to launch; by default where the device has a queue.
    """

    def __init__(self, model: MMDiT, late: bool | None = None) -> None:
        self.model = model
        self._late = queue_of(model.device) is not None if late is None else late
        self._staging, self._graphs = Staging(model.device), Graphs(model.device, GRAPHS)
        self.ops: Mapping[str, Op] = {"denoise": self.launch if self._late else self.denoise}

    def denoise(self, rows: Sequence[Row], slots: Slots) -> list[StepResult]:
        """One result per row. Ports that the step keeps are float32 tensors [C, Y, X].

        Raises:
            RequestError: a row that no request may ask for.
            FloatingPointError: a latent is not finite any more.

        Nothing has changed then.
        """
        return self.launch(rows, slots).collect()

    @torch.inference_mode()
    def launch(self, rows: Sequence[Row], slots: Slots) -> Launched:
        """The same, of which `collect` gives the results, and raises FloatingPointError."""
        ready = self._ready(rows, slots)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for i, one in enumerate(ready):
            groups.setdefault(one.shape, []).append(i)
        members = [[ready[i] for i in places] for places in groups.values()]
        numbers = self._staging.send({f"{name} {g}": x for g, some in enumerate(members) for name, x in _numbers(some).items()})
        found: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        for g, (places, some) in enumerate(zip(groups.values(), members, strict=True)):
            moved = self._step(some, {name: numbers[f"{name} {g}"] for name in NUMBERS})
            found |= zip(places, zip(*moved, strict=True), strict=True)
        after, fine, results = [], [], []
        for i, one in enumerate(ready):
            after_CYX, clean_CYX, fine_ = found[i]
            # Rows of their own: a view would keep the latents of the whole batch alive, and a graph writes them anew.
            after.append(after_CYX.clone())
            fine.append(fine_)
            kept = {port: after[-1] if port == "latent" else clean_CYX.clone() for port in one.step.keep}
            named: dict[str, tuple[TensorRef, ...]] = {
                port: (slots.keep(one.row, port, one.step.step, tensor),) for port, tensor in kept.items()
            }
            results.append(StepResult(tensors=named))
        saved = [x for one, x in zip(ready, after, strict=True) if one.step.save]
        return _Moved(ready, after, results, Reading(torch.stack(fine) if fine else torch.empty(0), *saved))

    def _ready(self, rows: Sequence[Row], slots: Slots) -> list[_Ready]:
        """Rows with what they start from: what is kept, or what the step brings, or noise."""
        checked = [self._checked(row, slots) for row in rows]
        paths = [slots.state(row, Trajectory) for row in rows]
        begins = {}
        for i, ((step, _), path) in enumerate(zip(checked, paths, strict=True)):
            if step.latent is not None:
                begins[str(i)] = np.array(step.latent, np.float32)
            elif path.at(step.step) is None:
                noise_X = normal_noise(step.draw.seed, step.draw.node, math.prod(step.size))
                begins[str(i)] = noise_X.reshape(step.size)
        sent = self._staging.send(begins) if begins else {}
        ready = []
        for i, (row, (step, branches), path) in enumerate(zip(rows, checked, paths, strict=True)):
            latent_CYX = sent.get(str(i), path.at(step.step)) if step.latent is None else sent[str(i)]
            assert latent_CYX is not None
            ready.append(_Ready(row, step, path, latent_CYX, branches))
        return ready

    def _checked(self, row: Row, slots: Slots) -> tuple[DenoiseStep, Branches]:
        step = row.payload
        if not isinstance(step, DenoiseStep):
            raise RequestError(f"loop {row.loop!r}: op 'denoise' needs a DenoiseStep, got {type(step).__name__}")
        if (channels := self.model.config.in_channels) != step.size[0] or len(step.size) != 3:
            raise RequestError(f"loop {row.loop!r}: a latent of {channels} channels, rows and columns is needed, not {step.size}")
        branches = [self._conditioning(row, step, GIVEN, slots)]
        if step.guidance_scale > 1.0:
            branches.append(self._conditioning(row, step, AGAINST, slots))
        return step, tuple(branches)

    def _conditioning(
        self, row: Row, step: DenoiseStep, names: tuple[str, str], slots: Slots
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for name in names:
            if len(step.conditioning.get(name, ())) != 1:
                got = {slot: len(refs) for slot, refs in step.conditioning.items()}
                raise RequestError(f"loop {row.loop!r}: slot {name!r} needs one tensor, got {got}")
        text_SJ, pooled_P = (slots.read(step.conditioning[name][0]) for name in names)
        return text_SJ, pooled_P

    def _step(self, ready: Sequence[_Ready], numbers: Mapping[str, torch.Tensor]) -> Outputs:
        """Rows of one shape: latents after the step, the clean latents that they point at, and whether each is finite."""
        branches = [branch for one in ready for branch in one.branches]
        given = {
            "latent": torch.stack([one.latent_CYX for one in ready]),
            "text": torch.stack([text_SJ for text_SJ, _ in branches]),
            "pooled": torch.stack([pooled_P for _, pooled_P in branches]),
            **numbers,
        }
        model, plans = self.model, self.model.plans(len(branches), ready[0].step.size, len(branches[0][0]))

        def moved(given: Inputs) -> Outputs:
            latent_RCYX, places = given["latent"], (given["with"], given["without"])
            levels = given["scale"], given["sigma"], given["target"]
            seen_BCYX = latent_RCYX.index_select(0, given["owner"])
            velocity_BCYX = model.forward(seen_BCYX, given["timestep"], given["text"], given["pooled"], plans)
            after_RCYX, clean_RCYX = guided_euler(latent_RCYX, velocity_BCYX, *places, *levels, form=model.form)
            return after_RCYX, clean_RCYX, after_RCYX.isfinite().flatten(1).all(1)

        return self._graphs.run((len(ready), len(branches), ready[0].shape), moved, given)


def _numbers(ready: Sequence[_Ready]) -> dict[str, np.ndarray[Any, Any]]:
    """What the rows of a group differ in, by NUMBERS."""
    owner_B = [r for r, one in enumerate(ready) for _ in one.branches]
    first_R = [owner_B.index(r) for r in range(len(ready))]
    last_R = [first + len(one.branches) - 1 for first, one in zip(first_R, ready, strict=True)]
    steps = [one.step for one in ready]
    places = {"owner": owner_B, "with": first_R, "without": last_R}
    floats = {
        "timestep": [steps[r].timestep for r in owner_B],
        "scale": [step.guidance_scale for step in steps],
        "sigma": [step.sigma for step in steps],
        "target": [step.target for step in steps],
    }
    found = {name: np.array(value, np.int64) for name, value in places.items()}
    return found | {name: np.array(value, np.float32) for name, value in floats.items()}


def build(options: Mapping[str, Any], device: str) -> SD3Denoiser:
    """The expert that a card names `omni_runtime.experts.sd3:build`.

    Raises:
        CardError: a wrong option.
        CheckpointError: the weights are missing or damaged, or their network is not built here.
    """
    from omni_runtime.weights.diffusers_folder import FolderWeights
    from omni_runtime.weights.json_file import read_json

    folder = Path(read_options(options, "sd3").checkpoint) / "transformer"
    try:
        config = MMDiTConfig.read(read_json(folder / "config.json"))
    except CheckpointError as error:
        if str(folder) in str(error):
            raise
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from None
    return SD3Denoiser(MMDiT(config, FolderWeights(folder, parameter_shapes(config)), device))
