"""Graphs by key: what a replay reads, what stays, what goes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import pytest
import torch
from fake_graphs import FakeRecorder, capturing, faked, poison

from omni_runtime.errors import OmniError
from omni_runtime.experts import graphs
from omni_runtime.experts.graphs import EAGER, Graphs, Inputs, Outputs

CPU = torch.device("cpu")
WEIGHT = torch.arange(12.0).view(3, 4)


def product(given: Inputs) -> Outputs:
    return given["x"] @ WEIGHT, given["n"] + 1


def inputs(seed: int, rows: int = 2) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)), "n": torch.tensor([seed])}


def same(found: Outputs, wanted: Outputs) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_cpu_calls() -> None:
    kept = Graphs(CPU, 2)
    for seed in range(EAGER + 3):
        assert same(kept.run("k", product, inputs(seed)), product(inputs(seed)))
    assert kept.keys == ()


def test_replays_equal_calls() -> None:
    with faked() as recorder:
        kept = Graphs(CPU, 4)
        for seed in range(8):
            for rows in (1, 2):
                assert same(kept.run(rows, product, inputs(seed, rows)), product(inputs(seed, rows)))
    assert recorder.captures == 2 and recorder.replays == 2 * (8 - EAGER) and kept.keys == (1, 2)


def test_outputs_stay_until_the_next_call_of_their_key() -> None:
    with faked():
        kept = Graphs(CPU, 4, eager=0)
        first = kept.run("a", product, inputs(1))
        kept.run("b", product, inputs(2))
        assert same(first, product(inputs(1)))
        kept.run("a", product, inputs(3))
        assert same(first, product(inputs(3))), "and then they are the next one's: who keeps them must copy"


def test_inputs_are_copied() -> None:
    with faked():
        kept = Graphs(CPU, 4, eager=0)
        mine = inputs(1)
        kept.run("a", product, mine)
        kept.run("a", product, inputs(2))
        assert same((mine["x"], mine["n"]), tuple(inputs(1).values()))


def test_the_least_recently_used_goes() -> None:
    with faked() as recorder:
        kept = Graphs(CPU, 2, eager=0)
        for key in "abacab":
            kept.run(key, product, inputs(0))
        assert kept.keys == ("a", "b") and recorder.captures == 4  # a, b, c in b's place, b again
    with pytest.raises(ValueError, match="most=0"):
        Graphs(CPU, 0)


def test_a_number_that_is_not_in_the_key_is_an_old_one() -> None:
    """The fake is as strict as a graph: a mutant of an op that reads what changes must be seen."""
    with faked():
        kept = Graphs(CPU, 2, eager=0)
        for scale, wanted in ((2.0, 2.0), (3.0, 2.0)):
            assert kept.run("k", lambda given, scale=scale: (given["n"] * scale,), inputs(1))[0].item() == wanted  # type: ignore[misc]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"x": torch.zeros(2, 3)}, r"captured with inputs \['n', 'x'\], given are \['x'\]"),
        ({"x": torch.zeros(1, 3), "n": torch.zeros(1, dtype=torch.int64)}, r"input 'x' .*\[2, 3\].*\[1, 3\]"),  # would broadcast
        ({"x": torch.zeros(2, 3, dtype=torch.float64), "n": torch.zeros(1, dtype=torch.int64)}, "input 'x' .*float32.*float64"),
    ],
)
def test_other_inputs_than_the_captured_are_refused(other: dict[str, torch.Tensor], told: str) -> None:
    with faked():
        kept = Graphs(CPU, 2, eager=0)
        kept.run("k", product, inputs(0))
        with pytest.raises(OmniError, match=told):
            kept.run("k", product, other)


WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "if": lambda x: 1 if x.sum() > 0 else 0,
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.numpy(),
    "list": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: x.unique(),
    "repeat": lambda x: x.repeat_interleave(torch.ones(3, dtype=torch.int64), dim=1),
    "equal": lambda x: torch.equal(x, x),
    "from the host": lambda x: x * torch.tensor([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("how", WAITS)
def test_what_waits_for_the_device_cannot_be_captured_and_is_never_called_instead(how: str) -> None:
    def waits(given: Inputs) -> Outputs:
        WAITS[how](given["x"])
        return (given["x"] * 2,)

    with faked() as recorder:
        kept = Graphs(CPU, 2)
        for _ in range(EAGER):
            kept.run("k", waits, inputs(1))
        for _ in range(2):
            with pytest.raises(OmniError, match="key 'k' cannot be captured as a CUDA graph: operation not permitted"):
                kept.run("k", waits, inputs(1))
        assert recorder.captures == 0 and kept.keys == ()


def test_threads_have_graphs_of_their_own() -> None:
    with faked() as recorder, ThreadPoolExecutor(1) as pool:
        kept = Graphs(CPU, 2, eager=0)
        kept.run("k", product, inputs(0))
        assert same(pool.submit(kept.run, "k", product, inputs(1)).result(), product(inputs(1)))
        assert recorder.captures == 2 and pool.submit(lambda: kept.keys).result() == kept.keys == ("k",)


# -- The recorder for CUDA, on a torch.cuda whose pool is written over


class Pool:
    """What `CudaRecorder` uses of torch.cuda. When a graph runs, memory that was made while others were captured gets poison: it
    may have been this one's, too."""

    tapes: ClassVar[list[list[Any]]] = []

    class CUDAGraph:
        def __init__(self) -> None:
            self.tape: list[Any] = []
            Pool.tapes.append(self.tape)

        @torch.inference_mode()
        def replay(self) -> None:
            for operator in self.tape:
                operator()
            for operator in (operator for tape in Pool.tapes if tape is not self.tape for operator in tape):
                for out in [] if operator.writes or operator.view else operator.outs:
                    poison(out)

    class Stream:
        def __init__(self, device: Any) -> None: ...
        def wait_stream(self, other: Any) -> None: ...

    @staticmethod
    @contextmanager
    def graph(made: Any, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local", "other executors of the process would break it"
        with capturing(made.tape):
            yield


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Pool.Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Pool.Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Pool.CUDAGraph)
    monkeypatch.setattr(torch.cuda, "graph", Pool.graph)
    monkeypatch.setattr(graphs, "recorder_of", graphs.CudaRecorder)
    monkeypatch.setattr(Pool, "tapes", [])


