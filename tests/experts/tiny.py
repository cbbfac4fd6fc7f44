"""Tiny decoders with weights large enough that logits are not flat: a wrong term moves them by much more than rounding does."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from omni_runtime.experts.decoder import DecoderLM, Span
from omni_runtime.experts.kv_cache import KVCache
from omni_runtime.weights.decoder_config import DecoderConfig, parameter_shapes

USUAL: dict[str, Any] = {"vocab": 97, "width": 48, "layers": 3, "heads": 6, "kv_heads": 2, "head_dim": 8, "ffn": 80}
USUAL |= {"positions": 256, "rope_theta": 1e4, "eps": 1e-5}
CONFIGS = {
    "llama": DecoderConfig(**USUAL, tied=False),
    "qwen2": DecoderConfig(**USUAL, qkv_bias=True),
    "qwen3": DecoderConfig(**USUAL | {"head_dim": 16, "rope_theta": 1e6}, qk_norm=True),
    "no groups": DecoderConfig(**USUAL | {"kv_heads": 6}),
    "one key head": DecoderConfig(**USUAL | {"kv_heads": 1}),
}


def random_weights(config: DecoderConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    generator, weights = torch.Generator().manual_seed(seed), {}
    for name, shape in parameter_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if "norm" in name:
            weights[name] = 1 + 0.3 * noise
        elif name.endswith("bias"):
            weights[name] = noise
        else:
            # An embedding of size 1 would drown what the layers add, and a tied model would repeat its last token for ever.
            weights[name] = noise * (0.3 if "embed" in name else 1.5 / math.sqrt(shape[1]))
    return weights


def random_tokens(count: int, seed: int, vocab: int = 97) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def prefill(model: DecoderLM, cache: KVCache, tokens: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """Logits after the last token, the tokens given in chunks of these sizes."""
    assert sum(sizes) == len(tokens)
    at = 0
    for size in sizes:
        logits_RV, _ = model.forward([Span(cache, at, tokens[at : at + size], draw=at + size == len(tokens))])
        at += size
    return logits_RV[0]
