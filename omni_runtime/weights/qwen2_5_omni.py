"""The weights of a Qwen2.5-Omni folder, part by part, one tensor at a time, and the speakers that lie beside them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from omni_runtime.errors import CheckpointError
from omni_runtime.weights.omni_folder import TensorFolder, Tensors
from omni_runtime.weights.omni_parts import decoder_names
from omni_runtime.weights.qwen2_5_omni_config import read_qwen25_config
from omni_runtime.weights.qwen2_5_omni_parts import Qwen25Config, tensor_shapes
from omni_runtime.weights.speaker_names import SPEAKERS, check_names

PARTS = ("thinker.", "talker.", "token2wav.")
DERIVED = r"(inv_freq|\.filter|positional_embedding(\.positional_embedding)?)$"  # older files may store these tables


@dataclass(frozen=True)
class Speaker:
    """Who speaks: K numbers and T frames of M mels."""

    bos: int  # token of the thinker that stands before the answer
    condition_K: torch.Tensor
    mel_TM: torch.Tensor


class Qwen25Folder(TensorFolder):
    """See `TensorFolder`.

    Raises:
        CheckpointError: anything of `read_qwen25_config` and `TensorFolder`.
    """

    def __init__(self, folder: Path) -> None:
        self.config: Qwen25Config = read_qwen25_config(folder)
        silent = () if self.config.talker is not None else PARTS[1:]
        super().__init__(folder, tensor_shapes(self.config), PARTS, silent, DERIVED)

    def thinker(self) -> Tensors:
        """By the names of `parameter_shapes`."""
        return self.under(decoder_names(self.config.thinker, "thinker.", "embed_tokens", "thinker.lm_head"))

    def talker(self) -> Tensors:
        """By the names of `parameter_shapes`."""
        assert self.config.talker is not None, "this folder has no voice: ask its configuration first"
        return self.under(decoder_names(self.config.talker.decoder, "talker.", "embed_tokens", "talker.codec_head"))

    def speakers(self) -> dict[str, Speaker]:
        """Those of spk_dict.pt.

        Raises:
            CheckpointError: see `read_speakers`.
        """
        return read_speakers(self.folder, self.config)


def read_speakers(folder: Path, config: Qwen25Config) -> dict[str, Speaker]:
    """Speakers by name. The file is a pickle, of which nothing but tensors, numbers and texts is read.

    Raises:
        CheckpointError: the file is missing, damaged, holds something else, or numbers of another shape than the configuration
            asks for.
    """
    assert config.flow is not None, "this folder has no voice: ask its configuration first"
    path = folder / SPEAKERS
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist, and without it nobody can speak; fetch the file") from None
    except pickle.UnpicklingError:  # torch's own words advise to let the file run what it likes
        raise CheckpointError(
            f"{path} is damaged, or asks to run code: only tensors, numbers and texts are read of it; fetch the file again"
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]:.200}; fetch the file again") from None
    check_names(path, found)
    return {name: _speaker(f"{path}: {name}", value, config) for name, value in found.items()}


def _speaker(at: str, value: Any, config: Qwen25Config) -> Speaker:
    flow = config.flow
    assert flow is not None
    if not isinstance(value, dict) or not {"bos_token", "cond", "ref_mel"} <= value.keys():
        raise CheckpointError(f"{at}: bos_token, cond and ref_mel are needed; fetch the file again")
    bos, condition, mel = (torch.as_tensor(value[key]) for key in ("bos_token", "cond", "ref_mel"))
    if bos.numel() != 1 or bos.is_floating_point() or not 0 <= int(bos) < config.thinker.vocab:
        raise CheckpointError(f"{at}: bos_token: {bos.tolist()!r:.80} is no token of the thinker's {config.thinker.vocab}")
    if condition.numel() != flow.condition or condition.shape[-1] != flow.condition:
        raise CheckpointError(f"{at}: cond: shape {tuple(condition.shape)}, config.json asks for (1, {flow.condition})")
    least = max((size - 1) // 2 * dilation for size, dilation in zip(flow.speaker.kernels, flow.speaker.dilations, strict=True))
    if mel.ndim < 2 or mel.shape[-1] != flow.mels or mel.numel() != mel.shape[-2] * flow.mels or mel.shape[-2] <= least:
        shape = f"(1, more than {least}, {flow.mels})"
        raise CheckpointError(f"{at}: ref_mel: shape {tuple(mel.shape)}, config.json asks for {shape}")
    for key, tensor in (("cond", condition), ("ref_mel", mel)):
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{at}: {key}: holds what is no finite number; fetch the file again")
    return Speaker(int(bos), condition.float().reshape(-1), mel.float().reshape(-1, flow.mels))
