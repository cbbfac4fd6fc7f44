"""What travels arrives as it was; what would not is refused, with what to do, in the direction it goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omni_runtime.executors.codec import Wire, decode_message, decode_report, encode, told
from omni_runtime.work import Answer, Broken, CallStep, Row, RunBatch, StepResult


def batch(value: Any) -> RunBatch:
    return RunBatch("x", 1, "e", "op", [Row(1, "l", 1, 0, (), CallStep(0, {"in": (value,)}, {}, {}))])


def answer(value: Any) -> Answer:
    return Answer("x", 1, [StepResult(items={"out": [value]})])


class Odd:
    """Like a tensor, as far as the codec looks."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def cpu(self) -> Odd:
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return np.zeros(2)


class Bfloat(np.ndarray[Any, Any]):
    """An array whose type numpy knows by its size only."""

    dtype = type("D", (), {"hasobject": False, "names": None, "str": "<V2", "__str__": lambda self: "bfloat16"})()  # type: ignore[assignment]


def nested() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


REFUSED: list[tuple[Any, str]] = [
    (np.zeros(2, [("a", "<i4"), ("b", "<f8")]), r"names of its fields \('a', 'b'\); {} one array for each"),
    (np.zeros(1, [("a", "<i4")])[0], "names of its fields"),
    (np.ma.masked_array([1, 2], [True, False]), r"lose its mask; {} `\.filled"),
    (np.array([object()]), "an array of object holds references; {} numbers"),
    (np.zeros(2, np.int16).view(Bfloat), r"an array of bfloat16 would arrive as <V2; {} `\.astype"),
    (object(), "object is not data; {} numbers, text"),
    (1 + 2j, "complex is not data; {} numbers"),
    (Odd("torch.float32"), r"Odd belongs to the process that made it; {} a numpy array: `\.cpu\(\)\.numpy\(\)`"),
    (Odd("torch.bfloat16"), r"`\.float\(\)\.cpu\(\)\.numpy\(\)`"),
    (2**64, "an integer beyond 64 bits does not travel; {} it as text"),
    (-(2**63) - 1, "beyond 64 bits"),
    ("ab\ud800", r"half a character, '\\ud800' at 2, does not travel; {} `text\.encode"),
    (nested(), "nested so deep .* do not travel; {} flat"),
]


@pytest.mark.parametrize(("make", "do"), [(batch, "send"), (answer, "return")])
@pytest.mark.parametrize(("value", "told"), REFUSED)
def test_what_would_arrive_as_something_else(make: Callable[[Any], Any], do: str, value: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told.format(do)) as caught:
        encode(make(value))
    assert "to an executor" not in str(caught.value)  # who sends says it


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6).reshape(2, 3),
        np.arange(6)[::2],
        np.array(["2020-01-01"], "<M8[D]"),
        np.array(["é"]),
        np.array([b"ab\0c"]),
        np.float16(1.5),
        np.zeros((0, 3)),
        np.array([1 + 2j]),
        np.array([1], ">i4"),
        np.zeros(2, "V3"),
    ],
)
def test_what_arrives(value: Any) -> None:
    there = decode_message(encode(batch(value))).rows[0].payload.inputs["in"][0]  # type: ignore[union-attr]
    back = decode_report(encode(answer(value))).results[0].items["out"][0]  # type: ignore[union-attr]
    for found in (there, back):
        assert found.dtype == np.asarray(value).dtype and np.array_equal(found, value)
    assert decode_message(encode(batch(2**64 - 1))).rows[0].payload.inputs["in"][0] == 2**64 - 1  # type: ignore[union-attr]


def test_an_answer_that_cannot_be_said_is_a_broken_batch() -> None:
    unsaid: list[Answer] = []
    found = decode_report(told(Wire(), answer(Odd("torch.float32")), unsaid.append))
    assert isinstance(found, Broken) and len(unsaid) == 1
    assert found.error.startswith("an answer that cannot travel back: Odd belongs to") and "return a numpy array" in found.error
    found = decode_report(told(Wire(), Broken("x", 1, "no \ud800")))
    assert isinstance(found, Broken) and found.error == "no \\ud800"


@pytest.mark.torch
def test_a_real_tensor() -> None:
    import torch

    with pytest.raises(TypeError, match=r"^Tensor belongs .* return a numpy array: `\.cpu\(\)\.numpy\(\)`$"):
        encode(answer(torch.zeros(2)))
    with pytest.raises(TypeError, match=r"`\.float\(\)\.cpu"):
        encode(answer(torch.zeros(2, dtype=torch.bfloat16)))
