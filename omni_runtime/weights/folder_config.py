"""config.json of a Hugging Face folder as the shape of a decoder. Loads without torch.

Every key of the file is either computed, or known to change nothing here, or the folder is refused by that key's name: a setting
that nobody reads would be believed in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from omni_runtime.errors import CardError, CheckpointError, unknown
from omni_runtime.weights.decoder_config import DecoderConfig, RopeScaling, Sparse
from omni_runtime.weights.json_file import Fields, read_json

ARCHITECTURES = {  # by the class that its makers name: model_type
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
MOST = 10_000  # layers or experts: no published model has a tenth of it, and a list of their names must fit into memory

_SIZES = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
_COMPUTED = _SIZES | {"head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "hidden_act"}
_COMPUTED |= {"rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "architectures", "model_type"}
_WINDOW = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
_SPARSE = {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}
_SPARSE |= {"decoder_sparse_step", "mlp_only_layers", "output_router_logits", "router_aux_loss_coef"}
_OF = {
    "llama": {"mlp_bias", "pretraining_tp", "rope_interleaved", "partial_rotary_factor"},
    "qwen2": _WINDOW,
    "qwen3": _WINDOW,
    "qwen3_moe": _WINDOW | _SPARSE,
}

# Training, bookkeeping and what a caller of transformers gets back: none of it changes a logit of one forward pass in eval mode.
NOTES = {"_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "initializer_range"}
NOTES |= {"attention_dropout", "hidden_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id"}
NOTES |= {"return_dict", "output_hidden_states", "output_attentions", "torchscript", "id2label", "label2id", "num_labels"}
NOTES |= {"problem_type", "task_specific_params", "finetuning_task", "tokenizer_class", "chunk_size_feed_forward"}
NOTES |= {"_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "transformers.js_config"}
NOTES |= {"is_llama_config", "unsloth_fixed", "unsloth_version", "model_max_length", "license", "use_bfloat16", "prefix"}

_REFUSED = {
    "quantization_config": "quantised weights are not read; use a folder of float32, float16 or bfloat16 weights",
    "compression_config": "compressed weights are not read; use a folder of float32, float16 or bfloat16 weights",
    "auto_map": "it says that code of its own computes this model, and that is not run; use a folder without it",
}
# Keys that change what is computed, with the value at which they do not.
_NEUTRAL: dict[str, Any] = {
    "rope_interleaved": False,
    "partial_rotary_factor": 1.0,
    "is_encoder_decoder": False,
    "is_decoder": True,
}
_NEUTRAL |= {"add_cross_attention": False, "tie_encoder_decoder": False, "pruned_heads": {}, "final_logit_softcapping": None}


class FolderConfig(NamedTuple):
    """What config.json says: class, shape, and the token ids that end an answer."""

    architecture: str
    decoder: DecoderConfig
    stop_tokens: tuple[int, ...]


def read_config(folder: Path) -> FolderConfig:
    """The configuration of a folder.

    Raises:
        CheckpointError: no such folder or file, another architecture, or a key that is missing, misspelt, of the wrong kind,
            contradicted by another, or asks for what a `DecoderLM` does not compute.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder; give one that holds config.json and *.safetensors")
    path = folder / "config.json"
    f = Fields(path, read_json(path, "give the folder that holds it, or fetch it again"))
    architecture = _architecture(f)
    kind = ARCHITECTURES[architecture]
    for other, name in ARCHITECTURES.items():
        for key in sorted(_OF[name] - _OF[kind]):
            if key in f and f.values[key] is not False:
                raise f.wrong(key, f"is a key of {other}, this is a {architecture}; take it out, or name the class it is of")
    f.only(_COMPUTED | NOTES | set(_NEUTRAL) | set().union(*_OF.values()), _REFUSED)
    for key, neutral in _NEUTRAL.items():
        if key in f and f.values[key] != neutral:
            raise f.wrong(key, f"{f.values[key]!r} is not computed by this decoder, only {neutral!r} is")
    if (act := f.text("hidden_act", "silu")) != "silu":
        raise f.wrong("hidden_act", f"{act!r} is not computed by this decoder, only 'silu' is")
    layers = f.count("num_hidden_layers", most=MOST)
    _check_window(f, layers, kind)
    heads, width = f.count("num_attention_heads"), f.count("hidden_size")
    bias = f.flag("attention_bias", False)
    # Qwen2's three biases are part of its architecture; attention_bias is a key that its class does not have.
    if bias and kind == "qwen2":
        raise f.wrong("attention_bias", "Qwen2ForCausalLM has no such key: its q, k and v always have a bias; take it out")
    theta, scaling = _rope(f)
    try:
        decoder = DecoderConfig(
            vocab=f.count("vocab_size"),
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=f.count("num_key_value_heads", heads) if kind == "llama" else f.count("num_key_value_heads"),
            head_dim=f.count("head_dim", 128 if kind == "qwen3" else _head_dim(f, width, heads)),
            ffn=f.count("intermediate_size"),
            positions=f.count("max_position_embeddings"),
            rope_theta=theta,
            eps=f.number("rms_norm_eps", 1e-6),
            tied=f.flag("tie_word_embeddings", False),
            qkv_bias=bias or kind == "qwen2",
            qk_norm=kind in ("qwen3", "qwen3_moe"),
            out_bias=bias,
            mlp_bias=f.flag("mlp_bias", False),
            rope_scaling=scaling,
            sparse=_sparse(f, layers) if kind == "qwen3_moe" else None,
        )
    except CardError as error:
        raise CheckpointError(f"{path} contradicts itself: {error}") from None
    stop = f.ids("eos_token_id")
    if stop and max(stop) >= decoder.vocab:
        raise f.wrong("eos_token_id", f"{max(stop)} is not in the vocabulary of {decoder.vocab}")
    return FolderConfig(architecture, decoder, stop)


