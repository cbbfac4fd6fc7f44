"""The fake GPU itself: what it must forbid, count and delay, each beside what must pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu, Hazard
from fake_kernels import launched
from fake_tensor import Fake
from omni_runtime.kernels import add_rms_norm, norm_triton, rms_norm
from paged import paged_lm
from tiny import CONFIGS, prefill, random_tokens, random_weights

from omni_runtime.experts.decoder import DecoderLM

pytestmark = pytest.mark.torch

X, I = torch.arange(6.0).reshape(2, 3), torch.tensor([1, 0])  # noqa: E741


def there(x: torch.Tensor) -> torch.Tensor:
    return x.to("cuda")


FORBIDDEN: dict[str, Callable[[], Any]] = {
    "an addition": lambda: there(X) + X,
    "a product": lambda: torch.nn.functional.linear(there(X), X),
    "a stack": lambda: torch.stack([there(X), X]),
    "an index of there": lambda: X[there(I)],
    "values put": lambda: there(X).__setitem__(there(I), X),
    "in place": lambda: X.add_(there(X)),
    "numpy": lambda: there(X).numpy(),
    "np.asarray": lambda: np.asarray(there(X)),
    "a kernel": lambda: norm_triton.rms_norm(there(X), torch.ones(3), 1e-6),
}

COUNTED: dict[str, tuple[Callable[[], Any], tuple[int, int]]] = {
    "nothing": (lambda: torch.zeros(3, device="cuda") + torch.arange(3, device="cuda") * 2.0, (0, 0)),
    "a number beside": (lambda: torch.zeros(3, device="cuda") * torch.tensor(2.0), (0, 0)),
    "a send": (lambda: there(X), (0, 1)),
    "from a list": (lambda: torch.tensor([1, 2], device="cuda"), (0, 1)),
    "a list as index": (lambda: torch.zeros(3, device="cuda")[[0, 1]], (0, 1)),
    "slices": (lambda: torch.zeros(3, 3, device="cuda")[1:, None, 0], (0, 0)),
    "a number put": (lambda: torch.zeros(3, device="cuda").__setitem__(0, 1.0), (0, 0)),
    "item": (lambda: torch.zeros(3, device="cuda")[0].item(), (1, 0)),
    "bool": (lambda: bool(torch.zeros(3, device="cuda").all()), (1, 0)),
    "tolist": (lambda: torch.zeros(3, device="cuda").tolist(), (1, 0)),
    "float of each": (lambda: [float(x) for x in torch.zeros(3, device="cuda")], (3, 0)),
    "cpu": (lambda: torch.zeros(3, device="cuda").cpu(), (1, 0)),
    "numpy by force": (lambda: torch.zeros(3, device="cuda").numpy(force=True), (1, 0)),
    "a mask": (lambda: (x := torch.zeros(3, device="cuda"))[x > 0], (1, 0)),
    "a masked fill": (lambda: (x := torch.zeros(3, device="cuda")).__setitem__(x > 0, 1.0), (0, 0)),
    "nonzero": (lambda: torch.zeros(3, device="cuda").nonzero(), (1, 0)),
    "bincount": (lambda: torch.zeros(3, dtype=torch.int64, device="cuda").bincount(), (1, 0)),
    "pageable, not waited for": (lambda: X.to("cuda", non_blocking=True), (0, 1)),
    "pinned": (lambda: X.pin_memory().to("cuda", non_blocking=True), (0, 0)),
    "to pinned": (lambda: torch.empty(3, pin_memory=True).copy_(torch.zeros(3, device="cuda"), non_blocking=True), (0, 0)),
    "to pageable": (lambda: torch.empty(3).copy_(torch.zeros(3, device="cuda"), non_blocking=True), (1, 0)),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_a_gpu_forbids_raises(name: str) -> None:
    with FakeGpu() as gpu, launched(gpu), pytest.raises((RuntimeError, TypeError, ValueError)):
        FORBIDDEN[name]()


@pytest.mark.parametrize("name", COUNTED)
def test_what_makes_the_host_wait_is_counted(name: str) -> None:
    call, waits = COUNTED[name]
    with FakeGpu() as gpu, torch.inference_mode():
        call()
        assert gpu.waits == waits, gpu.told()


def test_a_queued_read_arrives_with_its_event() -> None:
    with FakeGpu() as gpu:
        x, before = there(X), torch.cuda.Event()
        before.record()
        host = x.to("cpu", non_blocking=True)
        after = torch.cuda.Event()
        after.record()
        before.synchronize()
        assert not torch.equal(host, X), "it is there before anybody waited for it"
        assert not after.query()
        after.synchronize()
        assert torch.equal(host, X)
        assert gpu.reads.total() == 2


def test_pinned_memory_that_is_still_read_may_not_change() -> None:
    with FakeGpu():
        staged = torch.zeros(3).pin_memory()
        sent = staged.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        staged[0] = 1.0  # nobody reads it any more
        again = staged.to("cuda", non_blocking=True)
        staged[0] = 2.0
        with pytest.raises(Hazard):
            torch.cuda.synchronize()
        assert float(sent[0]) == 0.0 and float(again[0]) == 1.0


def test_a_graph_does_again_what_was_recorded_into_the_same_memory() -> None:
    weight = torch.full((3,), 2.0)
    with FakeGpu() as gpu, launched(gpu), torch.inference_mode():
        fed, w = there(torch.ones(2, 3)), there(weight)
        graph, kept = torch.cuda.CUDAGraph(), there(torch.zeros(2, 3))
        with torch.cuda.graph(graph):
            normed, total = add_rms_norm(fed * w, fed, w, 1e-6)
            kept[:, 1:] = total[:, 1:]
            view = normed.t()
            copied = normed.t().reshape(-1)  # cannot be a view
        for scale in (1.0, -3.0):
            fed.copy_(there(torch.full((2, 3), scale)))
            graph.replay()
            right = rms_norm(torch.full((2, 3), 3 * scale), weight, 1e-6)
            assert torch.equal(view.cpu().t(), right)
            assert torch.equal(copied.cpu(), right.t().flatten())
            assert kept.tolist() == [[0.0, 3 * scale, 3 * scale]] * 2


@pytest.mark.parametrize("name", ["item", "cpu", "a send", "a list as index", "nonzero", "to pageable"])
def test_waiting_cannot_be_recorded(name: str) -> None:
    with FakeGpu() as gpu, pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        COUNTED[name][0]()
    assert gpu.recording is None


def test_wrappers_run_and_definitions_give_the_numbers() -> None:
    with FakeGpu() as gpu, launched(gpu):
        ours = rms_norm(there(X), there(torch.ones(3)), 1e-6)
        assert gpu.launched == {"norm_triton.kernel": 1}
        assert torch.equal(ours.cpu(), rms_norm(X, torch.ones(3), 1e-6))
        assert isinstance(ours, Fake) and ours.device.type == "cuda"


def test_a_tensor_left_on_the_cpu_is_caught() -> None:
    """Planted in a model that is right without it."""
    config, tokens = CONFIGS["qwen3"], random_tokens(20, 1)
    right = prefill(lm := DecoderLM(config, random_weights(config), layout="plain"), lm.cache(), tokens, [7, 12, 1])
    with FakeGpu() as gpu, launched(gpu):
        model = paged_lm(config, device="cuda", blocks=20)
        torch.testing.assert_close(prefill(model, model.cache(), tokens, [7, 12, 1]).cpu(), right)
        layers = model._paged
        assert layers is not None
        layers._norm_D = layers._norm_D.cpu()
        with pytest.raises((RuntimeError, ValueError), match=r"same device|cpu tensor"):
            prefill(model, model.cache(), tokens, [7, 12, 1])
