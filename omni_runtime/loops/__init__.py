"""The kinds of loop: one pure state machine each, shared by all requests."""

from __future__ import annotations

from typing import Any

from omni_runtime.loop import Loop
from omni_runtime.loops.ar_decode import ArDecodeLoop
from omni_runtime.loops.audio_decode import AudioDecodeLoop
from omni_runtime.loops.diffusion_denoise import DenoiseLoop
from omni_runtime.loops.each import EachLoop
from omni_runtime.loops.flow_decode import FlowDecodeLoop
from omni_runtime.loops.one_shot import OneShotLoop
from omni_runtime.loops.talk import TalkLoop

LOOPS: dict[str, Loop[Any]] = {
    "ar_decode": ArDecodeLoop(),
    "audio_decode": AudioDecodeLoop(),
    "diffusion_denoise": DenoiseLoop(),
    "each": EachLoop(),
    "flow_decode": FlowDecodeLoop(),
    "one_shot": OneShotLoop(),
    "talk": TalkLoop(),
}
