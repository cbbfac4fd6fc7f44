"""The denoiser of Stable Diffusion 3 as an expert: op `denoise` takes one step of many requests as one batch.

Rows of a batch share the size of their latents and nothing else: each is at its own step of its own schedule, with its own
guidance scale, and finds its conditioning by name. A guided row is two rows of the network's batch.

Suffixes: R rows (requests), B branches, C channels, Y and X rows and columns of a latent, S text tokens, J their width, P pooled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_runtime.errors import CheckpointError, RequestError
from omni_runtime.experts.base import Op
from omni_runtime.experts.mmdit import MMDiT, MMDiTConfig, parameter_shapes
from omni_runtime.experts.philox_noise import normal_noise
from omni_runtime.experts.sd3_options import read_options
from omni_runtime.experts.slots import Slots
from omni_runtime.kernels import guided_euler
from omni_runtime.work import DenoiseStep, Row, StepResult, TensorRef

GIVEN = ("embeds", "pooled")  # slots of every row
AGAINST = ("negative_embeds", "negative_pooled")  # slots that guided rows also have


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


@dataclass(frozen=True)
class _Ready:
    """A row with all that its step reads."""

    row: Row
    step: DenoiseStep
    latent_CYX: torch.Tensor
    branches: tuple[
        tuple[torch.Tensor, torch.Tensor], ...
    ]  # text [S, J] and pooled [P]: of the prompt, of what it is held against

    @property
    def shape(self) -> tuple[Any, ...]:
        return (*self.step.size, *self.branches[0][0].shape)


class SD3Denoiser:
    """The op around an `MMDiT`. State of a loop: its `Trajectory`."""

    def __init__(self, model: MMDiT) -> None:
        self.model = model
        self.ops: Mapping[str, Op] = {"denoise": self.denoise}

    def denoise(self, rows: Sequence[Row], slots: Slots) -> list[StepResult]:
        """One result per row. Ports that the step keeps are float32 tensors [C, Y, X].

        Raises:
            RequestError: a row that no request may ask for.
            FloatingPointError: a latent is not finite any more.

        Nothing has changed then.
        """
        ready = [self._ready(row, slots) for row in rows]
        found: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * len(rows)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for i, one in enumerate(ready):
            groups.setdefault(one.shape, []).append(i)
        for members in groups.values():
            after_RCYX, clean_RCYX = self._step([ready[i] for i in members])
            for i, after_CYX, clean_CYX in zip(members, after_RCYX, clean_RCYX, strict=True):
                found[i] = after_CYX, clean_CYX
        results = []
        for one, pair in zip(ready, found, strict=True):
            assert pair is not None
            if not bool(pair[0].isfinite().all()):
                where = f"request {one.row.run}, loop {one.row.loop!r}"
                raise FloatingPointError(f"{where}: the latent is not finite after step {one.step.step + 1} of {one.step.steps}")
        for one, pair in zip(ready, found, strict=True):
            assert pair is not None
            # Rows of their own: a view would keep the latents of the whole batch alive.
            after_CYX = pair[0].clone()
            slots.state(one.row, Trajectory).move(one.step.step, one.latent_CYX, after_CYX)
            kept = {port: after_CYX if port == "latent" else pair[1].clone() for port in one.step.keep}
            saved = {"latent": after_CYX.cpu().numpy()} if one.step.save else {}
            named: dict[str, tuple[TensorRef, ...]] = {
                port: (slots.keep(one.row, port, one.step.step, t),) for port, t in kept.items()
            }
            results.append(StepResult(items=saved, tensors=named))
        return results

    def _ready(self, row: Row, slots: Slots) -> _Ready:
        step = row.payload
        if not isinstance(step, DenoiseStep):
            raise RequestError(f"loop {row.loop!r}: op 'denoise' needs a DenoiseStep, got {type(step).__name__}")
        if (channels := self.model.config.in_channels) != step.size[0] or len(step.size) != 3:
            raise RequestError(f"loop {row.loop!r}: a latent of {channels} channels, rows and columns is needed, not {step.size}")
        branches = [self._conditioning(row, step, GIVEN, slots)]
        if step.guidance_scale > 1.0:
            branches.append(self._conditioning(row, step, AGAINST, slots))
        if step.latent is not None:
            given_CYX = torch.from_numpy(np.array(step.latent, np.float32)).to(self.model.device)
            return _Ready(row, step, given_CYX, tuple(branches))
        latent_CYX = slots.state(row, Trajectory).at(step.step)
        if latent_CYX is None:
            channels, height, width = step.size
            noise_X = normal_noise(step.draw.seed, step.draw.node, channels * height * width)
            latent_CYX = torch.from_numpy(noise_X).view(step.size).to(self.model.device)
        return _Ready(row, step, latent_CYX, tuple(branches))

    def _conditioning(
        self, row: Row, step: DenoiseStep, names: tuple[str, str], slots: Slots
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for name in names:
            if len(step.conditioning.get(name, ())) != 1:
                got = {slot: len(refs) for slot, refs in step.conditioning.items()}
                raise RequestError(f"loop {row.loop!r}: slot {name!r} needs one tensor, got {got}")
        text_SJ, pooled_P = (slots.read(step.conditioning[name][0]) for name in names)
        return text_SJ, pooled_P

    @torch.inference_mode()
    def _step(self, ready: Sequence[_Ready]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of one shape: latents after the step, and the clean latents that they point at."""
        owner_B = [r for r, one in enumerate(ready) for _ in one.branches]
        first_R = [owner_B.index(r) for r in range(len(ready))]
        last_R = [first + len(one.branches) - 1 for first, one in zip(first_R, ready, strict=True)]

        def numbers(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=self.model.device)

        def places(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, device=self.model.device)

        latent_RCYX = torch.stack([one.latent_CYX for one in ready])
        velocity_BCYX = self.model.forward(
            latent_RCYX[places(owner_B)],
            numbers([ready[r].step.timestep for r in owner_B]),
            torch.stack([text_SJ for one in ready for text_SJ, _ in one.branches]),
            torch.stack([pooled_P for one in ready for _, pooled_P in one.branches]),
        )
        return guided_euler(
            latent_RCYX,
            velocity_BCYX,
            places(first_R),
            places(last_R),
            numbers([one.step.guidance_scale for one in ready]),
            numbers([one.step.sigma for one in ready]),
            numbers([one.step.target for one in ready]),
        )


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
