"""Tiny Hugging Face folders with random weights, for tests and examples: all that a real one has, in 200 kB and 10 ms.

Weights are large enough that logits are not flat: with the usual initialisation (0.02) every token would be as good as any other,
and a comparison of greedy answers would prove nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from omni_runtime.errors import CardError, unknown
from omni_runtime.weights.byte_level import LETTERS
from omni_runtime.weights.decoder_config import DecoderConfig, parameter_shapes
from omni_runtime.weights.folder_config import ARCHITECTURES, read_config
from omni_runtime.weights.tensor_files import INDEX, WHOLE

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<tool_call>", "</tool_call>")  # tokens that are text
MERGES = ("t h", "th e", "Ġ the", "i n", "Ġ a", "e r", "o n", "Ġ w")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB = 272  # rounded up, as published vocabularies are: the last ids belong to no text


def toy_config(architecture: str, **changes: Any) -> dict[str, Any]:
    """config.json of a tiny model; None removes a key.

    Raises:
        CardError: an unknown architecture.
    """
    kinds = {kind: name for name, kind in ARCHITECTURES.items()}
    if architecture not in kinds:
        raise CardError(f"architecture: {unknown('model type', architecture, kinds)}")
    found: dict[str, Any] = {
        "architectures": [kinds[architecture]],
        "model_type": architecture,
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": SPECIAL.index("<|im_end|>") + 256 + len(MERGES),
        "dtype": "float32",
    }
    if architecture in ("qwen3", "qwen3_moe"):
        found["head_dim"] = 16
    if architecture == "qwen3_moe":
        found |= {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "norm_topk_prob": True}
        found |= {"mlp_only_layers": [1], "decoder_sparse_step": 1}
    return {key: value for key, value in (found | changes).items() if value is not None or key == "bos_token_id"}


def toy_weights(config: DecoderConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 tensors of a decoder: embeddings 0.3 (of size 1 they would drown what the layers add), matrices
    1.5/sqrt(inputs), norms around 1, biases 0.3."""
    generator, weights = torch.Generator().manual_seed(seed), {}
    for name, shape in parameter_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if "norm" in name:
            weights[name] = 1 + 0.3 * noise
        elif name.endswith("bias"):
            weights[name] = 0.3 * noise
        else:
            weights[name] = noise * (0.3 if "embed" in name else 1.5 / math.sqrt(shape[1]))
    return weights


def toy_tokenizer(merges: Sequence[str] = MERGES, special: Sequence[str] = SPECIAL) -> dict[str, Any]:
    """tokenizer.json: byte-level BPE of 256 bytes and a few merges, then special tokens, then added ones that are text."""
    names = [*LETTERS, *(merge.replace(" ", "") for merge in merges)]
    added = [(text, True) for text in special] + [(text, False) for text in ADDED]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    bytes_as_letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(names) + i, "content": t, **flags, "special": s} for i, (t, s) in enumerate(added)],
        "normalizer": None,
        "pre_tokenizer": bytes_as_letters,
        "post_processor": None,
        "decoder": bytes_as_letters,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {name: i for i, name in enumerate(names)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def write_toy(
    folder: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
    generation: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Writes a folder and returns it.

    Args:
        folder: made if it is not there; files in it are replaced.
        architecture: llama, qwen2, qwen3 or qwen3_moe.
        seed: of the weights.
        shards: files of weights; with more than 1 there is an index.
        dtype: that the weights are stored in.
        generation: generation_config.json, beside the ids.
        config: keys of config.json that differ from `toy_config`; None removes one.

    Raises:
        CardError: an unknown architecture.
        CheckpointError: a configuration that this runtime does not read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = toy_config(architecture, dtype=str(dtype).removeprefix("torch."), **config)
    write_json(folder / "config.json", settings)
    write_json(folder / "generation_config.json", {"eos_token_id": settings["eos_token_id"], **(generation or {})})
    write_json(folder / "tokenizer.json", toy_tokenizer())
    tokens = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(folder / "tokenizer_config.json", tokens)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    weights = {name: w.to(dtype) for name, w in toy_weights(read_config(folder).decoder, seed).items()}
    write_tensors(folder, weights, shards)
    return folder


def write_json(path: Path, content: Any) -> None:
    """Replaces a file by an indented JSON value."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tensors(folder: Path, weights: dict[str, torch.Tensor], shards: int = 1) -> None:
    """model.safetensors, or shards of it with their index; what was there before goes."""
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    metadata = {"format": "pt"}
    if shards == 1:
        save_file(weights, folder / WHOLE, metadata)
        return
    places: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in list(weights)[i::shards]}
        save_file(part, folder / file, metadata)
        places |= dict.fromkeys(part, file)
    total = sum(weight.nbytes for weight in weights.values())
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})
