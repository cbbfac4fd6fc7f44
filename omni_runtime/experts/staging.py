"""Numbers to a device and back without waiting for it: through pinned memory, which the device copies by itself.

A copy from ordinary memory makes the host wait until the device has come to it. Pinned memory does not, but must not be written
or let go before the copy has run: so every buffer is lent with a mark in the device's queue, and is used again only when that is
done. Buffers belong to a thread: an executor that was lost may still be using those of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from omni_runtime.experts.device_queue import DeviceQueue, Mark, queue_of

Array = np.ndarray[Any, Any]

ALIGN = (
    64  # bytes at which an array begins in a buffer; Triton loads 16 at once from addresses that it knows to be multiples of 16
)
LEAST = 1 << 12  # bytes of a buffer: sizes are powers of two from here, so that most can be used again


class Pinned:
    """Pinned buffers of one thread and queue."""

    def __init__(self, queue: DeviceQueue) -> None:
        self._queue = queue
        self._free: list[torch.Tensor] = []
        self._lent: deque[tuple[Mark, torch.Tensor]] = deque()  # in the order of the queue, so the first is done first

    def take(self, nbytes: int) -> torch.Tensor:
        """uint8, at least so many: nothing that is queued reads or writes it."""
        while self._lent and self._lent[0][0].done():
            self._free.append(self._lent.popleft()[1])
        fits = [at for at, buffer in enumerate(self._free) if len(buffer) >= nbytes]
        if fits:
            return self._free.pop(min(fits, key=lambda at: len(self._free[at])))
        return self._queue.pinned(max(LEAST, 1 << max(nbytes - 1, 0).bit_length()))

    def lend(self, buffer: torch.Tensor) -> None:
        """To the copies that have been queued until now."""
        self._lent.append((self._queue.mark(), buffer))

    def give(self, buffer: torch.Tensor) -> None:
        """Back, by whoever knows that nothing queued uses it."""
        self._free.append(buffer)


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_queue: dict[DeviceQueue, Pinned] = {}


_buffers = _Buffers()


def pinned_of(queue: DeviceQueue) -> Pinned:
    """The calling thread's buffers."""
    found = _buffers.by_queue.get(queue)
    if found is None:
        found = _buffers.by_queue[queue] = Pinned(queue)
    return found


class Staging:
    """Sends arrays to a device.

    Args:
        device: where to. Where nothing is queued, as on a CPU, they are copied at once.
        queue: of the device; found by itself.
    """

    def __init__(self, device: torch.device, queue: DeviceQueue | None = None) -> None:
        self._device = device
        self._queue = queue_of(device) if queue is None else queue

    def send(self, arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
        """Tensors of the same shapes and dtypes, by the same names: one buffer, one copy, and no waiting.

        The arrays may be changed as soon as this returns. The tensors share memory on the device, which lives as long as any of
        them. They are fit for work that is queued after this by the same thread.
        """
        if self._queue is None or not arrays:
            return {name: torch.tensor(array, device=self._device) for name, array in arrays.items()}
        places: dict[str, tuple[int, int]] = {}
        end = 0
        for name, array in arrays.items():
            places[name] = (end, end + array.nbytes)
            end += -(-array.nbytes // ALIGN) * ALIGN
        lent = pinned_of(self._queue)
        buffer = lent.take(end)
        host = buffer.numpy()
        for name, array in arrays.items():
            low, high = places[name]
            host[low:high].view(array.dtype).reshape(array.shape)[...] = array
        sent = self._queue.empty(end)
        self._queue.copy(sent, buffer[:end])
        lent.lend(buffer)
        found = {}
        for name, array in arrays.items():
            low, high = places[name]
            kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
            found[name] = sent[low:high].view(kind).view(array.shape)
        return found


class Reading:
    """Copies of tensors on their way to the host; made when whatever computes them has been queued.

    The tensors may be let go, and overwritten by what is queued later, as soon as this is made.

    Args:
        tensors: on one device. On a CPU they are copied at once.
        queue: of the device; found by itself.
    """

    def __init__(self, *tensors: torch.Tensor, queue: DeviceQueue | None = None) -> None:
        self._found: tuple[torch.Tensor, ...] | None = None
        if queue is None and tensors:
            queue = queue_of(tensors[0].device)
        if queue is None:
            self._found = tuple(tensor.detach().clone() for tensor in tensors)
            return
        self._places: list[tuple[int, int, torch.dtype, torch.Size]] = []
        end = 0
        for tensor in tensors:
            self._places.append((end, end + tensor.nbytes, tensor.dtype, tensor.shape))
            end += -(-tensor.nbytes // ALIGN) * ALIGN
        self._lent = pinned_of(queue)
        self._buffer: torch.Tensor | None = self._lent.take(end)
        for tensor, (low, high, kind, shape) in zip(tensors, self._places, strict=True):
            queue.copy(self._buffer[low:high].view(kind).view(shape), tensor.detach())
        self._mark = queue.mark()

    def get(self) -> tuple[torch.Tensor, ...]:
        """The copies, in ordinary memory, once the device has made them; may be asked again.

        Raises what torch raises for queued work that failed.
        """
        if self._found is None:
            assert self._buffer is not None
            self._mark.wait()
            self._found = tuple(self._buffer[low:high].view(kind).view(shape).clone() for low, high, kind, shape in self._places)
            self._lent.give(self._buffer)
            self._buffer = None
        return self._found
