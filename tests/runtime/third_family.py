"""A family of omni models that is none of ours, all of it: `designs/adding-a-model.md` tells what each piece is for.

Suffixes: B bins, T frames or patches, X numbers of a patch, N vectors, D width of the thinker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from omni_runtime.cards.omni_parts import expert, kv_bytes, listeners, listening
from omni_runtime.programs.omni import thinking

from omni_runtime.card import AudioDecode, ModelCard, OpLimits, Port, Slot
from omni_runtime.experts.decoder import DecoderLM
from omni_runtime.experts.encoder_layers import Seen
from omni_runtime.experts.media_lm import MediaLM
from omni_runtime.experts.omni_family import OmniFamily
from omni_runtime.experts.omni_options import read_options
from omni_runtime.program import Program
from omni_runtime.weights import toy_omni
from omni_runtime.weights.decoder_config import DecoderConfig, parameter_shapes
from omni_runtime.weights.folder_tokenizer import folder_tokenizer
from omni_runtime.weights.omni_folder import TensorFolder
from omni_runtime.weights.omni_parts import MediaTokens, Timing, decoder_names, dense
from omni_runtime.weights.qwen2_5_omni_parts import AudioConfig, VisionConfig
from omni_runtime.weights.toy_folder import write_tensors
from omni_runtime.work import StepResult

NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<hear>", "<heard>", "<sound>", "<see>", "<seen>", "<image>", "<video>")
IDS, VOCAB = toy_omni.ids_of(NAMES), toy_omni.vocabulary(NAMES)
PITCH = 80  # samples of a token


class Config:  # its shape: an `OmniShape`
    thinker = DecoderConfig(VOCAB, 32, 2, 2, 1, 16, 64, 512, 1e4, 1e-6, rope_sections=(4, 2, 2))
    audio = AudioConfig(mels=128, width=32, layers=0, heads=1, ffn=1, out=32, chunk=2)
    vision = VisionConfig(32, 0, 1, 1, patch=4, merge=2, temporal=2, channels=3, out=32, window=1, full=frozenset())
    tokens = MediaTokens(*(IDS[name] for name in ("<sound>", "<image>", "<video>", "<hear>", "<see>")))
    timing = Timing(a_second=10)


NAMED = decoder_names(Config.thinker, "thinker.", "embed_tokens", "thinker.lm_head")
SHAPES = {NAMED[name]: shape for name, shape in parameter_shapes(Config.thinker).items()}
SHAPES |= dense("thinker.audio_tower.out", 32, 8 * 128) | dense("thinker.visual.out", 32, 4 * Config.vision.pixels)


class Folder(TensorFolder):
    def __init__(self, folder: Path) -> None:
        self.config = Config()
        super().__init__(folder, SHAPES, ("thinker.",))


class Encoder:  # both of them: numbers that lie together, through one matrix
    def __init__(self, config: Any, weights: Any, device: str, layout: str) -> None:
        self.config, self.device = config, torch.device(device)
        self.weight, self.bias = (weights[f"out.{kind}"].to(device, torch.float32) for kind in ("weight", "bias"))

    def encode(self, given: Any) -> Any:
        if isinstance(self.config, AudioConfig):  # log-mel frames [B, T], eight a vector
            return [F.linear(F.pad(mel, (0, -mel.shape[1] % 8)).T.reshape(-1, 8 * 128), self.weight, self.bias) for mel in given]
        return [Seen(F.linear(x_TX.reshape(-1, self.weight.shape[1]), self.weight, self.bias), None) for x_TX, _ in given]


FAMILY = OmniFamily(("Third",), "third", lambda _: Config(), Folder, Encoder, Encoder, lambda frames: -(-frames // 8), "<heard>")


def build_thinker(options: Any, device: str) -> MediaLM:
    folder = Folder(read_options(options, "third thinker").folder)
    return MediaLM(DecoderLM(Config.thinker, folder.under(NAMED)), folder_tokenizer(folder.folder, VOCAB).pieces)


class Hum:  # a tone for each token
    def __init__(self) -> None:
        self.ops = {"decode_audio": lambda rows, slots: [StepResult(items={"samples": self.wave(row.payload)}) for row in rows]}

    def wave(self, step: Any) -> Any:
        return np.concatenate([0.3 * np.sin(np.arange(PITCH) * (1 + token % 50) / 20) for token in step.frames]).astype(
            np.float32
        )


def card(checkpoint: str) -> ModelCard:
    think = {"context": Config.thinker.positions, "vocabulary": VOCAB, "stop_tokens": (IDS["<|im_end|>"],)}
    experts = listeners(checkpoint, "third_family:build_thinker", kv_bytes(Config.thinker), "third_family:FAMILY")
    experts["hum"] = expert("third_family:build_hum", "", ops={"decode_audio": OpLimits()})
    loops = listening(think, {"spoken": Port(type="token")}, turns=False, features=False)
    loops["hum"] = AudioDecode(
        expert="hum", sample_rate=8000, hop=PITCH, behind=0, reads={"frames": Slot(type="token", mode="stream")}
    )
    return ModelCard(name="third", experts=experts, loops=loops)


def build_hum(options: Any, device: str) -> Hum:
    return Hum()


def program(model: ModelCard) -> Program:
    p = Program("third", model)
    _, thought = thinking(p, model)
    p.output("audio", p.loop("hum", frames=p.handoff(thought.spoken)).samples)
    return p


def write(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    vision = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
    chat = toy_omni.template("<hear><sound><heard>", "<see><image><seen>", "<see><video><seen>")
    toy_omni.write_small_files(folder, {"architectures": ["Third"], "model_type": "third"}, NAMES, chat, vision, 128)
    write_tensors(folder, toy_omni.random_weights(SHAPES, 1, lambda name, shape: 1.2))
    return folder
