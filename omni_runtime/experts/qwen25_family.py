"""Qwen2.5-Omni, as the experts see it that it shares with other families."""

from __future__ import annotations

from omni_runtime.experts.omni_family import OmniFamily
from omni_runtime.experts.qwen25_audio import LEAST, AudioEncoder, audio_tokens
from omni_runtime.experts.qwen25_vision import VisionEncoder
from omni_runtime.weights.qwen2_5_omni import Qwen25Folder
from omni_runtime.weights.qwen2_5_omni_config import ARCHITECTURES, KIND, read_qwen25_config

QWEN25 = OmniFamily(
    architectures=ARCHITECTURES,
    kind=KIND,
    read=read_qwen25_config,
    open=Qwen25Folder,
    hearing=AudioEncoder,
    seeing=VisionEncoder,
    audio_tokens=audio_tokens,
    audio_end="<|audio_eos|>",
    least=LEAST,
    silence=True,
)
