"""Prefix reuse on real weights: the same tokens as without it, and only what is new is computed."""

from __future__ import annotations

import pytest
from omni_runtime.programs.chat import chat

from omni_runtime.runtime import Runtime

pytestmark = [pytest.mark.oracle, pytest.mark.torch]

SYSTEM = "You are a helpful assistant who answers in one short sentence and never adds anything that was not asked for."


def messages(*turns: str) -> list[dict[str, str]]:
    roles = ["system", *["user", "assistant"] * len(turns)]
    return [{"role": role, "content": text} for role, text in zip(roles, (SYSTEM, *turns), strict=False)]


def test_turns_of_a_conversation() -> None:
    program = chat()
    cards = list(program.cards.values())
    asked = [messages("Name a colour."), messages("Name a fruit."), messages("Name a colour.", "Red.", "And another one?")]
    found = {}
    for reuse in (False, True):
        with Runtime(cards, executor="loopback", threads=1, prefix_cache=reuse) as runtime:
            results = [runtime.submit(program, messages=m, max_tokens=12, seed=1).result(120) for m in asked]
            handles = [runtime.submit(program, messages=m, max_tokens=12, seed=1) for m in asked]
            results += [handle.result(120) for handle in handles]
            assert runtime.idle
        found[reuse] = [r.outputs["tokens"] for r in results]
        cached = [r.usage["think"].get("cached_tokens", 0) for r in results]
        if reuse:
            prompts = [r.usage["think"]["prompt_tokens"] for r in results]
            assert cached[0] == 0
            assert cached[1] >= 16
            assert all(p - 1 >= c > p - 17 for p, c in zip(prompts[3:], cached[3:], strict=True)), (
                "all full blocks but the last token"
            )
        else:
            assert not any(cached)
    assert found[True] == found[False]
