"""Constants and parts of a graph, on a graph of three nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime

from omni_runtime.errors import CheckpointError
from omni_runtime.weights.onnx_graph import Constants, cut_graph, load_graph

pytestmark = pytest.mark.oracle


@pytest.fixture
def model() -> Any:
    """a → a + one → (a + one) * b, and the number `unused`."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    arrays = {
        "one": np.ones(2, np.float32),
        "unused": np.zeros(1, np.float32),
        "w_quantized": np.array([[-128, 127]], np.int8),
        "w_zero_point": np.array([-1, 1], np.int8),
        "w_scale": np.array([0.5, 2.0], np.float32),
    }
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "one"], ["sum"]), helper.make_node("Mul", ["sum", "b"], ["product"])],
        "toy",
        [helper.make_tensor_value_info(name, floats, (2,)) for name in ("a", "b")],
        [helper.make_tensor_value_info("product", floats, (2,))],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_part_needs_its_own_inputs_only(model: Any) -> None:
    before = model.SerializeToString()
    part = cut_graph(model, {"sum": (2,)})
    session = onnxruntime.InferenceSession(part, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["a"]
    assert session.run(None, {"a": np.array([1, 2], np.float32)})[0].tolist() == [2, 3]
    assert [tensor.name for tensor in onnx.load_from_string(part).graph.initializer] == ["one"]
    assert model.SerializeToString() == before


def test_a_part_that_is_not_there(model: Any) -> None:
    with pytest.raises(CheckpointError, match="'difference'"):
        cut_graph(model, {"sum": (2,), "difference": (2,)})


def test_constants(model: Any) -> None:
    constants = Constants(model, "toy.onnx")
    assert constants.get("one", (2,)).tolist() == [1, 1]
    assert constants.dequantised("w", (1, 2)).tolist() == [[-63.5, 252.0]]
    with pytest.raises(CheckpointError, match=r"'toy.onnx': no constant 'two'"):
        constants.get("two", (2,))
    with pytest.raises(CheckpointError, match=r"'one' has shape \(2,\), not \(3,\)"):
        constants.get("one", (3,))


def test_files(tmp_path: Any) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_graph(tmp_path / "no.onnx")
    for content in (b"", b"GGUF" * 9):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(CheckpointError, match="ONNX"):
            load_graph(tmp_path / "bad.onnx")
