"""What `torch.cuda` answers on a fake GPU: `FakeGpu` puts it there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from fake_gpu import FakeGpu
from fake_tensor import CUDA

FREE, TOTAL = 8 << 30, 16 << 30  # bytes


def faked(gpu: FakeGpu) -> dict[str, Any]:
    """By name, what stands in `torch.cuda`."""

    class Stream:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.device, self.cuda_stream = CUDA, 0

        def synchronize(self) -> None:
            gpu.wait("reads", "stream")

        def query(self) -> bool:
            return not gpu.length

        def wait_stream(self, other: Any) -> None: ...

        def wait_event(self, event: Any) -> None: ...

        def record_event(self, event: Any = None) -> Any:
            event = event or Event()
            event.record(self)
            return event

    class Event:
        """Of copies that were under way when it was recorded, those that are not done yet."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self._last: Any = None
            self._at = 0.0

        def record(self, stream: Any = None) -> None:
            self._last, self._at = gpu.last, time.perf_counter()

        def wait(self, stream: Any = None) -> None: ...

        def query(self) -> bool:
            return not gpu.waits_for(self._last)

        def synchronize(self) -> None:
            if gpu.recording is not None:
                raise RuntimeError("operation not permitted when stream is capturing: an event is waited for")
            gpu.note("reads", "event")
            gpu.until(self._last)

        def elapsed_time(self, other: Any) -> float:
            return 1e3 * float(other._at - self._at)  # as if work took the time in which it was queued

    class CUDAGraph:
        def __init__(self, *_: Any, **__: Any) -> None:
            self._recorded: list[Callable[[], None]] | None = None

        def capture_begin(self, *_: Any, **__: Any) -> None:
            assert gpu.recording is None, "a graph is being recorded already"
            gpu.recording = []

        def capture_end(self) -> None:
            self._recorded, gpu.recording = gpu.recording, None

        def replay(self) -> None:
            assert self._recorded is not None, "a graph that was not recorded"
            gpu.launched["graph"] += 1
            gpu.replay(self._recorded)

        def reset(self) -> None:
            self._recorded = None

        def pool(self) -> tuple[int, int]:
            return (0, 0)

    @contextmanager
    def graph(cuda_graph: CUDAGraph, *_: Any, **__: Any) -> Iterator[None]:
        cuda_graph.capture_begin()
        try:
            yield
        except BaseException:
            gpu.recording = None
            raise
        cuda_graph.capture_end()

    usual = Stream()
    streams = threading.local()

    @contextmanager
    def within(other: Any) -> Iterator[None]:
        before, streams.now = current(), other
        try:
            yield
        finally:
            streams.now = before

    def current(device: Any = None) -> Any:
        return getattr(streams, "now", usual)

    properties = SimpleNamespace(name="fake GPU", multi_processor_count=132, total_memory=TOTAL)
    return {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": lambda device: nullcontext(),
        "get_device_name": lambda device=None: "fake GPU",
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: properties,
        "mem_get_info": lambda device=None: (FREE, TOTAL),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "synchronize": lambda device=None: gpu.wait("reads", "synchronize"),
        "current_stream": current,
        "default_stream": lambda device=None: usual,
        "set_stream": lambda other: setattr(streams, "now", other),
        "stream": within,
        "is_current_stream_capturing": lambda: gpu.recording is not None,
        "graph_pool_handle": lambda: (0, 0),
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
    }
