"""A wrong request is refused before anything of it exists, with field, value and remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stage import PROGRAMS

from omni_runtime.card import ArDecode, ExpertSpec, ModelCard, OpLimits
from omni_runtime.errors import ProgramError, RequestError
from omni_runtime.program import Program
from omni_runtime.request import SEEDS, ArParams, Request, resolve
from omni_runtime.work import Submit

DRAWN = 99


def submit(name: str, **fields: Any) -> Submit:
    request = {key: fields.pop(key) for key in ("outputs", "priority", "label", "seed") if key in fields}
    needs = {"prompted": {}, "twins": {}}.get(name, {"messages": "m"})
    return resolve(1, PROGRAMS[name], DRAWN, {**needs, **fields}, **request)[1]


NAN, INF = float("nan"), float("inf")
WRONG: dict[str, list[tuple[str, Any]]] = {
    "text": [
        *(("max_tokens", value) for value in (True, "5", 2.5, -1, NAN, [1], b"1")),
        *(("temperature", value) for value in (True, "0.5", -0.1, 100.5, NAN, INF, None)),
        *(("top_p", value) for value in (True, 0, 1.5, NAN, "1", None)),
        *(("top_k", value) for value in (True, -2, 1.5, "5", None)),
        *(("min_p", value) for value in (True, -0.1, 1.1, NAN, "0", None)),
        *(("repetition_penalty", value) for value in (True, 0, -1.0, 101.0, NAN, INF, None)),
        *((name, value) for name in ("presence_penalty", "frequency_penalty") for value in (True, -2.1, 2.1, NAN, "1", None)),
        *(("logit_bias", value) for value in (5, [1], {"5": 1.0}, {-1: 1.0}, {1.5: 1.0}, {True: 1.0}, {2**31: 1.0})),
        *(("logit_bias", value) for value in ({5: 100.5}, {5: NAN}, {5: "1"}, {5: None}, dict.fromkeys(range(1025), 1.0))),
        *(("stop_tokens", value) for value in (5, [-1], [1.5], [True], ["5"], "5", [2**31], list(range(65)))),
        *(("ignore_eos", value) for value in (1, "yes", None)),
        *(("min_tokens", value) for value in (True, -1, 1.5, "5", None, 9)),
        *(("logprobs", value) for value in (True, -1, 21, 1.5, "5")),
        *(("stop", value) for value in ("", [""], ["a"] * 17, 5, [1], b"x", {"a": 1})),
        *(("seed", value) for value in (True, -1, 2**63, "1", 1.5, NAN)),
        *(("priority", value) for value in ("urgent", 1, None)),
        *(("label", value) for value in (5, None)),
        *(("outputs", value) for value in ((), ("text", "text"), ("txt",), ("audio",), 5)),
        ("messages", None),
        ("think", 3),
        ("think", {1: 3}),
        ("think", {"max_tokens": -3}),
        ("think", {"max_token": 3}),
        ("max_token", 3),
        ("Seed", 1),
    ],
    "paint": [
        *(("steps", value) for value in (True, 0, -1, "3", 2.5, None, NAN, 1001, 10**12)),
        *(("width", value) for value in (0, -16, 1.5, True, "512x512", (1,), 70_000)),
        *(("guidance_scale", value) for value in (0.5, -1.0, 101.0, NAN, INF, True, "7", None)),
        *(("preview_every", value) for value in (-1, 1.5, True, None)),
    ],
    "prompted": [("prompt", value) for value in ([], [1.5], [True], [-1], "abc", b"abc", 5, None, ["1"], {1: 2})],
    "clauses3": [("speed", "fast"), ("speed", True), ("utter", {"sped": 1.0}), ("speak", {"x": 1})],
    "cascade2": [("max_tokens", 3), ("talk", {"max_tokens": True})],
}


@pytest.mark.parametrize(("name", "field", "value"), [(n, f, v) for n, wrong in WRONG.items() for f, v in wrong])
def test_a_wrong_field_and_its_value_are_told(name: str, field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        submit(name, **{field: value})
    told = str(caught.value)
    assert field in told
    if isinstance(value, bool | int | float | bytes | str) and value != "" and "unknown argument" not in told:
        assert repr(value) in told


@pytest.mark.parametrize(
    ("name", "fields", "remedy"),
    [
        ("text", {"max_token": 3}, "did you mean 'max_tokens'?"),
        ("text", {"outputs": ("txt",)}, "did you mean 'text'?"),
        ("cascade2", {"max_tokens": 3}, "as in think={'max_tokens': 3}"),
        ("prompted", {}, "needs this input (token)"),
        ("prompted", {"prompt": []}, "a list of whole numbers from 0 on"),
        ("text", {"temperature": 101.0}, "less than or equal to 100"),
        ("paint", {"steps": 1001}, "at most 1000, as its card says, not 1001"),
        ("text", {"priority": "urgent"}, "'high', 'normal' or 'low'"),
        ("text", {"stop": [""]}, "must not be empty"),
        ("text", {"min_tokens": 9}, "min_tokens: 9 is more than max_tokens, 8"),
        ("text", {"repetition_penalty": 0}, "greater than 0, not 0"),
        ("text", {"logit_bias": {-1: 1.0}}, "greater than or equal to 0, not -1"),
    ],
)
def test_the_remedy_is_said(name: str, fields: dict[str, Any], remedy: str) -> None:
    with pytest.raises(RequestError, match=re.escape(remedy)):
        submit(name, **fields)


def test_ids_are_checked_where_the_vocabulary_is_known() -> None:
    card = ModelCard(
        name="small",
        experts={"lm": ExpertSpec(build="none:none", ops={"forward": OpLimits()})},
        loops={"think": ArDecode(expert="lm", context=8, vocabulary=10)},
    )
    p = Program("small", card)
    p.output("text", p.loop("think", prompt=p.input("prompt")).text)
    for field in ({"stop_tokens": [10]}, {"logit_bias": {3: 1.0, 10: 1.0}}):
        (name,) = field
        with pytest.raises(RequestError, match=f"think: {name}: token 10 is not in the vocabulary of 10"):
            resolve(1, p, DRAWN, {"prompt": [1], **field})
    assert resolve(1, p, DRAWN, {"prompt": [1], "stop_tokens": [9], "logit_bias": {9: -100}})
    assert submit("text", logit_bias={10**6: 1.0}), "the model will tell"


def test_a_pruned_loops_parameters_are_checked_and_its_name_told() -> None:
    with pytest.raises(RequestError, match=r"talk: .*max_tokens"):
        submit("cascade2", outputs=("text",), talk={"max_tokens": -3})
    assert set(submit("cascade2", outputs=("text",), talk={"max_tokens": 3}).params) == {"tokenize", "think"}
    assert submit("cascade2", outputs=("text",), max_tokens=3).params["think"].max_tokens == 3, "only one loop is left to take it"


@pytest.mark.parametrize(
    ("fields", "seed"),
    [({}, DRAWN), ({"seed": None}, DRAWN), ({"seed": 0}, 0), ({"seed": 7}, 7), ({"seed": SEEDS - 1}, SEEDS - 1)],
)
def test_a_seed_is_taken_as_given_and_drawn_where_none_is(fields: dict[str, Any], seed: int) -> None:
    """0 is a seed."""
    assert submit("text", **fields).seed == seed


def test_what_is_right_is_taken() -> None:
    made = submit("text", max_tokens=10**30, temperature=1, top_p=1, stop="end", priority="high", outputs="text", label="mine")
    changed = {"max_tokens": 10**30, "temperature": 1.0, "top_p": 1.0, "stop": ("end",)}
    assert made.params["think"].model_dump() == ArParams().model_dump() | changed
    assert made.priority == 0
    assert made.plan.outputs == ("text",)
    assert submit("text", max_tokens=None).params["think"].max_tokens is None
    assert submit("text").params["think"].max_tokens == 8, "the card's default"
    off = submit("text", top_k=-1, min_p=0, logit_bias=None, stop_tokens=None, logprobs=None).params["think"]
    assert off.model_dump() == submit("text", top_k=-1).params["think"].model_dump()
    most = {"top_k": 10**30, "min_p": 1, "repetition_penalty": 100, "presence_penalty": -2, "logprobs": 20, "min_tokens": 8}
    assert submit("text", **most, logit_bias={0: 100, 7: -100}, stop_tokens=[0, 7], ignore_eos=True)
    assert submit("text", stop=None).params["think"].stop == ()
    assert submit("paint", steps=1000, width=64).params["paint"].width == 64
    assert submit("clauses3", speed=2).params["utter"] == {"speed": 2.0}
    assert submit("clauses3", utter={"speed": 0.5}).params["utter"] == {"speed": 0.5}
    assert submit("prompted", prompt=(1, 2)).inputs == {"prompt": (1, 2)}
    assert Request().priority == "normal"


@pytest.mark.parametrize("beside", [{"max_tokens": 5}, {"max_tokens": None}])
def test_two_values_for_one_parameter(beside: dict[str, Any]) -> None:
    for order in ({"think": {"max_tokens": 3}} | beside, beside | {"think": {"max_tokens": 3}}):
        with pytest.raises(RequestError, match=r"max_tokens=(5|None) and think={'max_tokens': 3} are both given; leave one out"):
            submit("text", **order)
    assert submit("text", think={"max_tokens": 3}, temperature=0.5).params["think"].temperature == 0.5


ANY = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=2), st.lists(st.integers())
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    field=st.sampled_from(["max_tokens", "temperature", "top_p", "stop", "seed", "priority", "messages", "think", "outputs"]),
    value=ANY,
)
def test_anything_is_taken_or_refused(field: str, value: Any) -> None:
    """No value leads to another error, and what is taken is within the bounds."""
    try:
        made = submit("text", **{field: value})
    except (RequestError, ProgramError):
        return
    params = made.params["think"]
    assert params.max_tokens is None or (type(params.max_tokens) is int and params.max_tokens >= 0)
    assert 0 <= params.temperature <= 100
    assert 0 < params.top_p <= 1
    assert "" not in params.stop
    assert type(made.seed) is int
    assert 0 <= made.seed < SEEDS
