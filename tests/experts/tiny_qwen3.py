"""A tiny Qwen3-Omni twice: our folder and transformers' model of the same files."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from omni_runtime.experts.code2wav import Code2Wav
from omni_runtime.experts.decoder import DecoderLM
from omni_runtime.experts.qwen3_audio import AudioEncoder
from omni_runtime.experts.qwen3_predictor import CodePredictor
from omni_runtime.experts.qwen3_talker import Talker
from omni_runtime.experts.qwen3_vision import VisionEncoder
from omni_runtime.weights.qwen3_omni import OmniFolder
from omni_runtime.weights.toy_qwen3_omni import write_toy_omni

_KEPT = tempfile.TemporaryDirectory()


@lru_cache
def folder() -> OmniFolder:
    return OmniFolder(write_toy_omni(Path(_KEPT.name) / "omni", seed=3))


@lru_cache
def reference() -> Any:
    from transformers import Qwen3OmniMoeForConditionalGeneration
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model, info = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        folder().folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), info
    # transformers 5.24's talker counts the positions of sounds with the audio configuration, which it does not have.
    model.talker.config.audio_config = model.thinker.config.audio_config
    return model.eval()


@lru_cache
def thinker() -> DecoderLM:
    return DecoderLM(folder().config.thinker, folder().thinker())


@lru_cache
def talker() -> Talker:
    ours = folder()
    assert ours.config.talker is not None
    heads = [ours.tensor(f"talker.code_predictor.lm_head.{i}.weight") for i in range(ours.config.talker.groups - 1)]
    predictor = CodePredictor(ours.config.talker, ours.predictor(), heads)
    return Talker(ours.config.talker, ours.talker(), predictor, ours.named("talker."))


@lru_cache
def vocoder() -> Code2Wav:
    ours = folder()
    assert ours.config.vocoder is not None
    return Code2Wav(ours.config.vocoder, ours.named("code2wav."))


@lru_cache
def audio_encoder() -> AudioEncoder:
    return AudioEncoder(folder().config.audio, folder().named("thinker.audio_tower."))


@lru_cache
def vision_encoder() -> VisionEncoder:
    return VisionEncoder(folder().config.vision, folder().named("thinker.visual."))
