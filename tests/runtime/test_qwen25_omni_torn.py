"""Eight mixed requests to a tiny Qwen2.5-Omni at once, in batches and chunks of drawn sizes, preempted all the time, on worker
processes: what each hears is what transformers' `generate` says to it alone."""

from __future__ import annotations

import random

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle, pytest.mark.slow]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from forced import Killing, Preempting  # noqa: E402
from omni25_oracle import ASKED, CARD, same, wish  # noqa: E402
from omni_runtime.programs.omni import omni  # noqa: E402
from torn import chopped  # noqa: E402

from omni_runtime.executors.lineup import lineup  # noqa: E402
from omni_runtime.executors.process import ProcessExecutor  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402

torch.set_num_threads(1)
# Of one batch: tokens, codes, velocities, mel frames, calls.
MOST = {"forward": 24, "talk": 12, "velocity": 4, "decode_audio": 60, "hear": 3, "see": 3, "prepare": 3}
WORKERS = {
    "minds": ["qwen2_5_omni/thinker", "qwen2_5_omni/hearing"],
    "voices": ["qwen2_5_omni/talker", "qwen2_5_omni/seeing"],
    "waves": ["qwen2_5_omni/flow", "qwen2_5_omni/vocoder"],
}


@pytest.mark.parametrize("seed", range(3))
def test_any_chunks_and_batches_and_losses(seed: int) -> None:
    card = chopped(CARD, seed, MOST)
    made = lineup([card], "loopback", workers=WORKERS if seed % 2 else None, threads=1)
    forced = [Preempting(executor, 0.05, seed) for executor in made]  # after each, a prompt in chunks of one is 10,000 units
    names = random.Random(seed).sample(sorted(ASKED), 3)
    with Runtime([card], executors=forced) as runtime:
        program = omni(card)
        handles = [runtime.submit(program, **wish(name)) for name in names]
        results = [handle.result(120) for handle in handles]
        assert any(result.rebuilt for result in results), "nothing was lost"
        for name, result in zip(names, results, strict=True):
            same(result, name)
        assert runtime.idle


def test_eight_at_once_on_three_processes_that_die() -> None:
    """Thinker, talker and vocoder in processes of their own, each killed with units in flight; prompts in drawn chunks."""
    card = chopped(CARD, 8, MOST)
    made = lineup([card], "process", workers=WORKERS, threads=1)
    killing = [Killing(one, seed, 9) if isinstance(one, ProcessExecutor) and seed < 3 else one for seed, one in enumerate(made)]
    with Runtime([card], executors=killing) as runtime:
        program = omni(card)
        handles = {name: runtime.submit(program, **wish(name)) for name in ASKED}
        for name, handle in handles.items():
            same(handle.result(120), name)
        assert runtime.idle
    deaths = sum(len(one.killed) for one in killing if isinstance(one, Killing))
    assert deaths >= 2, "nobody died"
