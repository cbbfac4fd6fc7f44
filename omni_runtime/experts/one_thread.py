"""Ops of torch on one thread: where waking another costs more than it helps, or may change a bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """Ops inside use one thread, where wanted: 3 µs to switch and back."""
    threads = torch.get_num_threads() if wanted else 1
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
