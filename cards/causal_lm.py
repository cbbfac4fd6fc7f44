"""A chat model from a Hugging Face folder: Llama, Qwen2, Qwen3 or Qwen3-MoE."""

from __future__ import annotations

import re
from pathlib import Path

from omni_runtime.card import ArDecode, ExpertSpec, ModelCard, OneShot, OpLimits, Port, Slot
from omni_runtime.errors import CardError
from omni_runtime.weights.folder_config import read_config
from omni_runtime.weights.generation import read_generation


def causal_lm(
    folder: str | Path,
    *,
    name: str | None = None,
    context: int | None = None,
    limits: OpLimits | None = None,
    linear: str = "auto",
    dtype: str = "auto",
    max_bytes: int = 0,
) -> ModelCard:
    """Loops: `tokenize` (chat messages to token ids) and `think` (token ids to text, tokens and hidden rows).

    Reads config.json and generation_config.json only; the makers' way to draw becomes the defaults of `think`.

    Args:
        folder: as `save_pretrained` writes it.
        name: of the card; the folder's name by default.
        context: longest prompt and answer, in tokens; what the model was trained for if that is less.
        limits: what fits into one batch.
        linear: layout of the linear layers, see `experts/linear.py`; "paged" is the path of a GPU.
        dtype: of that path, "float32" or "bfloat16"; "auto" is what the checkpoint is stored in on a GPU, float32 elsewhere.
        max_bytes: memory for weights and a short context; 0 asks the system what is free, when the weights are loaded.

    Raises:
        CheckpointError: the folder is none, is damaged, or holds what this decoder does not compute.
        CardError: an argument is out of range.
    """
    path = Path(folder).expanduser().resolve()
    architecture, decoder, stop = read_config(path)
    generation = read_generation(path, stop, decoder.vocab)
    if context is not None and context < 1:
        raise CardError(f"context={context}: at least 1 is needed")
    options = {"weights": str(path), "linear": linear, "dtype": dtype, "max_bytes": max_bytes}
    return ModelCard(
        name=name or _name(path.name),
        description=f"{architecture} from {path}, float32",
        experts={
            "tokenizer": ExpertSpec(
                build="omni_runtime.experts.chat:build",
                ops={"encode_chat": OpLimits(units=16, size=16)},
                options={"weights": str(path)},
                place="host",
            ),
            "thinker": ExpertSpec(
                build="omni_runtime.experts.text_lm:build",
                ops={"forward": limits or OpLimits(units=64, size=512)},
                options=options,
                block=16,
                bytes_per_position=decoder.kv_bytes,
            ),
        },
        loops={
            "tokenize": OneShot(
                expert="tokenizer",
                op="encode_chat",
                reads={"messages": Slot(type="messages")},
                ports={"tokens": Port(type="token")},
            ),
            "think": ArDecode(
                expert="thinker",
                context=min(decoder.positions, context or decoder.positions),
                stop_tokens=generation.stop_tokens,
                defaults=generation.defaults,
                vocabulary=decoder.vocab,
            ),
        },
    )


def _name(folder: str) -> str:
    """A folder's name as the name of a card: a letter first, then letters, digits, dots, dashes and underscores."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder).strip("-.")
    return plain if plain[:1].isalpha() else f"model-{plain}".rstrip("-")
