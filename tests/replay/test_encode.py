"""What is packed comes back as what it was."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_runtime import card, draw, orders, program, request, work
from omni_runtime.card import ArDecode, FlowMatch
from omni_runtime.draw import TokenLogprob
from omni_runtime.errors import ReplayError
from omni_runtime.orders import Instruction
from omni_runtime.replay.encode import TYPES, Decoder, Encoder, Foreign, Part, _named
from omni_runtime.request import ArParams, DenoiseParams, resolve
from omni_runtime.work import Answer, Broken, ExecutorDown, ExecutorUp, StepResult, TensorRef

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from stage import CARDS, PROGRAMS

LOOPS = {(known.name, name): loop for known in CARDS for name, loop in known.loops.items()}


def there_and_back(value: Any) -> Any:
    packed = msgspec.json.encode(Encoder({known.name: known for known in CARDS}).pack(value))
    json.loads(packed)  # any other reader of JSON can take it, too
    return Decoder(LOOPS).unpack(msgspec.json.decode(packed))


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types, NaN as itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return [*a] == [*b] and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
keys = st.text() | st.integers() | st.just("~u")
values = st.recursive(
    plain,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@settings(deadline=None)
@given(values)
def test_any_data(value: Any) -> None:
    assert same(there_and_back(value), value)


REF = TensorRef("cpu#1", 3, "think", "hidden", 7, (960,), "bfloat16")


@pytest.mark.parametrize(
    "value",
    [
        Answer("cpu#1", 4, [StepResult(5, b" the", {}, {"hidden": (REF,)}, TokenLogprob(5, -math.inf, ((5, -0.1),)))], 1e-3),
        Answer("cpu#1", 4, [StepResult(-1), StepResult(7, b"\xe6\x97", {"frames": [(1.5, 0.0)], "text": ("a", "b")})]),
        Broken("cpu#1", 4, "ValueError('é')"),
        ExecutorUp("cpu#1", ("a/b",), {"a/b": 9}, 2, True),
        ExecutorDown("cpu#1", "lost", back=True),
        work.Played(3, "audio", 0.1 + 0.2),
        work.Preempt(3),
        work.Cancel(3),
        ArParams(max_tokens=3, stop=("a", "é"), logit_bias={4: 1.0}, temperature=0.7),
        DenoiseParams(steps=3, guidance_scale=2.0),
        ArDecode(expert="e", context=9, defaults={"stop": ("a",), "max_tokens": 4}, stop_tokens=(2,)),
        FlowMatch(shift=3.0),
    ],
)
def test_values_of_the_vocabulary(value: Any) -> None:
    assert there_and_back(value) == value


def test_every_kind_of_input_and_instruction_is_known() -> None:
    """No kind has code of its own, so a new one is known as soon as it is defined."""
    modules = (draw, work, orders, program, card, request)
    assert sum(len(_named(module)) for module in modules) + 1 == len(TYPES), "two types of one name cannot be told apart"
    assert {kind.__name__ for kind in (*get_args(work.Input), *get_args(work.Command), *get_args(Instruction))} <= TYPES.keys()


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_submit_with_its_plan(name: str) -> None:
    asked = PROGRAMS[name]
    inputs = {key: [1, 2, 3] if kind == "token" else "hello" for key, kind in asked.inputs.items()}
    _, submit = resolve(7, asked, 5, inputs, deadline_s=2, n=3, tenant="a", label="mine")
    back = there_and_back(submit)
    assert back == submit
    spec = back.plan.steps[0].spec
    assert any(spec is loop for loop in LOOPS.values()), "loops come from the cards and are not written again"


def test_arrays_keep_what_is_looked_at() -> None:
    frames = np.array([[0.5, 0.0, 1.0], [0.25, 2.0, 0.0]], np.float32)
    zeros = there_and_back(frames)
    assert zeros.dtype == np.float32 and zeros.shape == (2, 3) and not zeros.any()
    assert there_and_back(Part(frames, (1,))).tolist() == [[0, 0, 0], [0, 1, 0]]
    assert there_and_back(Part(frames[1], (1, 9))).tolist() == [0, 1, 0]
    assert there_and_back(Part(np.array([4, 5], np.int32), None)).tolist() == [4, 5]
    assert there_and_back(np.zeros((0, 3), np.int16)).shape == (0, 3)
    number = there_and_back(np.int64(7))
    assert type(number) is np.int64 and number == 7


def test_what_only_experts_know() -> None:
    @dataclass
    class Point:
        x: int

    class Strange:
        pass

    assert there_and_back([Point(3)]) == [{"x": 3}]
    assert there_and_back(Strange()) == Foreign(f"{__name__}.{Strange.__qualname__}")


@pytest.mark.parametrize(
    "packed", [{"~Nothing": []}, {"~Cancel": [1, 2, 3]}, {"~a": ["<f4"]}, {"~loop": ["toy", "sing"]}, {"~l": 3}]
)
def test_what_cannot_be_read(packed: Any) -> None:
    with pytest.raises(ReplayError):
        Decoder(LOOPS).unpack(packed)
