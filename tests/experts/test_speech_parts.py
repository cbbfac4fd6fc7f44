"""The parts of the vocoder, each against its plain definition."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from hibari_toys import frames, random_network

from omni_runtime.experts.hibari_network import CHANNELS, EPS, TAPS, Network, Strand, advance_network, fresh_tails
from omni_runtime.experts.overlap_add import add_frames, fresh_overlap
from omni_runtime.experts.philox_noise import complex_noise
from omni_runtime.experts.pulse_source import HOP, RATE, advance_source, fresh_source, hann
from omni_runtime.weights.hibari import WIDTH

pytestmark = pytest.mark.torch


def plain_network(net: Network, frames_TW: torch.Tensor) -> torch.Tensor:
    """The whole utterance at once with torch's own convolutions, [T, 5, 601]."""
    kernel = net.first_DKW.reshape(CHANNELS, TAPS, WIDTH).transpose(1, 2)
    h_1DT = F.conv1d(frames_TW.T[None], kernel, net.first_shift_D, padding=3)
    for block in net.blocks:
        y_1DT = F.conv1d(h_1DT, block.taps_KD.T[:, None], block.shift_D, padding=3, groups=CHANNELS)
        y_1TD = F.layer_norm(y_1DT.transpose(1, 2), (CHANNELS,), block.norm_D, block.norm_shift_D, EPS)
        y_1TD = F.gelu(y_1TD @ block.widen_ED.T + block.widen_shift_E) @ block.narrow_DE.T + block.narrow_shift_D
        h_1DT = h_1DT + y_1TD.transpose(1, 2)
    y_1TD = F.layer_norm(h_1DT.transpose(1, 2), (CHANNELS,), net.norm_D, net.norm_shift_D, EPS)
    return (y_1TD @ net.head_OD.T + net.head_shift_O)[0].reshape(-1, 5, 601)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 50])
def test_network(count: int) -> None:
    net = random_network()
    frames_TW = torch.from_numpy(frames(count)[:, :WIDTH].copy())
    ((_, found),) = advance_network(net, [Strand(fresh_tails("cpu"), frames_TW, True)])
    torch.testing.assert_close(found, plain_network(net, frames_TW), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 20])
def test_inverse_transform(count: int) -> None:
    draw = torch.Generator().manual_seed(count)
    frames_TN = torch.randn(count, 1200, generator=draw)
    spectra_TB = torch.fft.rfft(frames_TN)
    window = hann("cpu")
    _, samples = add_frames(fresh_overlap("cpu"), spectra_TB, True, window)
    sound, weight = torch.zeros(600 + count * 300 + 600), torch.zeros(600 + count * 300 + 600)
    for k in range(count):
        sound[300 * k : 300 * k + 1200] += frames_TN[k] * window
        weight[300 * k : 300 * k + 1200] += window**2
    torch.testing.assert_close(samples, (sound / weight.clamp(min=1e-11))[600 : 600 + 300 * count], atol=1e-4, rtol=1e-4)


def test_pulses_are_a_sum_of_cosines() -> None:
    """A steady pitch of 130 Hz, 3 frames of silence, and spectra of the very definition."""
    hz = torch.tensor([130.0] * 12 + [0.0] * 3 + [130.0] * 5)
    count, window = len(hz), hann("cpu") / HOP
    _, found = advance_source(fresh_source(hz[0]), hz, True, count, window)
    at = np.clip((np.arange(count * HOP) + 0.5) / HOP - 0.5, 0, count - 1)
    f = np.interp(at, np.arange(count), hz.double().numpy())
    t = 2 * np.pi * np.cumsum(np.maximum(f, 40)) / RATE
    wave = sum(np.where(h <= np.floor(11_000 / np.maximum(f, 40)), np.cos(h * t), 0) for h in range(1, 276)) * (f > 40)
    padded = np.pad(wave, 600, mode="reflect")
    spectra = np.stack([np.fft.rfft(padded[300 * k : 300 * k + 1200] * window.numpy()) for k in range(count)])
    assert np.abs(found.numpy() - spectra).max() < 2e-2 * np.abs(spectra).max()  # a harmonic more or less where floor() flips
    assert np.abs(found.numpy() - spectra)[2:9].max() < 1e-4


def test_noise_is_the_same_in_any_pieces() -> None:
    whole = complex_noise(7, 0, 50, 601)
    assert whole.dtype == np.complex64
    pieces = [complex_noise(7, start, count, 601) for start, count in [(0, 1), (1, 2), (3, 0), (3, 40), (43, 7)]]
    assert (np.concatenate(pieces) == whole).all()
    assert not np.isclose(complex_noise(8, 0, 50, 601), whole).all()
    assert (complex_noise(2**64 - 1, 10**12, 1, 601) != 0).all()


def test_noise_is_normal() -> None:
    noise = complex_noise(0, 0, 400, 601).view(np.float32).astype(np.float64)
    assert abs(noise.mean()) < 0.01
    assert abs(noise.var() - 1) < 0.01
    assert abs((noise**4).mean() - 3) < 0.05
    assert abs(np.corrcoef(noise[:, 0::2].ravel(), noise[:, 1::2].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < 0.01
