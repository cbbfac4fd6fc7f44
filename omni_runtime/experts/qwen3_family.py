"""Qwen3-Omni, as the experts see it that it shares with other families."""

from __future__ import annotations

from omni_runtime.experts.omni_family import OmniFamily
from omni_runtime.experts.qwen3_audio import AudioEncoder, audio_tokens
from omni_runtime.experts.qwen3_talker import user_turns
from omni_runtime.experts.qwen3_vision import VisionEncoder
from omni_runtime.weights.qwen3_omni import OmniFolder
from omni_runtime.weights.qwen3_omni_config import ARCHITECTURE, KIND, read_omni_config

QWEN3 = OmniFamily(
    architectures=(ARCHITECTURE,),
    kind=KIND,
    read=read_omni_config,
    open=OmniFolder,
    hearing=AudioEncoder,
    seeing=VisionEncoder,
    audio_tokens=audio_tokens,
    audio_end="<|audio_end|>",
    user_turns=user_turns,
)
