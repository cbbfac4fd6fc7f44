"""Alone, every toy program gives what straight-line code gives that knows nothing of us; so does a crowd, by `world.judge`."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
from asks import Ask
from stage import CHOICES
from world import solo

SPEECH = {"cascade2": oracle.cascade, "cascade1": oracle.cascade, "clauses3": oracle.clauses, "clauses1": oracle.clauses}
SPEECH |= {"omni": oracle.omni, "omni1": oracle.omni, "tale": oracle.tale, "tale1": oracle.tale}


def gives(ask: Ask) -> dict[str, Any]:
    alone = solo(ask, 64)
    assert alone.reason == "done"
    wanted = CHOICES[ask.choice][1]
    found = {output: alone.outputs.get(output, []) for output in wanted}
    if "text" in found:
        found["text"] = "".join(found["text"])
    return found


@pytest.mark.parametrize("choice", [i for i, (name, _) in enumerate(CHOICES) if name in SPEECH])
def test_speech(choice: int) -> None:
    name, outputs = CHOICES[choice]
    empty = 0
    for seed in range(6):
        for n in range(1, 6):
            for most in range(1, 8):
                want = SPEECH[name](f"{seed} {n}", seed, most)
                assert gives(Ask(choice, seed, n, most, 1)) == {output: want[output] for output in outputs}, (seed, n, most)
                empty += not want["audio"]
    assert name.startswith("cascade") or empty < 70, "mostly silence"


@pytest.mark.parametrize("choice", [7, 8])
def test_paint(choice: int) -> None:
    for seed in range(6):
        for n in range(1, 6):
            for steps in range(1, 6):
                want = oracle.paint(f"{seed} {n}", seed, steps)
                assert gives(Ask(choice, seed, n, 4, steps)) == {output: want[output] for output in CHOICES[choice][1]}


@pytest.mark.parametrize("seed", range(6))
def test_text(seed: int) -> None:
    for most in (1, 2, 5, 30):
        tokens, text, _ = oracle.decode(oracle.tokenize(f"{seed} 2"), most, seed, node=1)
        assert gives(Ask(1, seed, 2, most, 1)) == {"text": text, "tokens": tokens}
