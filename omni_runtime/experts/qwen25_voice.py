"""The voice of Qwen2.5-Omni as experts: ops `talk`, `velocity` and `decode_audio`, all general but for what is built here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_runtime.experts.bigvgan import BigVGAN
from omni_runtime.experts.flow_op import FlowOp
from omni_runtime.experts.mel_vocoder import MelVocoder
from omni_runtime.experts.omni_options import Options, read_options
from omni_runtime.experts.qwen25_flow import Flow
from omni_runtime.experts.qwen25_talker import Talker
from omni_runtime.experts.speakers import voiced
from omni_runtime.experts.state_voice import StateVoice
from omni_runtime.weights.qwen2_5_omni import Qwen25Folder
from omni_runtime.weights.qwen2_5_omni_parts import FLOW, WAVES


def build(options: Mapping[str, Any], device: str) -> StateVoice:
    """Options: `checkpoint`, a folder; `linear`, see `linear.LAYOUTS`.

    Raises:
        CardError: an unknown option, or one of the wrong type.
        CheckpointError: the folder is not a whole Qwen2.5-Omni, or has no voice.
    """
    asked, folder = _opened(options, "qwen2.5 voice")
    config = voiced(folder.config.talker, folder.folder)
    projection = folder.named("talker.thinker_to_talker_proj.")
    talker = Talker(config, folder.talker(), projection, device, asked.linear)
    speakers = {name: speaker.bos for name, speaker in folder.speakers().items()}
    return StateVoice(talker, folder.tensor("thinker.model.embed_tokens.weight"), speakers)


def build_flow(options: Mapping[str, Any], device: str) -> FlowOp:
    """As `build`."""
    asked, folder = _opened(options, "qwen2.5 flow")
    flow = Flow(voiced(folder.config.flow, folder.folder), folder.named(FLOW), device, asked.linear)
    return FlowOp(flow, {name: (speaker.condition_K, speaker.mel_TM) for name, speaker in folder.speakers().items()})


def build_vocoder(options: Mapping[str, Any], device: str) -> MelVocoder:
    """As `build`."""
    _, folder = _opened(options, "qwen2.5 vocoder")
    return MelVocoder(BigVGAN(voiced(folder.config.waves, folder.folder), folder.named(WAVES), device))


def _opened(options: Mapping[str, Any], what: str) -> tuple[Options, Qwen25Folder]:
    asked = read_options(options, what)
    return asked, Qwen25Folder(asked.folder)
