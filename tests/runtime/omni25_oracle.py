"""Requests to a tiny Qwen2.5-Omni, and what transformers' `generate` answers to the same prompts: text, codes and wave.

Its token2wav makes all sound in one call, from noise that it draws itself: it is given ours (`frame_noise`). A stream of ours is
near that wave, and equal to what `flow_driver` makes of the codes chunk by chunk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from omni_asked import ASKED, Answer, for_generate, greedy, prepared, wished
from omni_runtime.cards.qwen2_5_omni import qwen2_5_omni
from omni_runtime.programs.omni import omni

sys.path.append(str(Path(__file__).resolve().parents[1] / "experts"))
from flow_driver import log_spectral_distance as log_spectral_distance
from flow_driver import streamed
from test_qwen25_omni_oracle import codes_of, marked_prompts
from tiny_qwen25 import bigvgan, flow, folder, reference, voice

from omni_runtime.experts.philox_noise import frame_noise
from omni_runtime.loops.flow_chunks import FlowChunks
from omni_runtime.weights.toy_qwen2_5_omni import token_ids

CARD = qwen2_5_omni(str(folder().folder))
PROGRAM = omni(CARD)
NODE = list(PROGRAM.nodes).index("flow")
END = token_ids()["<|im_end|>"]
STEPS = 4  # points of the ODE
GREEDY = {"talk": {"temperature": 0.0, "repetition_penalty": 1.0}}
# In one chunk, as the reference does it.
WHOLE = CARD.model_copy(update={"loops": {**CARD.loops, "flow": CARD.loops["flow"].model_copy(update={"chunks": (10_000,)})}})
RARE = {
    "long": ASKED["text"]._replace(messages="Count to 14", think=300, frames=400),
    "lasting": ASKED["text"]._replace(think=40, frames=150),
    **{f"words{n}": ASKED["turns"]._replace(think=n + 1, frames=4) for n in (1, 2, 3)},
}


@contextmanager
def our_noise(model: Any, seed: int) -> Iterator[None]:
    """What its flow begins with."""

    def noise(shape: Any, *_: Any, **__: Any) -> torch.Tensor:
        return torch.from_numpy(frame_noise(seed, NODE, 0, shape[1], shape[2]).copy())[None]

    whole = model.token2wav.forward

    def forward(*args: Any, **told: Any) -> Any:
        with mock.patch.object(torch, "randn", noise):
            return whole(*args, **told)

    with mock.patch.object(model.token2wav, "forward", forward):
        yield


@lru_cache
def answer(name: str) -> Answer:
    """Of `generate`, greedy."""
    asked = (ASKED | RARE)[name]
    given = for_generate(asked, prepared(asked, folder().folder), "thinker_")
    model, ends = reference(), [folder().config.talker.pad, folder().config.talker.eos]  # type: ignore[union-attr]
    told = greedy(asked, END, asked.speaker.title()) | {"talker_max_new_tokens": asked.frames, "token2wav_num_steps": STEPS}
    with marked_prompts(model), codes_of(model) as codes, our_noise(model, 1):
        sequence, wave = model.generate(**given, **told, talker_eos_token_id=ends)
    return Answer(sequence[0, given["input_ids"].shape[1] :].tolist(), [(code,) for code in codes], wave.flatten().numpy())


@lru_cache
def stream(name: str) -> Any:
    """The wave of the reference's codes, chunk by chunk as the card says."""
    asked, spec = (ASKED | RARE)[name], CARD.loops["flow"]
    plan, codes = FlowChunks(spec.block, spec.ahead, sizes=spec.chunks), [code for (code,) in answer(name).codes]
    mel_TM = streamed(flow(), plan, codes, voice(asked.speaker.title()), 1, STEPS, node=NODE)
    return bigvgan().decode(mel_TM[None])[0].numpy()


def wish(name: str, **more: Any) -> dict[str, Any]:
    """Arguments of `submit` for a request."""
    return wished((ASKED | RARE)[name], END, GREEDY["talk"], flow={"num_steps": STEPS}, **more)


def same(result: Any, name: str, whole: bool = False) -> None:
    """Whether a result is the reference's answer, and its sound that of the stream; `whole`: the reference's."""
    want = answer(name)
    assert list(result.outputs["tokens"]) == want.tokens, name
    assert [tuple(frame) for frame in result.outputs["codes"]] == want.codes, name
    np.testing.assert_allclose(result.audio, want.wave if whole else stream(name), rtol=0, atol=1e-4)