def crossing() -> None:
    kept = Graphs(CPU, 4, eager=0)
    first = kept.run("a", product, inputs(1))
    for seed in range(2, 6):
        second = kept.run("b", product, inputs(seed))
        assert same(first, product(inputs(1))) and same(second, product(inputs(seed)))
        first = kept.run("a", product, inputs(1))


@pytest.mark.usefixtures("pooled")
def test_outputs_are_not_in_the_pool_that_graphs_share() -> None:
    crossing()


@pytest.mark.usefixtures("pooled")
def test_outputs_in_the_pool_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(self: Any, call: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"):
            outputs = call()
        return outputs, graph.replay

    monkeypatch.setattr(graphs.CudaRecorder, "record", record)
    with pytest.raises(AssertionError):
        crossing()


# -- Planted bugs: each must be seen by the properties above


def forgets_to_fill(key: Any, static: Inputs, given: Inputs) -> None:
    pass


def fills_by_broadcast(key: Any, static: Inputs, given: Inputs) -> None:
    for name, one in given.items():
        static[name].copy_(one)


class NeverReplays(FakeRecorder):
    def record(self, call: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        return super().record(call)[0], lambda: None


def test_planted_bugs_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "_fill", forgets_to_fill)
        with pytest.raises(AssertionError):
            test_replays_equal_calls()
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "_fill", fills_by_broadcast)
        broadcast = {"x": torch.zeros(1, 3), "n": torch.zeros(1, dtype=torch.int64)}
        with pytest.raises(pytest.fail.Exception):
            test_other_inputs_than_the_captured_are_refused(broadcast, "input 'x'")
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "recorder_of", lambda device: NeverReplays())
        kept = Graphs(CPU, 2, eager=0)
        assert not same(kept.run("k", product, inputs(0)), product(inputs(0)))
