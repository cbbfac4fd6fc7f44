"""Real weights: a thousand units of text and speech, recorded, decide the same in another process with other string hashes."""

from __future__ import annotations

from pathlib import Path

import pytest
from omni_runtime.programs.chat import chat
from omni_runtime.programs.speak import speak
from test_runtime_log import omni

from omni_runtime.replay import Recording, play
from omni_runtime.runtime import Runtime

pytestmark = [pytest.mark.oracle, pytest.mark.torch, pytest.mark.slow]

QUESTIONS = ("Name three colours of a peacock.", "What do bees make?", "Who wrote Hamlet?", "Write about the sea, with commas.")


def serve(record: Path | Recording, rounds: int, at_once: int) -> None:
    """Half of them spoken, some sampled, one of each round cancelled; others begin alike, or stop at a comma."""
    with Runtime(list(speak().cards.values()), threads=1, record=record) as runtime:
        for first in range(rounds):
            handles = []
            for i in range(at_once):
                program = speak() if i % 2 else chat()
                more = {"temperature": 0.8, "stop": (", ", "\n")} if i % 3 == 2 else {"ignore_eos": True}
                messages = QUESTIONS[(first + i) % len(QUESTIONS)]
                handles.append(runtime.submit(program, messages=messages, seed=i, max_tokens=44, outputs=None, **more))
            next(iter(handles[0]))
            handles[0].cancel()
            for handle in handles[1:]:
                handle.result(120)


def test_a_thousand_units(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    serve(path, 2, 14)
    played = play(path, cards=list(speak().cards.values()))
    played.check()
    assert played.units >= 1_000 and not played.alive
    done = omni("replay", str(path), hash_seed=4242)
    assert done.returncode == 0, done.stdout
    assert f"{played.units:,} units" in done.stdout and f"same decisions in {played.feeds:,} feeds" in done.stdout


def test_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    done = omni("run", "What do wombats eat?", "--max-tokens", "12", "--json", "--record", str(path), "--redact")
    assert done.returncode == 0, done.stderr
    assert "wombats" not in path.read_text()
    told = omni("replay", str(path), "--story", "1")
    assert told.returncode == 0 and ", redacted" in told.stdout and "submit chat for text" in told.stdout


def test_redacted(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    serve(Recording(path, redact=True), 1, 8)
    played = play(path)
    played.check()
    assert played.units >= 200
    text = path.read_text()
    assert not [word for question in QUESTIONS for word in question.split() if len(word) > 4 and word in text]
