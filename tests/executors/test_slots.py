"""What an executor keeps: brought tensors live for one batch, and what a failed op kept is let go."""

from __future__ import annotations

import numpy as np
import pytest

from omni_runtime.draw import Draw
from omni_runtime.experts.slots import Slots
from omni_runtime.work import ArStep, Row, TensorRef

ROW = Row(1, "think", 1, 0, (), ArStep(0, (5,), 0, Draw(0, 0)))
AWAY = TensorRef("gpu#1", 1, "think", "hidden", 4, (2,), "float32")


def test_what_is_brought_is_there_for_one_batch() -> None:
    slots = Slots("cpu#1")
    value = np.ones(2, np.float32)
    with slots.batch([(AWAY, value)]):
        assert slots.read(AWAY) is value
    with pytest.raises(KeyError):
        slots.read(AWAY)
    with pytest.raises(ZeroDivisionError), slots.batch([(AWAY, value)]):
        raise ZeroDivisionError
    with pytest.raises(KeyError):
        slots.read(AWAY)
    assert slots.counts == (0, 0)


def test_what_a_failed_op_kept_is_let_go_and_what_was_there_stays() -> None:
    slots = Slots("cpu#1")
    before = np.zeros(2, np.float32)
    with slots.batch():
        ref = slots.keep(ROW, "hidden", 0, before)

    def fails() -> None:
        with slots.batch():
            assert slots.keep(ROW, "hidden", 0, np.ones(2, np.float32)) == ref
            slots.keep(ROW, "hidden", 0, np.ones(2, np.float32))
            slots.keep(ROW, "hidden", 1, before)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert slots.counts == (0, 1) and slots.read(ref) is before
