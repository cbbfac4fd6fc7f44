"""The weights of a Qwen3-Omni folder, part by part, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from omni_runtime.weights.decoder_config import parameter_shapes
from omni_runtime.weights.omni_folder import Lazy, TensorFolder, Tensors
from omni_runtime.weights.omni_parts import decoder_names
from omni_runtime.weights.qwen3_omni_config import read_omni_config
from omni_runtime.weights.qwen3_omni_parts import OmniConfig, TalkerConfig, tensor_shapes

PARTS = ("thinker.", "talker.", "code2wav.")


class OmniFolder(TensorFolder):
    """See `TensorFolder`.

    Raises:
        CheckpointError: anything of `read_omni_config` and `TensorFolder`.
    """

    def __init__(self, folder: Path) -> None:
        self.config: OmniConfig = read_omni_config(folder)
        silent = () if self.config.talker is not None else PARTS[1:]
        super().__init__(folder, tensor_shapes(self.config), PARTS, silent)

    def thinker(self) -> Tensors:
        """By the names of `parameter_shapes`."""
        return self.under(decoder_names(self.config.thinker, "thinker.", "embed_tokens", "thinker.lm_head"))

    def talker(self) -> Tensors:
        """By the names of `parameter_shapes`."""
        return self.under(decoder_names(_there(self.config.talker).decoder, "talker.", "codec_embedding", "talker.codec_head"))

    def predictor(self) -> Tensors:
        """By the names of `parameter_shapes`: the embeddings of all groups are one table."""
        config = _there(self.config.talker)
        at = "talker.code_predictor."
        found: dict[str, Callable[[], torch.Tensor]] = {
            name: partial(self.tensor, at + name) for name in parameter_shapes(config.predictor)
        }
        tables = [f"{at}model.codec_embedding.{i}.weight" for i in range(config.groups - 1)]
        found["model.embed_tokens.weight"] = lambda: torch.cat([self.tensor(name) for name in tables])
        return Lazy(found)


def _there(part: TalkerConfig | None) -> TalkerConfig:
    assert part is not None, "this folder has no voice: ask its configuration first"
    return part
