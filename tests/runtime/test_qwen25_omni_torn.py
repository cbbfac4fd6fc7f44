"""A tiny Qwen2.5-Omni torn apart: see `torn`."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle, pytest.mark.slow]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import omni25_oracle  # noqa: E402
from torn import Torn  # noqa: E402

torch.set_num_threads(1)
MOST = {"forward": 24, "talk": 12, "velocity": 4, "decode_audio": 60, "hear": 3, "see": 3, "prepare": 3}
PARTS = {"minds": ["thinker", "hearing"], "voices": ["talker", "seeing"], "waves": ["flow", "vocoder"]}
TORN = Torn(omni25_oracle, MOST, {worker: [f"qwen2_5_omni/{part}" for part in parts] for worker, parts in PARTS.items()})


@pytest.mark.parametrize("seed", range(3))
def test_any_chunks_and_batches_and_losses(seed: int) -> None:
    TORN.preempted(seed)


def test_eight_at_once_on_three_processes_that_die() -> None:
    TORN.killed(8)
