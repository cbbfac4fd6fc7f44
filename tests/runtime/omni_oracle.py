"""Requests to a tiny Qwen3-Omni, and what transformers' `generate` answers to the same prompts: text, codes and wave."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from omni_asked import ASKED, Answer, for_generate, greedy, prepared, wished
from omni_runtime.cards.qwen3_omni import qwen3_omni
from omni_runtime.programs.omni import omni

sys.path.append(str(Path(__file__).resolve().parents[1] / "experts"))
from tiny_qwen3 import folder, reference

CARD = qwen3_omni(str(folder().folder))
PROGRAM = omni(CARD)
GREEDY = {"talk": {"temperature": 0.0, "repetition_penalty": 1.0, "predict": {"temperature": 0.0}}}
TOKENS = folder().config.tokens

# Asked for by tests that need them only: they take the reference long, or are odd.
RARE = {
    "long": ASKED["mixed"]._replace(think=700, frames=900),  # 601 frames until the talker ends it
    **{f"words{n}": ASKED["turns"]._replace(stop=stop, frames=4) for n, stop in ((1, 122), (2, 23), (3, 250))},
}


@lru_cache
def answer(name: str) -> Answer:
    """Of `generate`, greedy."""
    asked = (ASKED | RARE)[name]
    given = for_generate(asked, prepared(asked, folder().folder))
    seen: list[Any] = []
    model = reference()
    whole = model.code2wav.chunked_decode
    # Its decode in chunks of 300 frames loses `lag` samples after each (page 0020): all of it in one call is right.
    model.code2wav.chunked_decode = lambda codes, **_: (seen.append(codes), model.code2wav(codes))[1]
    try:
        told = greedy(asked, TOKENS.im_end) | {"talker_max_new_tokens": asked.frames + 1}
        sequence, wave = model.generate(**given, **told, return_audio=True)
    finally:
        model.code2wav.chunked_decode = whole
    codes = [tuple(frame) for frame in seen[0][0].T.tolist()]
    return Answer(sequence[0, given["input_ids"].shape[1] :].tolist(), codes, wave[0, 0].numpy())


def wish(name: str, **more: Any) -> dict[str, Any]:
    """Arguments of `submit` for a request."""
    return wished((ASKED | RARE)[name], TOKENS.im_end, GREEDY["talk"], **more)


def same(result: Any, name: str) -> None:
    """Whether a result is the reference's answer."""
    want = answer(name)
    assert list(result.outputs["tokens"]) == want.tokens, name
    assert [tuple(frame) for frame in result.outputs["codes"]] == want.codes, name
    np.testing.assert_allclose(result.audio, want.wave, rtol=0, atol=1e-4)
