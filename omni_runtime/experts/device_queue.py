"""The queue of a device as the host sees it: what is put there runs later, in order. On a CPU there is none."""

from __future__ import annotations

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


class CudaMark:
    """An event. `wait` sleeps; the usual kind spins, and would take a core from the engine for as long as a batch takes."""

    def __init__(self, device: torch.device, timed: bool) -> None:
        self._event = torch.cuda.Event(enable_timing=timed, blocking=True)
        self._event.record(torch.cuda.current_stream(device))

    def done(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()

    def since(self, before: Mark) -> float:
        assert isinstance(before, CudaMark)
        return float(before._event.elapsed_time(self._event)) / 1e3


class CudaQueue:
    """Of a CUDA or HIP device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def pinned(self, nbytes: int) -> torch.Tensor:
        with torch.inference_mode(False):  # one that is made in inference mode could not be written to outside of it
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def empty(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source, non_blocking=True)

    def mark(self, timed: bool = False) -> Mark:
        return CudaMark(self._device, timed)


@cache
def queue_of(device: torch.device) -> DeviceQueue | None:
    """The queue of a device; None where work is done before the call returns."""
    return CudaQueue(device) if device.type == "cuda" else None
