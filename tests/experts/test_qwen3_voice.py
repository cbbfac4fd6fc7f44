"""Steps of Qwen3-Omni's talker by hand: what its op keeps, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from tiny_qwen3 import folder, talker  # noqa: E402

from omni_runtime.draw import Draw, Edits  # noqa: E402
from omni_runtime.errors import RequestError  # noqa: E402
from omni_runtime.experts.qwen3_voice import OPENING, Voice  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.work import Inset, Row, TalkStep  # noqa: E402

torch.set_num_threads(1)
TURNS = (70, 0, 0, 71)  # in the middle, states of a medium
BEGINS, GROUPS = len(TURNS) + OPENING, talker().config.groups


def voice() -> Voice:
    return Voice(talker(), folder().tensor("thinker.model.embed_tokens.weight"))


def step(start: int, size: int, slots: Slots, /, **changes: Any) -> Row:
    """Frame k is k + 1 in every code."""
    state_NW = torch.ones(2, talker().config.thinker_width)
    ref = slots.keep(Row(0, "think", 1, 0, (), None), "inner", 0, state_NW)  # type: ignore[arg-type]
    stop, frames = start + size, range(max(0, start - BEGINS), max(0, start + size - BEGINS))
    inner = (Inset(1, 2, ref),) if start < 3 and stop > 1 else ()
    opening = tuple(range(40, 40 + OPENING))[max(0, start - len(TURNS)) : max(0, stop - len(TURNS))]
    given = (len(TURNS), TURNS[start:stop], inner, opening, tuple((k + 1,) * GROUPS for k in frames), (50,) * len(frames))
    draw = Draw(0, 1, edits=Edits(repetition=1.3))
    made = TalkStep(start, size, *given, stop - BEGINS if stop >= BEGINS else -1, draw, Draw(0, 1), "ethan")
    return Row(3, "talk", size, 0, (), replace(made, **changes))


def test_a_row_that_runs_again_or_lower_counts_nothing_twice() -> None:
    slots, expert = Slots("cpu#1"), voice()
    whole = expert.talk([step(0, BEGINS + 5, slots)], slots)
    history = slots.other(3, "talk").history
    assert history.ids().tolist() == [1, 2, 3, 4, 5]
    for start, size in ((BEGINS + 4, 1), (BEGINS + 2, 2), (BEGINS + 4, 1), (2, 4), (6, BEGINS - 1), (0, 3), (3, BEGINS + 2)):
        found = expert.talk([step(start, size, slots)], slots)
        assert history.ids().tolist() == [1, 2, 3, 4, 5][: max(0, start + size - BEGINS)]
        if start + size == BEGINS + 5:
            assert found == whole
    assert len(whole[0].items["codes"][0]) == GROUPS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turns": (70, 0)}, r"turns, opening, frames, text: \(2, 9, 2, 2\) of each, .* need \(4, 9, 2, 2\)"),
        ({"text": (50,)}, r"\(4, 9, 2, 1\) of each"),
        ({"index": 1}, "index=1 after position 14"),
        ({"frames": ((1,) * GROUPS, (1,))}, r"frames: \(1,\) as frame 1"),
        ({"frames": ((1,) * GROUPS, (1,) * (GROUPS - 1) + (9999,))}, "9999.* as frame 1"),
        ({"turns": (70, 0, 0, 999_999)}, "999999 is not in the thinker's vocabulary"),
        ({"speaker": "nobody"}, "unknown speaker 'nobody'"),
    ],
)
def test_steps_that_contradict_themselves(changes: dict[str, Any], message: str) -> None:
    slots, expert = Slots("cpu#1"), voice()
    expert.talk([step(0, 6, slots)], slots)
    with pytest.raises(RequestError, match=message):
        expert.talk([step(0, BEGINS + 2, slots, **changes)], slots)
    assert slots.other(3, "talk").cache.length == 6
