"""Messages and reports as bytes (msgpack). Numpy arrays travel as an extension: dtype, shape, raw data."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from omni_runtime.work import Message, Report

ARRAY = 1  # msgpack extension code


def _encode(value: Any) -> msgspec.msgpack.Ext:
    if isinstance(value, np.ndarray):
        packed = (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
        return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(packed))
    if isinstance(value, np.generic):
        return _encode(np.asarray(value))
    raise TypeError(f"{type(value).__name__} cannot travel to an executor; send numbers, text, bytes, lists, mappings or arrays")


def _decode(code: int, data: memoryview) -> Any:
    if code != ARRAY:
        raise ValueError(f"unknown msgpack extension {code}")
    dtype, shape, raw = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], bytes])
    return np.frombuffer(raw, np.dtype(dtype)).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode)
_messages = msgspec.msgpack.Decoder(Message, ext_hook=_decode)
_reports = msgspec.msgpack.Decoder(Report, ext_hook=_decode)


def encode(value: Message | Report) -> bytes:
    """Bytes of a message or report.

    Raises:
        TypeError: something in it is not data.
    """
    return _encoder.encode(value)


def decode_message(data: bytes) -> Message:
    """The message in these bytes. Raises msgspec.ValidationError where they hold none."""
    found: Message = _messages.decode(data)
    return found


def decode_report(data: bytes) -> Report:
    """The report in these bytes. Raises msgspec.ValidationError where they hold none."""
    found: Report = _reports.decode(data)
    return found
