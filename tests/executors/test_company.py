"""Batch-invariant mode in an executor: who runs alone, what an op finds, what is refused, and that incarnations keep to it."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np
import pytest

from omni_runtime.card import AudioDecode, ExpertSpec, ModelCard, OneShot, OpLimits, Port, Slot
from omni_runtime.errors import CardError, RequestError
from omni_runtime.executors.lineup import lineup
from omni_runtime.executors.thread import ThreadExecutor
from omni_runtime.executors.workbench import Workbench, build_all
from omni_runtime.runtime import Runtime
from omni_runtime.work import Answer, Broken, CallStep, ExecutorUp, Row, RunBatch

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
torch.set_num_threads(1)
OPS = ("tell", "count", "keep")


def spec(**options: Any) -> ExpertSpec:
    return ExpertSpec(build="company_toys:build", ops={op: OpLimits() for op in OPS}, options=options)


def bench(mode: bool = True, threads: int | None = None, **options: Any) -> Workbench:
    return Workbench("x#1", build_all({"c/e": spec(**options)}, {}, "cpu"), "cpu", batch_invariant=mode, threads=threads)


def rows(count: int, tensors: Any = None, **params: Any) -> list[Row]:
    steps = [CallStep(0, {}, tensors or {}, {name: values[run] for name, values in params.items()}) for run in range(count)]
    return [Row(run, "l", 1, 0, (), step) for run, step in enumerate(steps)]


def ask(where: Workbench, op: str, given: list[Row], brought: Any = ()) -> Any:
    return where.run(RunBatch("x#1", 1, "c/e", op, tuple(given), tuple(brought)))


def told(answer: Any) -> list[Any]:
    assert isinstance(answer, Answer), answer
    return [result.items["out"] for result in answer.results]


def test_an_op_that_is_not_exact_runs_row_by_row() -> None:
    assert [one[:2] for one in told(ask(bench(), "tell", rows(3)))] == [[1, True]] * 3
    assert [one[:2] for one in told(ask(bench(invariant=["tell"]), "tell", rows(3)))] == [[3, True]] * 3
    assert [one[:2] for one in told(ask(bench(mode=False), "tell", rows(3)))] == [[3, False]] * 3


def test_a_row_that_raises_leaves_the_others_as_they_were() -> None:
    """The batch is run again, its members alone: who had run before the one that raised must not have moved on."""
    where = bench()
    assert told(ask(where, "count", rows(2))) == [[1], [1]]
    broken = ask(where, "count", rows(4, **{"raise": [False, False, True, False]}))
    assert isinstance(broken, Broken) and "asked to" in broken.error
    assert told(ask(where, "count", rows(4))) == [[2], [2], [1], [1]]
    assert where.slots.counts == (4, 0)


def test_tensors_are_as_if_made_for_whoever_reads_them() -> None:
    """With a gap or at an odd address a product of the same numbers may take another way through them."""
    for mode in (True, False):
        where = bench(mode)
        kept = ask(where, "keep", rows(1))
        (ref,) = kept.results[0].tensors["out"]
        np.testing.assert_array_equal(kept.results[0].copies["out"][0], np.arange(1, 61.0).reshape(10, 6).T[1:4])
        own = told(ask(where, "tell", rows(1, {"in": (ref,)})))[0][3:]
        odd = np.frombuffer(bytearray(4 + 120), np.float32, 30, 4).reshape(3, 10)
        stranger = ref.__class__("y#1", *[getattr(ref, name) for name in ref.__struct_fields__[1:]])
        brought = told(ask(where, "tell", rows(1, {"in": (stranger,)}), [(stranger, odd)]))[0][3:]
        assert (own == [True, 0]) == mode
        assert brought[0] and (brought[1] == 0 or not mode)


def test_torch_has_the_threads_that_were_asked_for() -> None:
    torch.set_num_threads(1)
    try:
        assert told(ask(bench(threads=2), "tell", rows(1)))[0][2] == 2
        torch.set_num_threads(1)
        assert told(ask(bench(mode=False, threads=2), "tell", rows(1)))[0][2] == 1
    finally:
        torch.set_num_threads(1)


def card(**options: Any) -> ModelCard:
    """`tell` is of granted sizes here, `count` is not."""
    samples = AudioDecode(expert="e", op="tell", sample_rate=8000, hop=4)
    call = OneShot(expert="e", op="count", reads={"in": Slot(type="x")}, ports={"out": Port(type="x")})
    return ModelCard(name="c", experts={"e": spec(**options)}, loops={"speak": samples, "call": call})


def calls() -> ModelCard:
    """Nothing is of granted sizes."""
    call = OneShot(expert="e", op="tell", reads={"in": Slot(type="x")}, ports={"out": Port(type="x")})
    return ModelCard(name="c", experts={"e": spec()}, loops={"call": call})


@pytest.mark.parametrize("kind", ["thread", "process", "loopback"])
def test_sizes_that_would_tell_are_refused(kind: Any) -> None:
    for options, words in (({}, "designs/0029"), ({"varies": "linear='plain' is torch's; take another"}, "take another")):
        (made,) = lineup([card(**options)], kind, batch_invariant=True)
        with pytest.raises(CardError, match=rf"expert 'c/e', op 'tell': batch_invariant=True .*{words}"):
            made.start(lambda report: None)
        made.close()
    (made,) = lineup([card(invariant=["tell"])], kind, batch_invariant=True)
    assert made.start(lambda report: None).batch_invariant
    made.close()


def test_a_runtime_refuses_what_is_no_truth_value_and_what_others_bring() -> None:
    with pytest.raises(CardError, match="op 'tell': batch_invariant=True"):
        Runtime([card()], batch_invariant=True)
    with pytest.raises((CardError, RequestError, ValueError), match="batch_invariant"):
        Runtime([card()], batch_invariant="yes")  # type: ignore[arg-type]
    with pytest.raises(CardError, match="batch_invariant=True: the executors that were given bring their own"):
        Runtime([card()], executors=lineup([card()]), batch_invariant=True)


@pytest.mark.parametrize("kind", ["thread", "process", "loopback"])
@pytest.mark.parametrize("mode", [True, False])
def test_every_executor_runs_them_row_by_row(kind: Any, mode: bool) -> None:
    reports: queue.Queue[Any] = queue.Queue()
    (made,) = lineup([calls()], kind, threads=1, batch_invariant=mode)
    assert made.start(reports.put).batch_invariant == mode
    made.send(RunBatch(made.name, 1, "c/e", "tell", tuple(rows(3))))
    answer = reports.get(timeout=60)
    made.close()
    assert told(answer) == [[1 if mode else 3, mode, 1]] * 3


def test_the_next_incarnation_is_as_exact() -> None:
    reports: list[Any] = []
    up = threading.Event()
    made = ThreadExecutor("x#1", {"c/e": spec(invariant=["tell"])}, {}, exact={"c/e": ("tell",)})
    made.start(lambda report: (reports.append(report), up.set() if isinstance(report, ExecutorUp) else None))
    made.lose("it is time")
    assert up.wait(5) and reports[-1].batch_invariant and made.slots.batch_invariant
    made.close()
