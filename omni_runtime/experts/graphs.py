"""Work that repeats, as CUDA graphs: a step of hundreds of kernels becomes one launch.

A graph is of one key: everything that a function does differently for other numbers must be in the key (rows, sizes, flags), or
in the tensors that it is given. Graphs of an expert share a private pool of memory: they are of one thread and run one after the
other on its stream, so what one leaves behind may be what the next writes over. Inputs and outputs are not in it, and stay.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from omni_runtime.errors import OmniError

Inputs = Mapping[str, torch.Tensor]
Outputs = tuple[torch.Tensor, ...]
Function = Callable[[Inputs], Outputs]

EAGER = 2  # calls of a key before it is captured: what a key needs once is compiled, tuned and allocated by then
KEYS = 1 << 10  # of which calls are counted


class Recorder(Protocol):
    """What makes a graph of a call."""

    def record(self, call: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        """The outputs, which hold nothing yet, and what fills them; `call` is called, on memory that stays where it is."""
        ...


class CudaRecorder:
    """Captures on a stream of its own, into one pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, call: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        here = torch.cuda.current_stream(self._device)
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            made = call()  # a library's workspace is made for each stream, and must not be made while it is captured
        here.wait_stream(self._side)
        # Of memory in the pool, another graph's replay may write over any that was free when that one was captured, and an
        # earlier graph's intermediates were free when this one is. So outputs are elsewhere.
        outputs = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in made)
        del made
        graph = torch.cuda.CUDAGraph()
        # Only what this thread does is held to the rules of a capture: other executors of the process go on.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"):
            for output, x in zip(outputs, call(), strict=True):
                output.copy_(x)
        return outputs, graph.replay


def recorder_of(device: torch.device) -> Recorder | None:
    """Of a device; None where there are no graphs."""
    return CudaRecorder(device) if device.type == "cuda" else None


@dataclass
class _Graph:
    fn: Function  # held, and so is what it closes over: its memory is in the graph
    inputs: dict[str, torch.Tensor]
    outputs: Outputs
    replay: Callable[[], None]


class _Kept(threading.local):
    """Of one thread: another one, which was lost, may still be running graphs of its own."""

    def __init__(self, device: torch.device) -> None:
        self.recorder = recorder_of(device)
        self.graphs: OrderedDict[Hashable, _Graph] = OrderedDict()  # the last used last
        self.calls: OrderedDict[Hashable, int] = OrderedDict()


class Graphs:
    """The graphs of one expert.

    Args:
        device: on a CPU functions are called.
        most: graphs that are kept, for each thread; the least recently used one goes.
        eager: calls of a key before it is captured.
    """

    def __init__(self, device: torch.device, most: int, eager: int = EAGER) -> None:
        if most < 1:
            raise ValueError(f"most={most}: at least one graph must be kept; call the function without Graphs instead")
        self._most, self._eager = most, eager
        self._kept = _Kept(device)

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """Those that have a graph in this thread, the least recently used first."""
        return tuple(self._kept.graphs)

    @torch.inference_mode()
    def run(self, key: Hashable, fn: Function, inputs: Inputs) -> Outputs:
        """What `fn` makes of the inputs: by calling it, or by a graph of an earlier call of this key.

        Args:
            key: of all that `fn` depends on beside its inputs and resident weights. Shapes and dtypes follow from it.
            fn: gets tensors by name and returns tensors. It reads nothing else that changes, and does not wait for the device.
                Tensors that it closes over live as long as its graph. It is called for the first calls of a key, and once more,
                or twice, to be captured.
            inputs: on the device; copied.

        The outputs stay as they are until the next call with this key. What must stay for longer is copied by whoever wants it.

        Raises:
            OmniError: the inputs are not those that the key was captured with, or `fn` cannot be captured. What it raises
                when it is called comes as it is.
        """
        kept = self._kept
        if kept.recorder is None:
            return fn(inputs)
        found = kept.graphs.get(key)
        if found is None:
            calls = kept.calls[key] = kept.calls.pop(key, 0) + 1
            if calls <= self._eager:
                if len(kept.calls) > KEYS:
                    kept.calls.popitem(last=False)
                return fn(inputs)
            found = self._capture(kept.recorder, key, fn, inputs)
            kept.graphs[key] = found
            if len(kept.graphs) > self._most:
                old, _ = kept.graphs.popitem(last=False)
                kept.calls.pop(
                    old, None
                )  # it must come often again before it is captured again, which takes as long as many calls
        else:
            kept.graphs.move_to_end(key)
            _fill(key, found.inputs, inputs)
        found.replay()
        return found.outputs

    def _capture(self, recorder: Recorder, key: Hashable, fn: Function, inputs: Inputs) -> _Graph:
        static = {name: given.clone(memory_format=torch.contiguous_format) for name, given in inputs.items()}
        try:
            outputs, replay = recorder.record(lambda: fn(static))
        except Exception as error:
            told = str(error).splitlines()[0] if str(error) else repr(error)
            raise OmniError(
                f"key {key!r} cannot be captured as a CUDA graph: {told}; its function must not wait for the device, nor read "
                "tensors on the host"
            ) from error
        return _Graph(fn, static, outputs, replay)


def _fill(key: Hashable, static: Inputs, inputs: Inputs) -> None:
    if inputs.keys() != static.keys():
        raise OmniError(f"key {key!r} was captured with inputs {sorted(static)}, given are {sorted(inputs)}; put it into the key")
    for name, given in inputs.items():
        there = static[name]
        if given.shape != there.shape or given.dtype != there.dtype:
            raise OmniError(
                f"key {key!r}: input {name!r} was captured as {there.dtype} {list(there.shape)}, given is {given.dtype} "
                f"{list(given.shape)}; put what differs into the key"
            )
    for name, given in inputs.items():
        static[name].copy_(given, non_blocking=True)
