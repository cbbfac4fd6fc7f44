"""Our talker and vocoder against hibari itself.

The model computes its matrix products in 8 bits with activations rounded anew at every call; ours are float. So there are two
oracles: the same graph with its 8-bit parts turned into float, which we equal, and the graph as it is, which we come near.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("hibari")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime
import torch
from hibari import dsp
from hibari_toys import decode, noise

from omni_runtime.experts import hibari_talker, hibari_vocoder
from omni_runtime.experts.hibari_network import Strand, advance_network, fresh_tails
from omni_runtime.experts.hibari_vocoder import HOP, HibariVocoder
from omni_runtime.weights.hibari import FEATURES, WIDTH, voice_file
from omni_runtime.weights.onnx_graph import load_graph
from omni_runtime.work import Draw

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
PARTS = ("lh", "theta", "ln", "lr", "phi")
TEXT = "The quick brown fox jumps over the lazy dog near the river bank."


class SameNoise:
    """What hibari takes for a generator: gives the noise that our vocoder has in frames 0 .. F."""

    def standard_normal(self, shape: tuple[int, int], dtype: Any) -> np.ndarray:
        return np.ascontiguousarray(noise(Draw(0, 0), 0, shape[1] // 2).T).view(np.float32)


def back_of_the_graph(as_float: bool) -> Any:
    """A session from FEATURES to the five parts. As float, x → quantise → integer product → scale becomes x @ W."""
    model = load_graph(voice_file())
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    users = {name: node for node in model.graph.node for name in node.input}
    makers = {name: node for node in model.graph.node for name in node.output}
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        if not as_float or node.op_type != "MatMulInteger":
            continue
        stem = node.input[1].removesuffix("_quantized")
        if stem not in (*(f"/dec.{i}/pw{j}/Transpose_output_0" for i in range(8) for j in (1, 2)), "/head/Transpose_output_0"):
            continue
        whole, zero, scale = (constants[f"{stem}_{kind}"].astype(np.float32) for kind in ("quantized", "zero_point", "scale"))
        model.graph.initializer.append(onnx.numpy_helper.from_array((whole - zero) * scale, f"{stem}_float"))
        cast = users[node.output[0]]
        scaled = users[cast.output[0]]
        nodes[-1] = onnx.helper.make_node("MatMul", [makers[node.input[0]].input[0], f"{stem}_float"], list(scaled.output))
        scaled.output[0] += "_unused"
    part = onnx.ModelProto()
    part.CopyFrom(model)
    del part.graph.node[:], part.graph.input[:], part.graph.output[:]
    wanted, kept = set(PARTS), []
    for node in reversed(nodes):
        if wanted.intersection(node.output) and FEATURES not in node.output:
            kept.append(node)
            wanted.update(node.input)
    part.graph.node.extend(reversed(kept))
    part.graph.input.append(onnx.helper.make_tensor_value_info(FEATURES, 1, (1, WIDTH, "frames")))
    part.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, (1, 601, "frames")) for name in PARTS)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    return onnxruntime.InferenceSession(part.SerializeToString(), settings, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def vocoder() -> HibariVocoder:
    return hibari_vocoder.build({}, "cpu")


@pytest.fixture(scope="module")
def float_back() -> Any:
    return back_of_the_graph(as_float=True)


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return hibari_talker.build({}, "cpu").frames(TEXT)


def parts_of(session: Any, frames: np.ndarray) -> list[np.ndarray]:
    return [part[0] for part in session.run(list(PARTS), {FEATURES: np.ascontiguousarray(frames[:, :WIDTH].T)[None]})]


def hibari_sound(session: Any, frames: np.ndarray) -> np.ndarray:
    return dsp.synth(*parts_of(session, frames), frames[:, WIDTH].copy(), SameNoise())


def log_spectral_distance(a: np.ndarray, b: np.ndarray) -> float:
    """dB, root mean square over bins, mean over frames of 1024 samples that are not silent."""
    spectra = []
    for sound in (a, b):
        windows = np.lib.stride_tricks.sliding_window_view(sound, 1024)[::256] * np.hanning(1024)
        spectra.append(np.abs(np.fft.rfft(windows)))
    loud = spectra[0].max(1) > 1e-2 * spectra[0].max()
    first, second = (20 * np.log10(np.maximum(spectrum[loud], 1e-4)) for spectrum in spectra)
    return float(np.sqrt(((first - second) ** 2).mean(1)).mean())


def test_network_is_the_float_graph(vocoder: HibariVocoder, float_back: Any, frames: np.ndarray) -> None:
    with torch.inference_mode():
        strand = Strand(fresh_tails("cpu"), torch.from_numpy(frames[:, :WIDTH].copy()), True)
        ((_, ours_TPB),) = advance_network(vocoder._network, [strand])
    for ours_TB, theirs_BT in zip(ours_TPB.unbind(1), parts_of(float_back, frames), strict=True):
        assert np.abs(ours_TB.numpy().T - theirs_BT).max() < 1e-4


@pytest.mark.parametrize("count", [1, 2, 3, 4, 28, 30, None])
def test_sound_is_hibari_s(vocoder: HibariVocoder, float_back: Any, frames: np.ndarray, count: int | None) -> None:
    """A segment of any length, also shorter than the 600 samples that are mirrored at its ends."""
    some = frames[:count].copy()
    some[-1, -1] = 1
    theirs = hibari_sound(float_back, some)
    for sizes in [(10**6,), (40,), (7, 1)]:
        ours = decode(vocoder, some, sizes)
        assert ours.shape == theirs.shape == (len(some) * HOP,)
        assert np.abs(ours - theirs).max() < 1e-4


def test_two_segments_are_two_utterances(vocoder: HibariVocoder, float_back: Any, frames: np.ndarray) -> None:
    ours = decode(vocoder, np.concatenate([frames, frames[100:]]), (33,))[: len(frames) * HOP]
    assert np.abs(ours - hibari_sound(float_back, frames)).max() < 1e-4


def test_eight_bits_are_near(vocoder: HibariVocoder, frames: np.ndarray) -> None:
    """Measured: 0.6 dB, and 0.04 of the loudest sample."""
    theirs = hibari_sound(back_of_the_graph(as_float=False), frames)
    ours = decode(vocoder, frames, (40,))
    assert log_spectral_distance(theirs, ours) < 1.5
    assert np.abs(theirs - ours).max() < 0.1 * np.abs(theirs).max()