def _architecture(f: Fields) -> str:
    named, kind = f.items("architectures", None), f.text("model_type", None)
    if named is not None:
        if named not in [[name] for name in ARCHITECTURES]:
            name = named[0] if len(named) == 1 else named
            raise f.wrong("architectures", unknown("architecture", name, ARCHITECTURES))
        if kind is not None and kind != ARCHITECTURES[named[0]]:
            raise f.wrong("model_type", f"{kind!r} contradicts architectures {named!r}")
        return str(named[0])
    by_kind = {kind: name for name, kind in ARCHITECTURES.items()}
    if kind is None:
        raise f.wrong("architectures", f"is missing, one of {', '.join(ARCHITECTURES)} is needed")
    if kind not in by_kind:
        raise f.wrong("model_type", unknown("model type", kind, by_kind))
    return by_kind[kind]


def _head_dim(f: Fields, width: int, heads: int) -> int:
    if "head_dim" not in f and width % heads:
        raise f.wrong("head_dim", f"is missing, and hidden_size {width} is no multiple of num_attention_heads {heads}")
    return width // heads


def _check_window(f: Fields, layers: int, kind: str) -> None:
    """Full attention in every layer, said in any of the ways that there are."""
    types = f.items("layer_types", None)
    if types is not None and kind != "qwen3_moe":  # whose class reads neither this key nor max_window_layers
        if other := [name for name in types if name != "full_attention"]:
            raise f.wrong("layer_types", f"{other[0]!r} is not computed by this decoder, only 'full_attention' is")
        if len(types) != layers:
            raise f.wrong("layer_types", f"{len(types)} types for {layers} layers")
        return
    window, first = f.count("sliding_window", None), f.count("max_window_layers", 0, least=0)
    if f.flag("use_sliding_window", False) and window is not None and (first < layers or kind == "qwen3_moe"):
        raise f.wrong(
            "use_sliding_window", f"a window of {window} positions is not computed by this decoder, only full attention"
        )


def _rope(f: Fields) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the rotary positions; `rope_parameters` is what transformers 5 writes, the other two what 4 wrote."""
    theta = f.number("rope_theta", None)
    inner = f.inner("rope_parameters") or f.inner("rope_scaling")
    if "rope_parameters" in f and "rope_scaling" in f and f.values["rope_parameters"] != f.values["rope_scaling"]:
        raise f.wrong("rope_scaling", "contradicts rope_parameters; keep one of them")
    if inner is None:
        return theta or 10_000.0, None
    within = inner.number("rope_theta", None)
    if theta is not None and within is not None and theta != within:
        raise f.wrong("rope_theta", f"{theta:g} contradicts {within:g} in rope_parameters; keep one of them")
    theta = theta or within or 10_000.0
    kind = inner.text("rope_type", None) or inner.text("type", "default")
    own = {"default": set(), "linear": {"factor"}}
    own["llama3"] = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    if kind not in own:
        raise inner.wrong("rope_type", f"{kind!r} is not computed by this decoder, only {', '.join(own)} are")
    if inner.number("partial_rotary_factor", 1.0) != 1.0:
        raise inner.wrong("partial_rotary_factor", "positions of a part of the head are not computed by this decoder")
    inner.only(own[kind] | {"rope_theta", "rope_type", "type", "partial_rotary_factor"})
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", inner.number("factor"))
    low, high = inner.number("low_freq_factor"), inner.number("high_freq_factor")
    if not low < high:
        raise inner.wrong("high_freq_factor", f"{high:g} must be more than low_freq_factor, {low:g}")
    return theta, RopeScaling("llama3", inner.number("factor"), low, high, inner.count("original_max_position_embeddings"))


def _sparse(f: Fields, layers: int) -> Sparse | None:
    experts, local = f.count("num_experts", None, 0, MOST), f.count("num_local_experts", None, 0, MOST)
    if experts is not None and local is not None and experts != local:
        raise f.wrong("num_local_experts", f"{local} contradicts num_experts {experts}; keep one of them")
    experts = experts if experts is not None else local if local is not None else f.count("num_experts")
    step, dense = f.count("decoder_sparse_step", 1), f.items("mlp_only_layers", [])
    if not all(type(i) is int and 0 <= i < layers for i in dense):
        raise f.wrong("mlp_only_layers", f"numbers of layers, 0 to {layers - 1}, are needed, not {dense!r:.80}")
    sparse = frozenset(i for i in range(layers) if i not in dense and (i + 1) % step == 0)
    if not experts or not sparse:
        return None
    return Sparse(
        experts, f.count("num_experts_per_tok"), f.count("moe_intermediate_size"), f.flag("norm_topk_prob", False), sparse
    )
