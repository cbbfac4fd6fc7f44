"""The queue of a device as the host sees it: what is put there runs later, in order. On a CPU there is none.

An executor has one stream of its own. Memory on the device may be let go while work that uses it is still queued: torch's
allocator keeps what is let go for the stream that it was made on, so the next owner's work is queued behind the last one's. That
holds for batches, for tensors that a Release takes, for the state that a Drop takes, and for KV blocks that change hands. The one
other stream, that of copies to the host beside queued batches (`behind`), is waited for before what it reads can be let go.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Protocol

import torch


class Mark(Protocol):
    """A moment in a device's queue, between what was put there before it and what comes after."""

    def done(self) -> bool:
        """Whether the device has come so far."""
        ...

    def wait(self) -> None:
        """Until it has. Raises what torch raises for work before it that failed."""
        ...

    def since(self, before: Mark) -> float:
        """Seconds on the device since another moment that it has passed; both made as `timed`."""
        ...


class DeviceQueue(Protocol):
    """What transfers need. It is always the calling thread's current stream that is meant."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes] on the host, which the device can copy from and to by itself."""
        ...

    def empty(self, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes] on the device. Let go, it is used again only by what is queued later."""
        ...

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Puts a copy into the queue; what is on the host must stay as it is until that has run."""
        ...

    def mark(self, timed: bool = False) -> Mark: ...

    def behind(self, mark: Mark) -> AbstractContextManager[None]:
        """What is queued inside runs after that moment, beside what was queued since. It must be waited for inside."""
        ...


class CudaMark:
    """An event. `wait` sleeps; the usual kind spins, and would take a core from the engine for as long as a batch takes."""

    def __init__(self, device: torch.device, timed: bool) -> None:
        self._event = torch.cuda.Event(enable_timing=timed, blocking=True)
        self._event.record(torch.cuda.current_stream(device))

    def done(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()

    def before(self, stream: torch.cuda.Stream) -> None:
        """Makes a stream wait for it."""
        stream.wait_event(self._event)

    def since(self, before: Mark) -> float:
        assert isinstance(before, CudaMark)
        return float(before._event.elapsed_time(self._event)) / 1e3


class _Side(threading.local):
    stream: torch.cuda.Stream | None = None


class CudaQueue:
    """Of a CUDA or HIP device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = _Side()

    def pinned(self, nbytes: int) -> torch.Tensor:
        with torch.inference_mode(False):  # one that is made in inference mode could not be written to outside of it
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def empty(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source, non_blocking=True)

    def mark(self, timed: bool = False) -> Mark:
        return CudaMark(self._device, timed)

    @contextmanager
    def behind(self, mark: Mark) -> Iterator[None]:
        assert isinstance(mark, CudaMark)
        if self._side.stream is None:
            self._side.stream = torch.cuda.Stream(self._device)
        mark.before(self._side.stream)
        with torch.cuda.stream(self._side.stream):
            yield


@cache
def queue_of(device: torch.device) -> DeviceQueue | None:
    """The queue of a device; None where work is done before the call returns."""
    return CudaQueue(device) if device.type == "cuda" else None


_opened: dict[torch.device, list[torch.cuda.Stream]] = {}
_opening = threading.Lock()


def opened(device: str) -> DeviceQueue | None:
    """The queue of a device; the calling thread has a stream of its own from now on.

    It begins behind all that is queued by now: weights were loaded on the default stream, by another thread, and what an
    incarnation before this one made for later, such as a speaker's voice, may not be there yet.
    """
    where = torch.device(device)
    queue = queue_of(where)
    if queue is not None:
        stream = torch.cuda.Stream(where)
        with _opening:
            before = _opened.setdefault(where, [torch.cuda.default_stream(where)])
            for other in before:
                stream.wait_stream(other)
            before.append(stream)
        torch.cuda.set_stream(stream)
    return queue
