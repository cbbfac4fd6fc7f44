"""A simulated talker says as many codes as its family makes of a second."""

from __future__ import annotations

import pytest
from omni_runtime.cards.qwen2_5_omni import qwen2_5_omni
from omni_runtime.cards.qwen3_omni import qwen3_omni
from omni_runtime.programs.omni import omni

from omni_runtime.card import ModelCard
from omni_runtime.scheduler.cost import Costs
from omni_runtime.simulate.parts import parts


@pytest.mark.parametrize(("card", "codes"), [(qwen3_omni(), 12.5), (qwen2_5_omni(), 50.0)])
def test_an_answer_ends_after_whole_stretches_of_the_same_length(card: ModelCard, codes: float) -> None:
    """All families ended after 32 codes: a fourth of the sound with four times as many a second."""
    found = parts(omni(card).plan(("audio",)), Costs(), seed=1)["talk"]
    assert found.after == round(2.56 * codes)
