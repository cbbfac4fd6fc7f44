"""Messages and reports as bytes (msgpack). Numpy arrays travel as an extension: dtype, shape, and raw data or where it lies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import msgspec
import numpy as np
from msgspec.structs import replace

from omni_runtime.executors.ring import Ring
from omni_runtime.work import Answer, Broken, Message, Report

ARRAY, SHARED = 1, 2  # msgpack extension codes
SEND, RETURN = "send", "return"  # what the one who packs does: to an executor, and back
REPORTS = frozenset(get_args(Report))
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
        self._sends, self._returns = (msgspec.msgpack.Encoder(enc_hook=partial(self._pack, do)) for do in (SEND, RETURN))
        self._messages = msgspec.msgpack.Decoder(Message, ext_hook=self._unpack)
        self._reports = msgspec.msgpack.Decoder(Report, ext_hook=self._unpack)

    def close(self) -> None:
        """Lets go of the shared memory now: a wire and its encoder hold each other until the garbage collector comes."""
        self._out = self._into = None

    def encode(self, value: Message | Report) -> bytes:
        """Bytes of a message or report. What is encoded must be sent, in the same order.

        Raises:
            TypeError: something in it is not data, or not data of a size that travels; says what to do.
        """
        do, encoder = (RETURN, self._returns) if type(value) in REPORTS else (SEND, self._sends)
        before = self._out.head if self._out is not None else 0
        try:
            return encoder.encode(value)
        except Exception as error:
            if self._out is not None:
                self._out.head = before
            if (told := _told(error, do)) is not None:
                raise TypeError(told) from None
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

    def _pack(self, do: str, value: Any) -> msgspec.msgpack.Ext:
        if isinstance(value, np.ndarray):
            _check(value, do)
            if self._out is not None and value.nbytes >= self._large and (at := self._out.put(value)) is not None:
                return msgspec.msgpack.Ext(SHARED, msgspec.msgpack.encode((value.dtype.str, value.shape, at)))
            packed = (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
            return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode(packed))
        if isinstance(value, np.generic):
            return self._pack(do, np.asarray(value))
        name = type(value).__name__
        if callable(getattr(value, "cpu", None)) and callable(getattr(value, "numpy", None)):  # torch's, without torch
            first = "float()." if "bfloat16" in str(getattr(value, "dtype", "")) else ""  # numpy has no such type
            raise TypeError(f"{name} belongs to the process that made it; {do} a numpy array: `.{first}cpu().numpy()`")
        raise TypeError(f"{name} is not data; {do} numbers, text, bytes, lists, mappings or arrays")

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


def _check(array: np.ndarray[Any, Any], do: str) -> None:
    """
    Raises:
        TypeError: the array would arrive as another one.
    """
    kind = array.dtype
    if kind.hasobject:
        raise TypeError(f"an array of {kind} holds references; {do} numbers")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"a masked array would lose its mask; {do} `.filled(value)`, or `.data` and `.mask` as two arrays")
    if kind.names is not None:
        raise TypeError(f"a structured array would lose the names of its fields {kind.names}; {do} one array for each field")
    if np.dtype(kind.str) != kind:  # types that numpy does not know by itself, such as a bfloat16
        raise TypeError(f"an array of {kind} would arrive as {kind.str}; {do} `.astype(numpy.float32)`")


def _told(error: Exception, do: str) -> str | None:
    """A sentence for what msgspec says in its own words; None where ours was said already."""
    if isinstance(error, OverflowError):
        return f"an integer beyond 64 bits does not travel; {do} it as text, or as a float"
    if isinstance(error, UnicodeEncodeError):
        half = f"{error.object[error.start]!a} at {error.start}"
        return f"text with half a character, {half}, does not travel; {do} `text.encode('utf-8', 'replace').decode()`"
    if isinstance(error, RecursionError):
        return f"lists or mappings nested so deep (or in themselves) do not travel; {do} flat ones"
    return None


def told(wire: Wire, report: Report, unsaid: Callable[[Answer], None] = lambda answer: None) -> bytes:
    """A report as bytes. What cannot travel in an answer is a fault of its batch, and of nobody else.

    Args:
        unsaid: is told of an answer that could not be said, since what it names is not known to anybody.
    """
    try:
        return wire.encode(report)
    except Exception as error:
        if isinstance(report, Broken):  # its text was made by an op: half a character in it must not end a worker
            return wire.encode(replace(report, error=report.error.encode("utf-8", "backslashreplace").decode()))
        if not isinstance(report, Answer):
            raise
        unsaid(report)
        return wire.encode(Broken(report.executor, report.batch, f"an answer that cannot travel back: {error}"))


_plain = Wire()
encode, decode_message, decode_report = _plain.encode, _plain.message, _plain.report
