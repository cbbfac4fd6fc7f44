"""Messages and reports as bytes (msgpack). Numpy arrays travel as an extension: dtype, shape, and raw data or where it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from omni_runtime.executors.ring import Ring
from omni_runtime.work import Answer, Broken, Message, Report

ARRAY, SHARED = 1, 2  # msgpack extension codes
LARGE = 1 << 15  # bytes from which an array goes through shared memory: 12 µs each there, as 32 kB take in the message


class Wire:
    """Both directions of one connection.

    Args:
        out: shared memory for large arrays that are sent; None: they go with their message.
        into: the same of what is received.
        large: bytes from which an array is large.
        own: what comes through shared memory may be written to: it was copied out, and nobody else has it.
    """

    def __init__(self, out: Ring | None = None, into: Ring | None = None, large: int = LARGE, own: bool = False) -> None:
        self._out, self._into, self._large, self._own = out, into, large, own
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._pack)
        self._messages = msgspec.msgpack.Decoder(Message, ext_hook=self._unpack)
        self._reports = msgspec.msgpack.Decoder(Report, ext_hook=self._unpack)

    def close(self) -> None:
        """Lets go of the shared memory now: a wire and its encoder hold each other until the garbage collector comes."""
        self._out = self._into = None

    def encode(self, value: Message | Report) -> bytes:
        """Bytes of a message or report. What is encoded must be sent, in the same order.

        Raises:
            TypeError: something in it is not data.
        """
        if self._out is None:
            return self._encoder.encode(value)
        before = self._out.head
        try:
            return self._encoder.encode(value)
        except Exception:
            self._out.head = before
            raise

    def message(self, data: bytes) -> Message:
        """The message in these bytes. Raises msgspec.ValidationError where they hold none."""
        found: Message = self._messages.decode(data)
        if self._into is not None:
            self._into.done()
        return found

    def report(self, data: bytes) -> Report:
        """The report in these bytes. Raises msgspec.ValidationError where they hold none."""
        found: Report = self._reports.decode(data)
        if self._into is not None:
            self._into.done()
        return found

    def _pack(self, value: Any) -> msgspec.msgpack.Ext:
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                raise TypeError(f"an array of {value.dtype} cannot travel to an executor; send numbers")
            if self._out is not None and value.nbytes >= self._large and (at := self._out.put(value)) is not None:
                return msgspec.msgpack.Ext(SHARED, msgspec.msgpack.encode((value.dtype.str, value.shape, at)))
            packed = (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
            return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(packed))
        if isinstance(value, np.generic):
            return self._pack(np.asarray(value))
        raise TypeError(
            f"{type(value).__name__} cannot travel to an executor; send numbers, text, bytes, lists, mappings or arrays"
        )

    def _unpack(self, code: int, data: memoryview) -> Any:
        if code == ARRAY:
            dtype, shape, raw = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], bytes])
            return np.frombuffer(raw, np.dtype(dtype)).reshape(shape)
        if code == SHARED and self._into is not None:
            dtype, shape, at = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], int])
            kind = np.dtype(dtype)
            array = self._into.take(at, int(np.prod(shape)) * kind.itemsize).view(kind).reshape(shape)
            array.flags.writeable = self._own  # those that came with their message never are
            return array
        raise ValueError(f"unknown msgpack extension {code}")


def told(wire: Wire, report: Report, unsaid: Callable[[Answer], None] = lambda answer: None) -> bytes:
    """A report as bytes. What cannot travel in an answer is a fault of its batch, and of nobody else.

    Args:
        unsaid: is told of an answer that could not be said, since what it names is not known to anybody.
    """
    try:
        return wire.encode(report)
    except Exception as error:
        if not isinstance(report, Answer):
            raise
        unsaid(report)
        return wire.encode(Broken(report.executor, report.batch, f"an answer that cannot travel back: {error}"))


_plain = Wire()
encode, decode_message, decode_report = _plain.encode, _plain.message, _plain.report
