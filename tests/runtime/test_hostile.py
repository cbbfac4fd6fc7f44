"""What a hostile or hasty user does, and what a user of a broken expert meets: nobody else may notice."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_runtime.card import AudioDecode, ExpertSpec, ModelCard, OneShot, OpLimits, Port, Slot
from omni_runtime.errors import CardError, ProgramError, RequestError, RequestFailed
from omni_runtime.executors.simulated import SimulatedExecutor
from omni_runtime.program import Program
from omni_runtime.runtime import Runtime
from omni_runtime.scheduler.fill import shares

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "core")]
from bad_experts import RESULTS  # noqa: E402
from toys import CARD, PROGRAMS  # noqa: E402


def one_call(kind: str) -> tuple[ModelCard, Program, Program]:
    """A card whose expert misbehaves in one op and is good in the other, and a program for each."""
    ops = {"op": OpLimits(), "good": OpLimits()}
    card = ModelCard(
        name="c",
        experts={"e": ExpertSpec(build="bad_experts:build", ops=ops, options={"kind": kind})},
        loops={
            op: OneShot(expert="e", op=op, reads={"x": Slot(type="any")}, ports={"text": Port(type="text")})
            for op in ("op", "good")
        },
    )
    programs = []
    for op in ("op", "good"):
        p = Program(op, card)
        p.output("text", p.call(op, p.input("x")))
        programs.append(p)
    return card, programs[0], programs[1]


@pytest.mark.parametrize("executor", ["thread", "loopback"])
@pytest.mark.parametrize("kind", [kind for kind in RESULTS if kind != "good"])
def test_a_malformed_result_ends_its_request_and_no_other(kind: str, executor: Any) -> None:
    card, bad, good = one_call(kind)
    with Runtime([card], executor=executor) as runtime:
        handles = [runtime.submit(program, x=1) for program in (bad, good, bad)]
        assert handles[1].result(10).text == "fine"
        for handle in (handles[0], handles[2]):
            with pytest.raises(RequestFailed) as caught:
                handle.result(10)
            words = ("ZeroDivisionError", "bad_experts.py, line") if kind == "raises" else ("text",) if kind == "bytes" else ()
            for word in words:
                assert word in str(caught.value)
        assert runtime.submit(good, x=1).result(10).text == "fine"


def test_what_cannot_travel_ends_its_request_and_no_other() -> None:
    card, _, good = one_call("good")
    with Runtime([card], executor="loopback") as runtime:
        bad, fine = runtime.submit(good, x=object()), runtime.submit(good, x=1)
        assert fine.result(10).text == "fine"
        with pytest.raises(RequestFailed, match="cannot travel"):
            bad.result(10)


@pytest.mark.parametrize("port", ["text", "samples", "token", "frame", "image"])
def test_any_port_can_be_simulated(port: str) -> None:
    card = ModelCard(
        name="c",
        experts={"e": ExpertSpec(build="m:x", ops={"op": OpLimits()})},
        loops={"look": OneShot(expert="e", op="op", reads={"img": Slot(type="image")}, ports={"out": Port(type=port)})},
    )
    p = Program("p", card)
    p.output("out", p.call("look", p.input("img")))
    with Runtime([card], executors=[SimulatedExecutor("s", card)]) as runtime:
        assert runtime.submit(p, img="y").result(10).finish == {"out": "done"}


def test_a_long_text_leaves_a_short_one_its_share() -> None:
    """By rank alone the short one behind got one frame a batch."""
    card = ModelCard(
        name="v",
        experts={"voc": ExpertSpec(build="m:v", ops={"decode_audio": OpLimits(units=8, size=16)})},
        loops={
            "speak": AudioDecode(expert="voc", sample_rate=8000, hop=1, reads={"frames": Slot(type="token", mode="stream")}),
        },
    )
    p = Program("p", card)
    p.output("audio", p.loop("speak", frames=p.input("codes")).samples)
    with Runtime([card], executors=[SimulatedExecutor("s", card, pace=1.0)]) as runtime:
        runtime.submit(p, codes=[1] * 4000)
        time.sleep(0.02)
        assert runtime.submit(p, codes=[1] * 16).result(10).units["speak"] <= 3


@pytest.mark.parametrize(
    ("wants", "spare", "given"),
    [
        ({0: 1000, 1: 8}, 16, {0: 8, 1: 8}),
        ({0: 1000, 1: 2}, 16, {0: 14, 1: 2}),
        ({0: 5, 3: 5, 7: 5}, 8, {0: 3, 3: 3, 7: 2}),
        ({0: 5}, 0, {0: 0}),
        ({2: 3, 4: 3}, 100, {2: 3, 4: 3}),
    ],
)
def test_shares(wants: dict[int, int], spare: int, given: dict[int, int]) -> None:
    assert shares(wants, spare) == given


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 0},
        {"slots": -1},
        {"slots": "2"},
        {"kv_bytes": 1e9},
        {"kv_bytes": -1},
        {"max_requests": 0},
        {"max_requests": None},
        {"threads": 0},
        {"threads": 1.5},
        {"device": ""},
        {"device": "bogus"},
        {"observers": [5]},
        {"observers": 5},
        {"executor": "fibre"},
        {"replicas": 0},
        {"workers": {"a": ["good/nobody"]}},
        {"workers": {"a": "bad/bad"}},
        {"hang_after_s": 0.0},
        {"executors": []},
        {"executors": 5},
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any]) -> None:
    card, _, _ = one_call("good")
    with pytest.raises(CardError, match=next(iter(options))):
        Runtime([card], **options)


def test_wrong_cards_and_executors() -> None:
    card, _, good = one_call("good")
    for cards in (card, "smollm2", [5], []):
        with pytest.raises(CardError):
            Runtime(cards)  # type: ignore[arg-type]
    executor = SimulatedExecutor("s", card)
    with pytest.raises(CardError, match="name of its own"):
        Runtime([card], executors=[executor, executor])
    with pytest.raises(CardError, match="at least 1 slot"):
        Runtime([card], executors=[SimulatedExecutor("s", card, slots=0)])
    with pytest.raises(CardError, match=r"device.*bring their own"):
        Runtime([card], executors=[executor], device="meta")
    with Runtime([card]) as runtime:
        with pytest.raises(RequestError, match="call it"):
            runtime.submit(one_call)  # type: ignore[arg-type]
        for timeout in (-1, float("nan"), float("inf"), 1e300, "x", [1], 1j):
            with pytest.raises(RequestError, match="timeout"):
                runtime.submit(good, x=1).result(timeout)
    assert not [t for t in threading.enumerate() if t.name.startswith("omni-")]


def test_inputs_may_be_edited_after_submit() -> None:
    messages = [{"role": "user", "content": "hi"}]
    with Runtime([CARD], executors=[SimulatedExecutor("s", CARD, blocks=100)]) as runtime:
        want = runtime.submit(PROGRAMS["text"], messages=messages, seed=1).result(10).text
        handle = runtime.submit(PROGRAMS["text"], messages=messages, seed=1)
        messages[0]["content"] = "something else"
        messages.append({"role": "user", "content": "more"})
        assert handle.result(10).text == want


def test_chunks_cannot_be_written_to() -> None:
    with Runtime([CARD], executors=[SimulatedExecutor("s", CARD, blocks=100)]) as runtime:
        handle = runtime.submit(PROGRAMS["cascade2"], messages="hi", outputs="audio", seed=1)
        for chunk in handle:
            assert chunk.samples is not None
            with pytest.raises(ValueError, match="read-only"):
                chunk.samples[:] = 0
        assert np.abs(handle.result().audio).max() > 0


@pytest.mark.parametrize(
    "messages",
    [5, [], {}, ["x"], [{"role": "user"}], [{"role": "user", "content": 5}], b"hi", "half \ud800", "x" * 600_000],
)
def test_messages_are_checked_at_submit(messages: Any) -> None:
    with (
        Runtime([CARD], executors=[SimulatedExecutor("s", CARD, blocks=100)]) as runtime,
        pytest.raises(RequestError, match="messages"),
    ):
        runtime.submit(PROGRAMS["text"], messages=messages)


@pytest.mark.parametrize("name", ["seed", "n", "outputs", "label", "priority", "program", "self", "two words", ""])
def test_inputs_have_names_that_can_be_given(name: str) -> None:
    with pytest.raises(ProgramError, match="cannot be called"):
        Program("p", CARD).input(name)


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        ({"reads": {}}, "needs slot 'frames'"),
        ({"reads": {"codes": Slot(type="token", mode="stream")}}, "unknown slot"),
        ({"ports": {"out": Port(type="samples")}}, "unknown port"),
    ],
)
def test_a_loop_reads_and_gives_what_its_kind_can(loop: dict[str, Any], words: str) -> None:
    experts = {"e": ExpertSpec(build="a:b", ops={"decode_audio": OpLimits()})}
    with pytest.raises(CardError, match=words):
        ModelCard(name="c", experts=experts, loops={"speak": AudioDecode(expert="e", sample_rate=1, hop=1, **loop)})


def test_a_script_that_forgets_to_close_ends_in_peace() -> None:
    code = f"""
import sys
sys.path[:0] = [{str(HERE.parents[1])!r}, {str(HERE.parents[0] / "core")!r}]
from omni_runtime import Runtime, SimulatedExecutor
from toys import CARD, PROGRAMS  # noqa: E402
runtime = Runtime([CARD], executors=[SimulatedExecutor("s", CARD, blocks=100, pace=1.0)])
handle = runtime.submit(PROGRAMS["text"], messages="hi")
next(iter(handle))
print("out")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")


def test_a_dropped_runtime_is_closed() -> None:
    runtime = Runtime([CARD], executors=[SimulatedExecutor("dropped", CARD, blocks=100)])
    runtime.submit(PROGRAMS["text"], messages="hi").result(10)
    assert [t for t in threading.enumerate() if t.name == "omni-dropped"]
    del runtime
    deadline = time.monotonic() + 5
    while [t for t in threading.enumerate() if t.name == "omni-dropped"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
