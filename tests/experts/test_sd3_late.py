"""The denoise op as on a GPU: launched, by graphs, read when it is collected; with the fused attention. On CPU tensors."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_graphs import faked, launching, noticed
from test_sd3 import CONFIG, SIZE, Desk, alone, weights

from omni_runtime.experts import mmdit, sd3
from omni_runtime.experts.mmdit import MMDiT, MMDiTConfig
from omni_runtime.experts.sd3 import SD3Denoiser

pytestmark = pytest.mark.torch
KINDS: dict[str, dict[str, Any]] = {"plain": {}, "sd3.5": {"num_layers": 2, "qk_norm": "rms_norm", "dual_attention_layers": [0]}}


def model(form: str | None = None, **more: Any) -> MMDiT:
    config = MMDiTConfig.read({**CONFIG, "num_layers": 1, **more})
    return MMDiT(config, weights(config), form=form)


@pytest.fixture(scope="module")
def plain() -> SD3Denoiser:
    return SD3Denoiser(model())


@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_attention_is_the_other(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(3, *SIZE, generator=generator), torch.tensor([900.0, 500.0, 3.0])
    told = torch.randn(3, 5, 12, generator=generator), torch.randn(3, 10, generator=generator)
    ours, fused = (model(form, **KINDS[kind]).forward(*given, *told) for form in (None, "torch"))
    torch.testing.assert_close(fused, ours, rtol=0, atol=1e-5)
    assert ours.std() > 0.2, "flat: this proves nothing"


def play(expert: SD3Denoiser, seed: int) -> dict[int, Any]:
    """Requests with and without guidance, of two lengths of text, in drawn batches, up to two launched at once; their latents."""
    draw, desk, flying = random.Random(seed), Desk(expert), []
    expert._graphs._eager = seed % 2
    at = dict.fromkeys(range(1, 6), 0)

    def land() -> None:
        rows, launched = flying.pop(0)
        for row, result in zip(rows, launched.collect(), strict=True):
            at[row.run] += 1
            assert (result.items["latent"] == desk.slots.read(result.tensors["latent"][0]).numpy()).all() == row.payload.save
            latents[row.run] = desk.slots.read(result.tensors["latent"][0])

    latents: dict[int, Any] = {}
    while min(at.values()) < 6 or flying:
        busy = {row.run for rows, _ in flying for row in rows}
        free = [run for run, step in at.items() if step < 6 and run not in busy]
        if free and len(flying) < 2:
            chosen = free[: draw.randint(1, 3)]
            rows = [desk.row(run, at[run], scale=1.0 + run % 3, tokens=5 + run % 2, save=True) for run in chosen]
            with launching():
                flying.append((rows, expert.launch(rows, desk.slots)))
        if flying and (len(flying) == 2 or draw.random() < 0.5):
            land()
    return latents


@pytest.fixture(scope="module")
def wanted(plain: SD3Denoiser) -> dict[int, Any]:
    return {run: alone(plain, run, 6, scale=1.0 + run % 3, tokens=5 + run % 2) for run in range(1, 6)}


def check(seed: int, wanted: dict[int, Any], build: Callable[[], SD3Denoiser]) -> int:
    with faked() as recorder:
        found = play(build(), seed)
    for run, want in wanted.items():
        torch.testing.assert_close(found[run], want, rtol=0, atol=1e-5)
    return recorder.replays


def late(form: str | None = "torch") -> SD3Denoiser:
    return SD3Denoiser(model(form), late=True)


def test_launched_batches_give_what_each_request_gives_alone(wanted: dict[int, Any]) -> None:
    assert sum(check(seed, wanted, late) for seed in range(2)) > 12


def test_a_latent_that_is_not_finite_is_found_when_it_is_read_and_nothing_has_moved(plain: SD3Denoiser) -> None:
    expert = late()
    desk = Desk(expert)
    desk.run(desk.row(1, 0), desk.row(2, 0))
    rows = [desk.row(1, 1), desk.row(2, 1, poison=True)]
    launched = expert.launch(rows, desk.slots)
    beside = expert.launch([desk.row(3, 0)], desk.slots)
    with pytest.raises(FloatingPointError, match=r"request 2, loop 'denoise'.*step 2 of 8"):
        launched.collect()
    assert len(beside.collect()) == 1
    for _ in range(2):  # the last step may be run again, too
        torch.testing.assert_close(desk.run(rows[0])[0], alone(plain, 1, 2), rtol=0, atol=1e-5)


# -- Planted bugs


def reads_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of the batch that the graph does not know: it goes on with that of the capture."""
    step, euler = SD3Denoiser._step, sd3.guided_euler
    last: list[Any] = []

    def changed(self: Any, ready: Any, numbers: Any) -> Any:
        last[:] = [numbers["sigma"]]
        return step(self, ready, numbers)

    monkeypatch.setattr(SD3Denoiser, "_step", changed)
    monkeypatch.setattr(sd3, "guided_euler", lambda *a, form: euler(*a[:5], last[0], a[6], form=form))


def views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latents that the next graph of the shape writes over."""
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda self, **how: self if self.dim() == 3 else clone(self, **how))


def streams_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = mmdit.joint_attention
    monkeypatch.setattr(mmdit, "joint_attention", lambda first, second, *rest: attend(first, (second[0], *second[:0:-1]), *rest))


def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = MMDiT.forward

    def asked(self: Any, *given: Any) -> Any:
        found = forward(self, *given)
        assert bool(found.isfinite().all())
        return found

    monkeypatch.setattr(MMDiT, "forward", asked)


@pytest.mark.parametrize("plant", [reads_what_is_not_given, views, streams_swapped, waits])
def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch, wanted: dict[int, Any], plant: Any) -> None:
    plant(monkeypatch)
    with noticed():
        check(0, wanted, late)
