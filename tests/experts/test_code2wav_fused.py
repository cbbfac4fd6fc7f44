"""code2wav as on a GPU, on CPU tensors: kernels in their torch form, by graphs, launched; against the reference's one call."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fake_graphs import FakeRecorder, faked, launching, noticed  # noqa: E402
from test_qwen3_vocoder_oracle import codes, step, whole  # noqa: E402
from tiny_qwen3 import folder, vocoder  # noqa: E402

from omni_runtime.experts import code2wav_fused  # noqa: E402
from omni_runtime.experts.code2wav import Code2Wav  # noqa: E402
from omni_runtime.experts.code2wav_fused import FusedWaves  # noqa: E402
from omni_runtime.experts.qwen3_vocoder import Qwen3Vocoder  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402

FRAMES = 15


def fused() -> Code2Wav:
    config = folder().config.vocoder
    assert config is not None
    return Code2Wav(config, folder().named("code2wav."), layout="plain", form="torch")


def check(seed: int, rows: int = 3) -> FakeRecorder:
    """Streams in drawn pieces and batches, up to two batches launched at once, by a graph from the second call of a shape on."""
    draw = random.Random(seed)
    given = [codes(FRAMES, 10 + row) for row in range(rows)]
    with faked() as recorder:
        expert, slots = Qwen3Vocoder(fused(), late=True), Slots("gpu#1")
        expert.model._waves._graphs._eager = seed % 2
        at, waves, flying = [0] * rows, [[] for _ in given], []  # type: ignore[var-annotated]

        def land() -> None:
            some, launched = flying.pop(0)
            for (row, size), result in zip(some, launched.collect(), strict=True):
                waves[row].append(torch.from_numpy(result.items["samples"]))
                at[row] += size

        while min(at) < FRAMES or flying:
            busy = {row for some, _ in flying for row, _ in some}
            free = [row for row in range(rows) if at[row] < FRAMES and row not in busy]
            if free and len(flying) < 2:
                some = [(row, min(draw.choice([1, 3, 8]), FRAMES - at[row])) for row in free[: draw.randint(1, rows)]]
                payloads = [step(row, at[row], size, given[row]) for row, size in some]
                with launching():
                    flying.append((some, expert.ops["decode_audio"](payloads, slots)))
            if flying and (len(flying) == 2 or draw.random() < 0.5):
                land()
    for row, wave in zip(given, waves, strict=True):
        torch.testing.assert_close(torch.cat(wave), whole(row), rtol=0, atol=1e-5)
    return recorder


def test_launched_pieces_equal_one_call() -> None:
    assert check(1).replays > 3


def test_the_convolutions_are_those_of_a_cpu() -> None:
    """Also where the streams begin, and in pieces; up to rounding."""
    ours, theirs = fused()._waves, vocoder()._waves
    x_RCT = torch.randn(2, vocoder().config.width, 9, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        kept, there = ([tail.expand(2, *tail.shape) for tail in waves.fresh()] for waves in (ours, theirs))
        for at, size in ((0, 1), (1, 3), (4, 5)):
            part = x_RCT[..., at : at + size]
            (wave, kept), (want, there) = ours(part, kept, at == 0), theirs(part.clone(), there, at == 0)
            torch.testing.assert_close(wave, want, rtol=0, atol=1e-5)
            torch.testing.assert_close(kept[0], torch.cat([tail.flatten(1) for tail in there], 1), rtol=0, atol=1e-5)
        assert want.std() > 0.05


# -- Planted bugs


def parts(change: Any) -> Any:
    """Changes the parts of the network once it is made."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        made = FusedWaves.__init__

        def init(self: Any, *given: Any) -> None:
            made(self, *given)
            self._parts = [change(part) for part in self._parts]

        monkeypatch.setattr(FusedWaves, "__init__", init)

    return plant


def commits_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tails that the next batch of the same shape writes over."""
    clone = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda self, **how: self if self.dim() == 1 else clone(self, **how))


def reads_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    block = code2wav_fused.convnext_block
    monkeypatch.setattr(
        code2wav_fused, "convnext_block", lambda x, *rest, **form: block(x * float(x.isfinite().all()), *rest, **form)
    )


def forgets_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = code2wav_fused.causal_conv
    monkeypatch.setattr(code2wav_fused, "causal_conv", lambda x, tail, *rest, **form: conv(x, 0 * tail, *rest, **form))


PLANTED = {
    "the first block is kept": parts(lambda part: part._replace(cut=0)),
    "another residual": parts(lambda part: part._replace(adds=min(part.adds, 1))),
    "tails shared": commits_early,
    "waits": reads_on_the_host,
    "no past": forgets_the_past,
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    PLANTED[name](monkeypatch)
    with noticed():
        check(0)
