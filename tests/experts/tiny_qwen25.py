"""A tiny Qwen2.5-Omni twice: our folder and transformers' model of the same files."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from omni_runtime.experts.bigvgan import BigVGAN
from omni_runtime.experts.decoder import DecoderLM
from omni_runtime.experts.qwen25_audio import AudioEncoder
from omni_runtime.experts.qwen25_flow import Flow
from omni_runtime.experts.qwen25_talker import Talker
from omni_runtime.experts.qwen25_vision import VisionEncoder
from omni_runtime.weights.qwen2_5_omni import Qwen25Folder
from omni_runtime.weights.qwen2_5_omni_parts import FLOW, WAVES
from omni_runtime.weights.toy_qwen2_5_omni import write_toy_qwen25

_KEPT = tempfile.TemporaryDirectory()


@lru_cache
def folder() -> Qwen25Folder:
    return Qwen25Folder(write_toy_qwen25(Path(_KEPT.name) / "omni", seed=3))


@lru_cache
def reference() -> Any:
    from transformers import Qwen2_5OmniForConditionalGeneration
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with torch.inference_mode(False):  # whoever asks first: tables made inside it could not be used outside
        model = Qwen2_5OmniForConditionalGeneration.from_pretrained(folder().folder, dtype=torch.float32).eval()
    return model.requires_grad_(False)


@lru_cache
def thinker() -> DecoderLM:
    return DecoderLM(folder().config.thinker, folder().thinker())


@lru_cache
def audio_encoder() -> AudioEncoder:
    return AudioEncoder(folder().config.audio, folder().named("thinker.audio_tower."))


@lru_cache
def vision_encoder() -> VisionEncoder:
    return VisionEncoder(folder().config.vision, folder().named("thinker.visual."))


@lru_cache
def talker() -> Talker:
    ours = folder()
    assert ours.config.talker is not None
    return Talker(ours.config.talker, ours.talker(), ours.named("talker.thinker_to_talker_proj."))


@lru_cache
def flow() -> Flow:
    assert folder().config.flow is not None
    return Flow(folder().config.flow, folder().named(FLOW))


@lru_cache
def bigvgan() -> BigVGAN:
    assert folder().config.waves is not None
    return BigVGAN(folder().config.waves, folder().named(WAVES))


@lru_cache
def voice(name: str) -> torch.Tensor:
    speaker = folder().speakers()[name]
    return flow().voice(speaker.condition_K, speaker.mel_TM)
