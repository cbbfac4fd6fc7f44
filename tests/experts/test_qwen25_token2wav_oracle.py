"""token2wav of Qwen2.5-Omni against transformers: velocities, whole trajectories, speakers, sound."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from flow_driver import integrate  # noqa: E402
from omni_runtime.kernels import cpu_build  # noqa: E402
from tiny_qwen25 import bigvgan, flow, folder, reference, voice  # noqa: E402

from omni_runtime.experts.bigvgan import BigVGAN  # noqa: E402
from omni_runtime.experts.flow_window import Window  # noqa: E402
from omni_runtime.loops.flow_chunks import sway_times  # noqa: E402
from omni_runtime.weights.qwen2_5_omni_parts import WAVES, WavesConfig  # noqa: E402

torch.set_num_threads(1)
WHO = ["Chelsie", "Ethan"]


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def codes(count: int, seed: int) -> list[int]:
    found: list[int] = torch.randint(0, 79, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


@torch.inference_mode()
def expected(window: Window, who: str) -> torch.Tensor:
    told, frames = reference().speaker_map[who], len(window.x_TM)
    given: dict[str, Any] = {"hidden_states": window.x_TM[None], "condition_vector": told["ref_mel"]}
    given |= {"speaker_embedding": told["cond"][:, None].repeat(1, frames, 1), "quantized_code": torch.tensor([window.codes])}
    model, time = reference().token2wav.code2wav_dit_model, torch.tensor(window.time)
    if not window.guidance:
        return model(**given, time_step=time, apply_cfg=False)[0]
    told_, not_told = model(**given, time_step=time)
    return told_ + (told_ - not_told) * window.guidance


def windows() -> list[tuple[Window, str]]:
    """Whole blocks of 8 and broken ones, at different times, guided or not."""
    shapes = [(32, 0.3, 0.5), (4, 0.0, 0.5), (1, 1.0, 0.7), (13, 0.9, 0.0), (60, 0.1, 0.5)]
    found = []
    for i, (count, time, guidance) in enumerate(shapes):
        who = WHO[i % 2]
        found.append((Window(noise(2 * count, 16, seed=i), time, codes(count, i), voice(who), guidance), who))
    return found


def test_windows_together_are_windows_alone() -> None:
    given = windows()
    for (window, who), found in zip(given, flow().velocity([window for window, _ in given]), strict=True):
        assert found.velocity_TM.std() > 0.3
        torch.testing.assert_close(found.velocity_TM, expected(window, who), rtol=1e-5, atol=1e-5)


def test_speakers() -> None:
    for who in WHO:
        mel = reference().speaker_map[who]["ref_mel"]
        with torch.inference_mode():
            theirs = reference().token2wav.code2wav_dit_model.input_embed.spk_encoder(mel)[0]
        assert theirs.std() > 0.05
        torch.testing.assert_close(flow()._speaker(folder().speakers()[who].mel_TM), theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("points", "guidance"), [(2, 0.5), (4, 0.0), (10, 0.5)])
def test_whole_trajectories(points: int, guidance: float) -> None:
    """The reference starts from the global generator: the same noise is given to both."""
    for who, count in (("Chelsie", 30), ("Ethan", 9)):
        told, given = reference().speaker_map[who], codes(count, 5)
        torch.manual_seed(4)
        theirs = reference().token2wav.code2wav_dit_model.sample(
            told["cond"], told["ref_mel"], torch.tensor([given]), num_steps=points, guidance_scale=guidance
        )
        torch.manual_seed(4)
        ours, _ = integrate(flow(), torch.randn(1, 2 * count, 16)[0], given, voice(who), points, guidance)
        torch.testing.assert_close(ours, theirs[0].T, rtol=1e-5, atol=1e-5)


def test_points_of_time() -> None:
    even = torch.linspace(0, 1, 10)
    swayed = even - (torch.cos(torch.pi / 2 * even) - 1 + even)
    assert sway_times(10) == pytest.approx(swayed.tolist(), abs=1e-6)
    assert sway_times(3, 0.0) == [0.0, 0.5, 1.0]


# -- Sound ------------------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def whole(mel_TM: torch.Tensor) -> torch.Tensor:
    wave: torch.Tensor = reference().token2wav.code2wav_bigvgan_model(mel_TM.T[None])
    assert wave.std() > 0.03
    assert (wave.abs() == 1).float().mean() < 0.01
    return wave


@lru_cache
def vocoder(form: str) -> BigVGAN:
    """With the kernels in C, if a compiler is here, or with torch's convolutions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNI_KERNELS", form)
        config = folder().config.waves
        assert config is not None
        return BigVGAN(config, folder().named(WAVES))


