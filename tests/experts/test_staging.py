"""Arrays to a device and back, on a device that comes to nothing until it must."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from fake_queue import FakeQueue
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_runtime.experts import device_queue, staging
from omni_runtime.experts.staging import ALIGN, Pinned, Reading, Staging, pinned_of

CPU = torch.device("cpu")
KINDS = ("float32", "float64", "int64", "int32", "int16", "uint8", "bool", "float16")


def drawn(seed: int, shape: tuple[int, ...], kind: str) -> staging.Array:
    return np.random.default_rng(seed).integers(0, 2 if kind == "bool" else 100, shape).astype(kind)


@pytest.mark.parametrize("queue", [None, FakeQueue()], ids=["cpu", "device"])
def test_what_is_sent_arrives_and_comes_back(queue: FakeQueue | None) -> None:
    shapes = ((3, 5), (), (0, 4), (7,), (1, 1, 2))
    arrays = {f"{kind}{at}": drawn(at, shape, kind) for kind in KINDS for at, shape in enumerate(shapes)}
    arrays["turned"] = drawn(9, (4, 6), "float32").T
    wanted = {name: array.copy() for name, array in arrays.items()}
    sent = Staging(CPU, queue).send(arrays)
    for array in arrays.values():  # as soon as it returns they may be changed
        array[...] = 0
    if queue is not None:
        assert all(torch.isnan(sent[f"float32{at}"]).all() for at in (0, 3, 4)), "read before the copy ran"
        assert all(tensor.data_ptr() % ALIGN == sent["float320"].data_ptr() % ALIGN for tensor in sent.values() if tensor.numel())
        queue.run()
    back = Reading(*sent.values(), queue=queue)
    for tensor in sent.values():  # overwritten by what comes later, on a device by what is queued later
        if queue is None:
            tensor.zero_()
        else:
            queue.put(lambda tensor=tensor: float(tensor.zero_().numel()))  # type: ignore[misc]
    for (name, array), tensor, found in zip(wanted.items(), sent.values(), back.get(), strict=True):
        assert tensor.dtype == found.dtype == torch.from_numpy(array).dtype, name
        np.testing.assert_array_equal(found.numpy(), array)
    assert back.get() is back.get()


def test_bfloat16_and_parts_of_tensors_come_back() -> None:
    queue = FakeQueue()
    whole = torch.arange(24, dtype=torch.bfloat16).view(4, 6)
    first, second = Reading(whole[:, 1:3], whole.T, queue=queue).get()
    assert first.equal(whole[:, 1:3]) and second.equal(whole.T) and first.dtype == torch.bfloat16


Worlds = st.lists(st.tuples(st.sampled_from(("send", "read", "get", "run")), st.integers(1, 3000)), max_size=24)


def world(events: list[tuple[str, int]]) -> int:
    """Sends and reads in a drawn order, the device as late as drawn; returns how many pinned buffers there were."""
    queue = FakeQueue()
    stage = Staging(CPU, queue)
    sent: list[tuple[staging.Array, torch.Tensor]] = []
    reads: list[tuple[staging.Array, Reading]] = []
    for at, (what, size) in enumerate(events):
        if what == "send":
            array = drawn(at, (size,), "int64") + at * 1000
            sent.append((array, stage.send({"x": array, "y": array})["x"]))
        elif what == "read" and sent:
            array, tensor = sent[-1 - size % len(sent)]
            reads.append((array, Reading(tensor, queue=queue)))
        elif what == "get" and reads:
            array, reading = reads[-1 - size % len(reads)]
            np.testing.assert_array_equal(reading.get()[0].numpy(), array)
        elif what == "run":
            queue.run(min(len(queue.works), queue.ran + size % 4))
    queue.run()
    for array, tensor in sent:
        np.testing.assert_array_equal(tensor.numpy(), array)
    for array, reading in reads:
        np.testing.assert_array_equal(reading.get()[0].numpy(), array)
    return len(queue.pins)


@settings(max_examples=60, deadline=None)
@given(Worlds)
def test_a_pinned_buffer_is_used_again_only_after_its_copies(events: list[tuple[str, int]]) -> None:
    world(events)


def test_buffers_are_used_again() -> None:
    assert world([event for _ in range(50) for event in (("send", 700), ("read", 0), ("run", 3), ("get", 0), ("run", 3))]) <= 3


def lends_at_once(self: Pinned, buffer: torch.Tensor) -> None:
    self._free.append(buffer)


def takes_unasked(self: Pinned, nbytes: int) -> torch.Tensor:
    while self._lent:
        self._free.append(self._lent.popleft()[1])
    return take(self, nbytes)


def reads_early(self: Reading) -> tuple[torch.Tensor, ...]:
    if self._found is None:
        self._mark.wait = lambda: None  # type: ignore[method-assign]
    return get(self)


def gives_twice(self: Reading) -> tuple[torch.Tensor, ...]:
    buffer = self._buffer
    found = get(self)
    if buffer is not None:
        self._lent.give(buffer)
    return found


take, get = Pinned.take, Reading.get
MUTANTS: list[tuple[type, str, Callable[..., object]]] = [
    (Pinned, "lend", lends_at_once),
    (Pinned, "take", takes_unasked),
    (Reading, "get", reads_early),
    (Reading, "get", gives_twice),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant[2].__name__)
def test_a_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, mutant: tuple[type, str, Callable[..., object]]) -> None:
    monkeypatch.setattr(*mutant)
    sends = [("send", 700)] * 3
    with pytest.raises(AssertionError):
        world([*sends, ("read", 0), ("read", 1), ("get", 1), *sends, ("read", 0), ("read", 1), ("get", 0), ("get", 1)])


def test_threads_have_buffers_of_their_own() -> None:
    from concurrent.futures import ThreadPoolExecutor

    queue = FakeQueue()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(pinned_of, queue).result() is not pinned_of(queue)
    assert pinned_of(queue) is pinned_of(queue)


def test_a_stream_begins_behind_all_that_was_queued_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """By other threads, on the default stream and on those of incarnations before; and it is the thread's own from then on."""
    waits: list[tuple[str, str]] = []

    class Stream:
        made = 0

        def __init__(self, device: object) -> None:
            Stream.made += 1
            self.name = f"own {Stream.made}"

        def wait_stream(self, other: object) -> None:
            waits.append((self.name, getattr(other, "name", "default")))

    chosen: list[str] = []
    monkeypatch.setattr(device_queue, "_opened", {})
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "default")
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: chosen.append(stream.name))
    assert device_queue.opened("cuda:1") is device_queue.opened("cuda:1") is not None
    assert waits == [("own 1", "default"), ("own 2", "default"), ("own 2", "own 1")] and chosen == ["own 1", "own 2"]
    assert device_queue.opened("cpu") is None and len(chosen) == 2
