"""ONNX files: named constants as float arrays, and a part of a graph cut out in memory.

The `onnx` package is loaded on first use: only models that come as ONNX need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_runtime.errors import CheckpointError, MissingExtra

Array = npt.NDArray[np.float32]


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as missing:
        raise MissingExtra("reading an ONNX file needs the package onnx: pip install 'omni_runtime[speech]'") from missing
    return onnx


def load_graph(path: Path) -> Any:
    """The ModelProto in a file.

    Raises:
        CheckpointError: no such file, or not an ONNX model.
        MissingExtra: the package onnx is not installed.
    """
    onnx = _onnx()
    try:
        model = onnx.load(str(path))
    except OSError as error:
        raise CheckpointError(f"model {str(path)!r}: cannot be read ({error.strerror}); check the path") from error
    except Exception as error:  # protobuf's DecodeError; its home has moved between versions
        raise CheckpointError(f"model {str(path)!r}: not an ONNX file ({error})") from error
    if not model.graph.node:
        raise CheckpointError(f"model {str(path)!r}: an ONNX file without a graph")
    return model


class Constants:
    """The initializers of a graph by name, as float32 arrays."""

    def __init__(self, model: Any, path: str) -> None:
        self._path = path
        self._by_name = {tensor.name: tensor for tensor in model.graph.initializer}

    def get(self, name: str, shape: tuple[int, ...]) -> Array:
        """A constant as it stands.

        Raises:
            CheckpointError: it is missing, or has another shape.
        """
        return np.asarray(self._raw(name, shape), dtype=np.float32)

    def dequantised(self, name: str, shape: tuple[int, ...]) -> Array:
        """An 8-bit weight as float: (q - zero point) * scale, from the three constants `name_quantized`, `_zero_point`, `_scale`.

        The scale may be one number or one a column (ONNX DequantizeLinear, per tensor or along the last axis).

        Raises:
            CheckpointError: one of the three is missing, or has another shape.
        """
        whole = self._raw(f"{name}_quantized", shape).astype(np.float32)
        zero = self._raw(f"{name}_zero_point", None).astype(np.float32)
        scale = self._raw(f"{name}_scale", None).astype(np.float32)
        return (whole - zero) * scale

    def _raw(self, name: str, shape: tuple[int, ...] | None) -> npt.NDArray[Any]:
        tensor = self._by_name.get(name)
        if tensor is None:
            raise CheckpointError(f"model {self._path!r}: no constant {name!r}; is it another model?")
        found: npt.NDArray[Any] = _onnx().numpy_helper.to_array(tensor)
        if shape is not None and found.shape != shape:
            raise CheckpointError(f"model {self._path!r}: {name!r} has shape {found.shape}, not {shape}; is it another model?")
        return found


def cut_graph(model: Any, outputs: dict[str, tuple[str | int, ...]]) -> bytes:
    """The part of a graph that its inputs need to make these tensors, as the bytes of a model of its own.

    Args:
        model: a ModelProto, left as it is.
        outputs: shape by name of float32 tensors anywhere in the graph; a text stands for an axis of any length.

    Raises:
        CheckpointError: no node makes one of the outputs.
    """
    onnx = _onnx()
    makers = {name: node for node in model.graph.node for name in node.output}
    unknown = [name for name in outputs if name not in makers]
    if unknown:
        raise CheckpointError(f"no node of the graph makes {unknown}; is it another model?")
    wanted: set[str] = set()
    ahead = list(outputs)
    while ahead:
        name = ahead.pop()
        if name in wanted:
            continue
        wanted.add(name)
        if name in makers:
            ahead.extend(makers[name].input)
    graph = onnx.helper.make_graph(
        [node for node in model.graph.node if wanted.intersection(node.output)],
        "cut",
        [value for value in model.graph.input if value.name in wanted],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [tensor for tensor in model.graph.initializer if tensor.name in wanted],
    )
    part = onnx.helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    serialized: bytes = part.SerializeToString()
    return serialized