EXACT = cpu_build.compiler() is not None


@pytest.mark.parametrize("form", ["", "torch"])
def test_sound_of_mel_frames(form: str) -> None:
    mels = torch.stack([noise(50, 16, seed=seed) * (3 if seed else 30) for seed in range(3)])  # also where it is cut
    for ours, mel in zip(vocoder(form).decode(mels), mels, strict=True):
        assert len(ours) == 50 * 240
        torch.testing.assert_close(ours, reference().token2wav.code2wav_bigvgan_model(mel.T[None]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("size", "form"), [(1, ""), (7, ""), (24, ""), (33, ""), (100, ""), (24, "torch"), (100, "torch")])
def test_any_piece_size_equals_one_call(size: int, form: str) -> None:
    """To the bit with the kernels in C, on any number of threads. Of single frames every ninth."""
    mel, model = noise(130, 16, seed=8), vocoder(form)
    one = model.decode(mel[None])[0]
    torch.testing.assert_close(one, whole(mel), rtol=0, atol=1e-5)
    for number, at in enumerate(range(0, 130, max(size, 9))):
        torch.set_num_threads(2 if number == 2 else 1)
        try:
            found = model.piece(0, mel, at, min(at + size, 130))
        finally:
            torch.set_num_threads(1)
        expected = one[at * 240 : (at + size) * 240]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert form or not EXACT or torch.equal(found, expected), at


@pytest.mark.skipif(not EXACT, reason="no C compiler here")
def test_what_is_no_number_is_heard_as_far_as_reach() -> None:
    """Nothing is too faint for it, so both ends of `reach` are seen."""
    mel = noise(120, 16, seed=2)
    mel[60] = float("nan")
    heard = vocoder("").decode(mel[None])[0].view(-1, 240).isnan().any(1)
    assert heard.nonzero()[:, 0].tolist() == list(range(60 - 34, 60 + 35))


def test_reach_is_what_sound_depends_on() -> None:
    """By perturbation, in float64's place large ones: beyond `back` and `ahead` nothing, within them something."""
    assert (bigvgan().back, bigvgan().ahead) == (34, 34)
    published = WavesConfig(80, 1536, (5, 3, 2, 2, 2, 2), (11, 7, 4, 4, 4, 4), (3, 7, 11), ((1, 3, 5),) * 3)
    assert published.reach == (34, 34)
    mel, at = noise(120, 16, seed=2), 60
    before = bigvgan().decode(mel[None])[0].view(-1, 240)[at]

    def heard(frame: int) -> float:
        other = mel.clone()
        other[frame] += 4
        return float((bigvgan().decode(other[None])[0].view(-1, 240)[at] - before).abs().max())

    assert heard(at - 35) == heard(at + 35) == 0
    assert heard(at - 12) > 1e-6 < heard(at + 12)
    assert heard(at - 25) > 0 < heard(at + 25)


def test_too_little_around_is_heard() -> None:
    """The mutant: pieces with eight frames around them."""
    mel, model = noise(130, 16, seed=8), bigvgan()
    try:
        model.back = model.ahead = 8
        found = torch.cat([model.piece(0, mel, at, min(at + 24, 130)) for at in range(0, 130, 24)])
    finally:
        model.back = model.ahead = 34
    assert (found - whole(mel)).abs().max() > 1e-3
