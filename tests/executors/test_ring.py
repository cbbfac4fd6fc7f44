"""Shared memory: what is taken is what was put, in any order of putting and taking that two processes can come to."""

from __future__ import annotations

import os
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_runtime.draw import Draw
from omni_runtime.executors.codec import Wire
from omni_runtime.executors.ring import Ring
from omni_runtime.work import ArStep, Row, RunBatch, TensorRef

SIZE = 4096


def pair() -> tuple[Ring, Ring]:
    fd = Ring.new(SIZE)
    assert fd is not None
    try:
        return Ring(fd), Ring(fd)
    finally:
        os.close(fd)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1500), max_size=4) | st.just("take"), max_size=40))
def test_what_is_taken_is_what_was_put(steps: list[list[int] | str]) -> None:
    """A message is a list of arrays; it is taken as a whole."""
    writer, reader = pair()
    waiting: deque[list[tuple[int, np.ndarray]]] = deque()
    value = 0

    def take() -> None:
        for at, array in waiting.popleft():
            assert np.array_equal(reader.take(at, array.nbytes), array)
        reader.done()

    for step in steps:
        if step == "take":
            if waiting:
                take()
            continue
        message = []
        for size in step:
            value += 1
            array = np.full(size, value % 251, np.uint8)
            if (at := writer.put(array)) is not None:
                message.append((at, array))
        waiting.append(message)
    while waiting:
        take()


def test_a_full_ring_takes_nothing_until_it_is_read() -> None:
    writer, reader = pair()
    array = np.arange(3000, dtype=np.uint8)
    at = writer.put(array)
    assert at == 0 and writer.put(array) is None and writer.put(np.zeros(SIZE + 1, np.uint8)) is None
    reader.take(at, array.nbytes)
    assert writer.put(array) is None, "it may not be written over before all of the message was taken"
    reader.done()
    assert writer.put(array) is not None


def batch(*values: object) -> RunBatch:
    ref = TensorRef("a#1", 1, "think", "hidden", 0)
    row = Row(1, "think", 1, 0, (), ArStep(0, (1,), 0, Draw(0, 0)))
    return RunBatch("b#1", 1, "m/e", "forward", [row], tuple((ref, value) for value in values))


def test_large_arrays_go_beside_the_message_and_what_has_no_room_with_it() -> None:
    writer, reader = pair()
    out, into = Wire(out=writer, large=1000), Wire(into=reader)
    arrays = [np.random.default_rng(i).random((3, 60)) for i in range(4)]
    data = [out.encode(batch(array[:, ::2], array)) for array in arrays]
    assert [len(d) > 1000 for d in data] == [False, False, True, True]
    for array, one in zip(arrays, data, strict=True):
        (_, half), (_, whole) = into.message(one).brought  # type: ignore[union-attr]
        assert np.array_equal(whole, array) and np.array_equal(half, array[:, ::2]) and not whole.flags.writeable


def test_what_could_not_be_said_takes_no_room() -> None:
    writer, _ = pair()
    out = Wire(out=writer, large=1000)
    for _ in range(9):
        with pytest.raises(TypeError, match="object cannot travel"):
            out.encode(batch(np.zeros(400), object()))
    assert writer.head == 0
