"""Talkers with pages, whose codes are drawn on the device, against those that draw on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from msgspec.structs import replace

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import test_qwen25_voice as voices  # noqa: E402
import tiny_qwen3  # noqa: E402
import tiny_qwen25  # noqa: E402
from driven import drive  # noqa: E402
from paged import PLACES, Dealer  # noqa: E402
from token_worlds import result  # noqa: E402

from omni_runtime.draw import Draw  # noqa: E402
from omni_runtime.experts.qwen3_predictor import CodePredictor, inner  # noqa: E402
from omni_runtime.experts.qwen25_talker import Talker  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.experts.staging import Staging  # noqa: E402
from omni_runtime.work import Row, StepResult, TalkStep  # noqa: E402

torch.set_num_threads(1)


def predictor(layout: str) -> CodePredictor:
    ours = tiny_qwen3.folder()
    assert ours.config.talker is not None
    heads = [ours.tensor(f"talker.code_predictor.lm_head.{i}.weight") for i in range(ours.config.talker.groups - 1)]
    return CodePredictor(ours.config.talker, ours.predictor(), heads, layout=layout)


def test_predicted_codes_are_the_same() -> None:
    here, there = predictor("plain"), predictor("paged")
    width, generator = here.config.predictor.width, torch.Generator().manual_seed(0)
    hidden_RD, first_RD = (torch.randn(6, width, generator=generator) for _ in range(2))
    hows = [inner(Draw(seed, 1, 0.0 if seed == 2 else 0.9, top_k=40 * (seed % 2))) for seed in range(6)]
    frames = [0, 1, 2, 7, 7, 30]
    expected = here.predict(hidden_RD, first_RD, hows, frames)
    assert len({tuple(row) for row in expected}) == 6
    for _ in range(2):  # plans of steps are kept
        code_RP, peak_RP = there.predict_there(
            hidden_RD, first_RD, Staging(torch.device("cpu")).send(there.brought(hows, frames))
        )
        assert code_RP.tolist() == expected and peak_RP.isfinite().all()
    moved = there.brought(hows, [frame + 1 for frame in frames])
    assert there.predict_there(hidden_RD, first_RD, Staging(torch.device("cpu")).send(moved))[0].tolist() != expected


@pytest.mark.parametrize("seed", [0, 1])
def test_codes_are_those_of_the_model_alone(seed: int) -> None:
    ours = tiny_qwen25.folder()
    assert ours.config.talker is not None
    talker = Talker(ours.config.talker, ours.talker(), ours.named("talker.thinker_to_talker_proj."), layout="paged")
    expert, dealer, slots, sent = voices.voice(talker), Dealer(60, seed), Slots("cpu#1"), dict[int, int]()
    expert.allot(60, PLACES)
    made, thinkers = voices.lines(slots)
    bad = Row(77, "talk", 1, 0, (), TalkStep(0, 1, 1, (5,), (), (), (), (), -1, Draw(0, 0), Draw(0, 0), "Ethan"))

    def feed(rng: Random) -> None:
        for thinker in thinkers:
            if rng.random() < 0.5:
                thinker.feed(rng)

    def op(rows: Sequence[Row], of: Slots) -> list[StepResult]:
        granted = []
        for row in rows:
            assert isinstance(row.payload, TalkStep)
            if (row.run, row.loop) not in of._state:
                dealer.drop(row.run)
                sent[row.run] = 0
            dealer.more(row.run, row.payload.start + row.payload.size)
            blocks = tuple(dealer.held[row.run][sent[row.run] :])
            granted.append(replace(row, first=sent[row.run], blocks=blocks))
        found = result(expert.talk(granted, of), rows)
        for row in rows:
            sent[row.run] = len(dealer.held[row.run])
        return found

    drive(op, made, slots, seed, 6, feed, bad, losses=6 * seed)
    voices.same(made)
