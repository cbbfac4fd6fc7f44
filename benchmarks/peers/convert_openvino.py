"""SmolLM2 for OpenVINO, in float32: run in its environment, with the folder that `make_models.py` wrote."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import openvino
import openvino_genai as genai
from safetensors.numpy import load_file

ROPE_THETA, NORM_EPS = 1e5, 1e-5


def convert(models: Path) -> None:
    """`ov-half` as OpenVINO's reader of GGUF makes it (it reads no float32), and `ov` with the float32 weights put back."""
    half, full = models / "ov-half", models / "ov"
    half.mkdir(exist_ok=True)
    shutil.copy(models / "half.gguf", half / "m.gguf")
    genai.LLMPipeline(str(half / "m.gguf"), "CPU", enable_save_ov_model=True)
    (half / "m.gguf").unlink()
    weights = load_file(models / "hf" / "model.safetensors")
    others = [weight for name, weight in weights.items() if "norm" in name]  # its constants have no names
    others += [ROPE_THETA ** (-np.arange(32, dtype=np.float64) / 32), np.array(NORM_EPS)]
    model = openvino.Core().read_model(half / "openvino_model.xml")
    for constant in model.get_ops():
        if constant.get_type_name() != "Constant" or constant.get_output_element_type(0) != openvino.Type.f16:
            continue
        name, held = constant.get_friendly_name().replace("[", ".").replace("]", ""), constant.data
        weight = weights.get(name)
        if weight is None:
            same = [other for other in others if other.size == held.size and np.allclose(other.ravel(), held.ravel(), 3e-3, 1e-8)]
            assert len(same) == 1 or held.size == 1, name
            weight = same[0] if same else held
        assert np.allclose(weight.ravel(), held.ravel(), 3e-3, 1e-4), name
        exact = openvino.opset13.constant(weight.astype(np.float32).reshape(held.shape))
        for reader in constant.output(0).get_target_inputs():
            assert reader.get_node().get_type_name() == "Convert", name
            reader.get_node().output(0).replace(exact.output(0))
    shutil.copytree(half, full, dirs_exist_ok=True)
    openvino.save_model(model, full / "openvino_model.xml", compress_to_fp16=False)


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
