"""A GGUF file of architecture "llama" as the weights of a `DecoderLM`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from omni_runtime.errors import CardError, CheckpointError
from omni_runtime.weights.decoder_config import DecoderConfig, parameter_shapes
from omni_runtime.weights.gguf import GGUF

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class LlamaWeights(Mapping[str, torch.Tensor]):
    """The tensors of a file under the names and in the layout of `parameter_shapes`, read one at a time when asked for.

    A decoder lays out a layer and forgets the original before it asks for the next: 1.37 GB are resident at the peak for
    SmolLM2-135M, against 1.75 GB when all tensors are read first.

    Raises:
        CheckpointError: a tensor is missing, has another shape than the metadata says, or belongs to nothing we compute.
    """

    def __init__(self, file: GGUF) -> None:
        self.file = file
        self.config = llama_config(file)
        names = {f"{ours}.weight": f"{theirs}.weight" for theirs, ours in _OUTSIDE.items()}
        for i in range(self.config.layers):
            names |= {f"model.layers.{i}.{ours}.weight": f"blk.{i}.{theirs}.weight" for theirs, ours in _LAYER.items()}
        shapes = parameter_shapes(self.config)
        self._names = {ours: names[ours] for ours in shapes}
        for ours, shape in shapes.items():
            entry = file.entries.get(names[ours])
            if entry is None:
                raise CheckpointError(f"{file.path}: tensor {names[ours]!r} is missing; fetch the file again")
            if entry.shape != shape:
                raise CheckpointError(f"{file.path}: tensor {names[ours]!r} has shape {entry.shape}, its metadata says {shape}")
        if surplus := sorted(set(file.entries) - set(self._names.values())):
            raise CheckpointError(
                f"{file.path}: tensor {surplus[0]!r} and {len(surplus) - 1} others belong to no part of a llama decoder; "
                "without them the model would compute something else, so load it with code that knows them"
            )

    def __getitem__(self, name: str) -> torch.Tensor:
        weight = self.file.tensor(self._names[name])
        if name.endswith("q_proj.weight"):
            return half_split(weight, self.config.heads)
        if name.endswith("k_proj.weight"):
            return half_split(weight, self.config.kv_heads)
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def half_split(weight_ED: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection, from pairs of neighbours to RoPE's two halves.

    GGUF stores llama projections so that rows 2i and 2i+1 of a head turn together; here i and i + head_dim/2 do.
    """
    rows, width = weight_ED.shape
    return weight_ED.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def llama_config(file: GGUF) -> DecoderConfig:
    """The configuration that the metadata states.

    Raises:
        CheckpointError: another architecture, a key is missing or wrong, or it asks for something a `DecoderLM` does not do.
    """

    def need(key: str, kind: type | tuple[type, ...] = int) -> Any:
        value = file.metadata.get(key)
        if not isinstance(value, kind):
            raise CheckpointError(f"{file.path}: metadata {key!r} is {value!r}, a number is needed; the file is damaged")
        return value

    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(f"{file.path}: its architecture is {architecture!r}, this loader reads 'llama'")
    # llama.rope.scaling.*, llama.expert_count, llama.attention.sliding_window: each changes what is computed.
    for key in file.metadata:
        if key.startswith(("llama.rope.scaling.", "llama.expert", "llama.attention.sliding")):
            raise CheckpointError(f"{file.path}: metadata {key!r} asks for what this decoder does not do; use a plain llama")
    width, heads = need("llama.embedding_length"), need("llama.attention.head_count")
    embedding = file.entries.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path}: tensor 'token_embd.weight' is missing or no matrix; fetch the file again")
    try:
        config = DecoderConfig(
            vocab=embedding.shape[0],
            width=width,
            layers=need("llama.block_count"),
            heads=heads,
            kv_heads=need("llama.attention.head_count_kv"),
            head_dim=file.metadata.get("llama.attention.key_length", width // max(heads, 1)),
            ffn=need("llama.feed_forward_length"),
            positions=need("llama.context_length"),
            rope_theta=float(need("llama.rope.freq_base", (int, float))),
            eps=float(need("llama.attention.layer_norm_rms_epsilon", (int, float))),
            tied="output.weight" not in file.entries,
        )
    except CardError as error:
        raise CheckpointError(f"{file.path}: its metadata contradicts itself: {error}") from error
    turned = file.metadata.get("llama.rope.dimension_count", config.head_dim)
    if turned != config.head_dim:
        raise CheckpointError(f"{file.path}: RoPE over {turned} of {config.head_dim} dimensions is not supported")
    return config
