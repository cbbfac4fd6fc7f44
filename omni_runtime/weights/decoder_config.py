"""The shape of a decoder, and the tensors that a checkpoint of that shape has."""

from __future__ import annotations

from dataclasses import dataclass, fields

from omni_runtime.errors import CardError


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder.

    Raises:
        CardError: a size is not positive, or two of them contradict each other.
    """

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    positions: int  # longest sequence it was trained for
    rope_theta: float
    eps: float
    tied: bool = True  # the head is the embedding
    qkv_bias: bool = False  # Qwen2
    qk_norm: bool = False  # Qwen3: RMSNorm of every query and key head

    def __post_init__(self) -> None:
        for field in fields(self)[:10]:
            if not getattr(self, field.name) > 0:
                raise CardError(f"decoder: {field.name}={getattr(self, field.name)!r}, more than 0 needed")
        if self.heads % self.kv_heads:
            raise CardError(f"decoder: heads={self.heads} is no multiple of kv_heads={self.kv_heads}")
        if self.head_dim % 2:
            raise CardError(f"decoder: head_dim={self.head_dim} is odd, rotary positions turn pairs")


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor, as Hugging Face checkpoints of Llama, Qwen2 and Qwen3 have them."""
    width, queries, keys = config.width, config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab, width), "model.norm.weight": (width,)}
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, width)
    for i in range(config.layers):
        layer = {
            "input_layernorm.weight": (width,),
            "self_attn.q_proj.weight": (queries, width),
            "self_attn.k_proj.weight": (keys, width),
            "self_attn.v_proj.weight": (keys, width),
            "self_attn.o_proj.weight": (width, queries),
            "post_attention_layernorm.weight": (width,),
            "mlp.gate_proj.weight": (config.ffn, width),
            "mlp.up_proj.weight": (config.ffn, width),
            "mlp.down_proj.weight": (width, config.ffn),
        }
        if config.qkv_bias:
            layer |= {f"self_attn.{part}_proj.bias": (rows,) for part, rows in (("q", queries), ("k", keys), ("v", keys))}
        if config.qk_norm:
            layer |= {f"self_attn.{part}_norm.weight": (config.head_dim,) for part in "qk"}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes
