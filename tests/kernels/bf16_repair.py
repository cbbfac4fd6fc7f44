"""Makes the interpreter compute bfloat16 as a GPU does: every operation in float32, rounded to nearest even. For tests only.

The interpreter keeps bfloat16 as uint16 and adds, multiplies and sums those integers; float32 becomes bfloat16 by cutting off
bits. Without this, a kernel that forgets an upcast fails here and nowhere else, one that multiplies bfloat16 matrices as it
should fails too, and every tolerance is twice too wide. A comparison of scalars keeps the type of what it compared, and as part
of a mask it is spread as that; here it is a bool. It reaches into private parts of triton, so `interpreted_repair.py` fails
when they move.
"""

from types import SimpleNamespace

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

Handle = interpreter.TensorHandle


def widen(bits: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(np.shape(bits))


def narrow(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded.astype(np.uint16).reshape(np.shape(values))).astype(np.uint16)


def is_bfloat16(handle) -> bool:
    return not isinstance(handle.dtype, tl.pointer_type) and handle.dtype.scalar == tl.bfloat16


def up(handle):
    return Handle(widen(handle.data), tl.float32) if is_bfloat16(handle) else handle


def down(handle):
    return Handle(narrow(handle.data), tl.bfloat16)


def _cast(original):
    def cast_impl(self, source, target):
        if target.scalar == tl.bfloat16:
            if is_bfloat16(source):
                return source
            return down(source if source.data.dtype == np.float32 else Handle(source.data.astype(np.float32), tl.float32))
        return original(self, up(source), target) if is_bfloat16(source) and target.scalar != tl.float32 else (
            up(source) if is_bfloat16(source) else original(self, source, target)
        )  # fmt: skip

    return cast_impl


def _operation(original, count):
    """One that takes `count` handles of one dtype and then other things."""

    def operation(self, *arguments):
        handles = arguments[:count]
        narrow_ones = all(is_bfloat16(handle) for handle in handles)
        result = (
            original(self, *(up(handle) for handle in handles), *arguments[count:]) if narrow_ones else original(self, *arguments)
        )
        if result.data.dtype == np.bool_:
            return Handle(result.data, tl.int1)
        return down(result) if narrow_ones else result

    return operation


def _dot(original):
    return lambda self, a, b, *rest: original(self, up(a), up(b), *rest)


def _reduction(original):
    def apply(self, given):
        parts = given if isinstance(given, tuple) else (given,)
        if not any(part.dtype == tl.bfloat16 for part in parts):
            return original(self, given)
        wide = tuple(part.to(tl.float32) for part in parts)
        done = original(self, wide if isinstance(given, tuple) else wide[0])
        results = done if isinstance(done, tuple) else (done,)
        results = tuple(r.to(tl.bfloat16) if p.dtype == tl.bfloat16 else r for p, r in zip(parts, results, strict=True))
        return results if isinstance(done, tuple) else results[0]

    return apply


def install() -> None:
    """Once a process."""
    builder = interpreter.InterpreterBuilder
    if hasattr(builder, "_repaired"):
        return
    builder._repaired = True
    builder.cast_impl = _cast(builder.cast_impl)
    builder.binary_op = _operation(builder.binary_op, 2)
    builder.unary_op = _operation(builder.unary_op, 1)
    builder.create_fma = _operation(builder.create_fma, 3)
    builder.create_dot = _dot(builder.create_dot)
    for kind in (interpreter.ReduceOps, interpreter.ScanOps):
        kind.apply = _reduction(kind.apply)
    _patch_once()


def _patch_once() -> None:
    """A launch replaces `triton.language`, and each nested function did so again: that took most of the time."""

    def call(self, *arguments, **options):
        try:
            return self.rewrite()(*arguments, **options)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.InterpretedFunction.__call__ = call

    original, everything = interpreter._patch_lang, SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang = lambda _: original(everything)
