"""Tensors as numpy arrays and back. An array stands for a bfloat16 tensor as its bits, int16: numpy has no such type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_runtime.work import TensorRef

if TYPE_CHECKING:
    from omni_runtime.experts.device_queue import DeviceQueue, Mark

Array = np.ndarray[Any, Any]


def arrays(tensors: Sequence[Any], queue: DeviceQueue | None = None, after: Mark | None = None) -> list[Array]:
    """Copies on the host: of tensors on a CPU the same memory, of others one transfer for all.

    Args:
        queue: of the device that the tensors are on.
        after: the moment in it when they are there. With it they are copied beside what is queued since, not after it.
    """
    found: list[Any] = list(tensors)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for at, tensor in enumerate(tensors):
        if isinstance(tensor, np.ndarray):
            continue
        if queue is None and tensor.device.type == "cpu":
            found[at] = _bits(tensor.detach())
        else:
            alike.setdefault((tensor.device, tensor.dtype, tuple(tensor.shape)), []).append(at)
    if alike:
        import torch

        from omni_runtime.experts.staging import Reading

        with nullcontext() if queue is None or after is None else queue.behind(after):
            reading = Reading(*[torch.stack([tensors[at].detach() for at in places]) for places in alike.values()], queue=queue)
            stacks = reading.get()
        for places, stacked in zip(alike.values(), stacks, strict=True):
            for at, array in zip(places, _bits(stacked), strict=True):
                found[at] = array.copy()  # a view would keep the whole batch's copy alive as long as one row is wanted
    return found


def _bits(tensor: Any) -> Array:
    import torch

    array: Array = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def tensors(
    brought: Iterable[tuple[TensorRef, Any]], device: str, own: bool = False, queue: DeviceQueue | None = None
) -> list[tuple[TensorRef, Any]]:
    """Brought arrays as tensors of an executor's own: an op may do with them what it likes.

    Args:
        own: arrays that can be written to are nobody else's, and become the tensors' memory.
        queue: of the device: they are copied by what is queued before the op's work, without waiting.
    """
    found = list(brought)
    places = [at for at, (_, value) in enumerate(found) if isinstance(value, np.ndarray)]
    if not places:
        return found
    import torch

    if queue is not None:
        from omni_runtime.experts.staging import Staging

        sent = Staging(torch.device(device), queue).send({str(at): found[at][1] for at in places})
    for at in places:
        ref, value = found[at]
        if queue is not None:
            value = sent[str(at)]
        else:  # of arrays that cannot be written to torch warns
            value = torch.from_numpy(value if own and value.flags.writeable else np.array(value)).to(device)
        found[at] = ref, value.view(torch.bfloat16) if ref.dtype == "bfloat16" else value
    return found
