"""The shape of a decoder, and the tensors that a checkpoint of that shape has."""

from __future__ import annotations

from dataclasses import dataclass, fields

from omni_runtime.errors import CardError


@dataclass(frozen=True)
class RopeScaling:
    """Rotary frequencies for contexts longer than those a model was first trained for.

    `linear` (Chen et al. 2023, section 3.3) divides all of them by `factor`. `llama3` (Llama 3.1) keeps those that turn more than
    `high` times within `original` positions, divides those that turn less than `low` times, and blends in between.
    """

    kind: str  # "linear" or "llama3"
    factor: float
    low: float = 1.0
    high: float = 4.0
    original: int = 8192  # positions


@dataclass(frozen=True)
class Sparse:
    """A mixture of experts in place of the MLP of some layers (Shazeer et al. 2017; Qwen3-MoE)."""

    experts: int
    chosen: int  # experts that a token goes through
    ffn: int  # inner width of one expert
    normalise: bool  # the weights of the chosen sum to 1
    layers: frozenset[int]  # the layers that have one; the others have a dense MLP
    shared: int = 0  # inner width of an expert that every token goes through beside its chosen ones; 0: there is none


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
    out_bias: bool = False  # of the projection after attention
    mlp_bias: bool = False
    rope_scaling: RopeScaling | None = None
    sparse: Sparse | None = None
    # Frequencies that turn with time, height and width: see `rotary.axis_of`. None: a position is one number.
    rope_sections: tuple[int, int, int] | None = None
    head: bool = True  # False: no logits, hidden states are all it gives
    rope_interleaved: bool = True  # False: one section after the other
    embedding: int = 0  # width of the embeddings, where they are projected before they are fed; 0: that of the decoder

    def __post_init__(self) -> None:
        for field in fields(self)[:10]:
            if not getattr(self, field.name) > 0:
                raise CardError(f"decoder: {field.name}={getattr(self, field.name)!r}, more than 0 needed")
        if self.heads % self.kv_heads:
            raise CardError(f"decoder: heads={self.heads} is no multiple of kv_heads={self.kv_heads}")
        if self.head_dim % 2:
            raise CardError(f"decoder: head_dim={self.head_dim} is odd, rotary positions turn pairs")
        if self.sparse and not 0 < self.sparse.chosen <= self.sparse.experts:
            raise CardError(f"decoder: {self.sparse.chosen} of {self.sparse.experts} experts cannot be chosen")
        if self.rope_sections is not None and sum(self.rope_sections) != self.head_dim // 2:
            raise CardError(f"decoder: rope_sections={self.rope_sections} share out {self.head_dim // 2} frequencies")

    @property
    def kv_bytes(self) -> int:
        """Of keys and values of one position, float32."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 4


def layer_shapes(config: DecoderConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Name, within its layer, and shape of every tensor of one layer."""
    width, queries, keys = config.width, config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (queries, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (width, queries),
        "post_attention_layernorm.weight": (width,),
    }
    sparse = config.sparse
    if sparse is None or layer not in sparse.layers:
        shapes |= _mlp_shapes("mlp", width, config.ffn, config.mlp_bias)
    else:
        shapes["mlp.gate.weight"] = (sparse.experts, width)
        if sparse.shared:
            shapes |= _mlp_shapes("mlp.shared_expert", width, sparse.shared, False) | {
                "mlp.shared_expert_gate.weight": (1, width)
            }
        for expert in range(sparse.experts):
            shapes |= _mlp_shapes(f"mlp.experts.{expert}", width, sparse.ffn, False)
    if config.qkv_bias:
        shapes |= {f"self_attn.{part}_proj.bias": (rows,) for part, rows in (("q", queries), ("k", keys), ("v", keys))}
    if config.out_bias:
        shapes["self_attn.o_proj.bias"] = (width,)
    if config.qk_norm:
        shapes |= {f"self_attn.{part}_norm.weight": (config.head_dim,) for part in "qk"}
    return shapes


def _mlp_shapes(at: str, width: int, ffn: int, bias: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"{at}.gate_proj.weight": (ffn, width),
        f"{at}.up_proj.weight": (ffn, width),
        f"{at}.down_proj.weight": (width, ffn),
    }
    if bias:
        shapes |= {f"{at}.gate_proj.bias": (ffn,), f"{at}.up_proj.bias": (ffn,), f"{at}.down_proj.bias": (width,)}
    return shapes


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor, as Hugging Face checkpoints of Llama, Qwen2, Qwen3 and Qwen3-MoE have them."""
    width = config.width
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab, config.embedding or width),
        "model.norm.weight": (width,),
    }
    if config.head and not config.tied:
        shapes["lm_head.weight"] = (config.vocab, width)
    for i in range(config.layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer_shapes(config, i).items()}
    return shapes
