"""config.json: every key is computed, known to change nothing, or the reason why the folder is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from omni_runtime.errors import CheckpointError
from omni_runtime.weights.decoder_config import DecoderConfig, RopeScaling, parameter_shapes
from omni_runtime.weights.folder_config import FolderConfig, read_config
from omni_runtime.weights.generation import Generation, read_generation, read_talker

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "eos_token_id": [3, 5],
    "torch_dtype": "bfloat16",
    "pretraining_tp": 1,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 32}
QWEN2 |= {"max_window_layers": 2, "pretraining_tp": None}
QWEN3 = QWEN2 | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 8, "attention_bias": False}
MOE = QWEN3 | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}
MOE |= {"moe_intermediate_size": 12, "decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": True}
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED |= {"original_max_position_embeddings": 64}


def read(tmp_path: Path, base: dict[str, Any], **changes: Any) -> FolderConfig:
    (tmp_path / "config.json").write_text(json.dumps(base | changes))
    return read_config(tmp_path)


def test_shapes(tmp_path: Path) -> None:
    architecture, config, stop = read(tmp_path, LLAMA)
    assert (architecture, stop) == ("LlamaForCausalLM", (3, 5))
    sizes = {"vocab": 100, "width": 24, "layers": 4, "heads": 6, "kv_heads": 2, "head_dim": 4, "ffn": 40, "positions": 128}
    assert config == DecoderConfig(**sizes, rope_theta=500.0, eps=1e-5)
    assert config.kv_bytes == 4 * 2 * 2 * 4 * 4
    qwen2 = read(tmp_path, QWEN2).decoder
    assert (qwen2.qkv_bias, qwen2.out_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = read(tmp_path, QWEN3, attention_bias=True).decoder
    assert (qwen3.qkv_bias, qwen3.out_bias, qwen3.qk_norm, qwen3.head_dim) == (True, True, True, 8)
    assert read(tmp_path, QWEN3, head_dim=None).decoder.head_dim == 128  # not width / heads


def test_a_mixture(tmp_path: Path) -> None:
    config = read(tmp_path, MOE).decoder
    assert config.sparse is not None
    assert config.sparse.layers == {1}  # every second layer, without the last
    shapes = parameter_shapes(config)
    assert shapes["model.layers.1.mlp.gate.weight"] == (8, 24)
    assert shapes["model.layers.1.mlp.experts.7.down_proj.weight"] == (24, 12)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (24, 40)
    assert "model.layers.1.mlp.down_proj.weight" not in shapes
    assert read(tmp_path, MOE, num_experts=None, num_local_experts=8).decoder == config
    assert read(tmp_path, MOE, num_experts=0).decoder.sparse is None
    assert read(tmp_path, MOE, decoder_sparse_step=9).decoder.sparse is None


def test_what_says_the_usual_in_other_words(tmp_path: Path) -> None:
    usual = read(tmp_path, LLAMA).decoder
    for changes in (
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rope_scaling": {"type": "default"}},
        {"model_type": None},
        {"architectures": None},
        {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "head_dim": None},
        {"rope_interleaved": False, "is_llama_config": True, "transformers.js_config": {"dtype": "q4"}},
    ):
        assert read(tmp_path, LLAMA, **changes).decoder == usual, changes
    assert read(tmp_path, LLAMA, num_key_value_heads=None).decoder.kv_heads == 6
    assert read(tmp_path, LLAMA, rope_theta=None).decoder.rope_theta == 10_000.0
    assert read(tmp_path, LLAMA, tie_word_embeddings=None).decoder.tied is False
    full = ["full_attention"] * 4
    assert read(tmp_path, QWEN2, layer_types=full, use_sliding_window=True) == read(tmp_path, QWEN2)
    assert read(tmp_path, QWEN2, max_window_layers=4, use_sliding_window=True) == read(tmp_path, QWEN2)


def test_scaled_positions(tmp_path: Path) -> None:
    wanted = RopeScaling("llama3", 8.0, 1.0, 4.0, 64)
    assert read(tmp_path, LLAMA, rope_scaling=SCALED).decoder.rope_scaling == wanted
    new = read(tmp_path, LLAMA, rope_theta=None, rope_parameters=SCALED | {"rope_theta": 7.0}).decoder
    assert (new.rope_scaling, new.rope_theta) == (wanted, 7.0)
    assert read(tmp_path, LLAMA, rope_scaling={"type": "linear", "factor": 2}).decoder.rope_scaling == RopeScaling("linear", 2.0)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "misspelt": (
        LLAMA,
        {"rms_norm_epsilon": 1e-5},
        "rms_norm_epsilon: unknown key, whatever it says would not be done; did you mean 'rms_norm_eps'?",
    ),
    "unheard of": (LLAMA, {"zzzz": 1}, "zzzz: unknown key"),
    "misspelt inside": (LLAMA, {"rope_scaling": SCALED | {"high_freq_faktor": 4}}, "rope_scaling.high_freq_faktor: unknown key"),
    "of another class": (LLAMA, {"num_experts": 8}, "num_experts: is a key of Qwen3MoeForCausalLM, this is a LlamaForCausalLM"),
    "of another class too": (QWEN2, {"mlp_bias": True}, "mlp_bias: is a key of LlamaForCausalLM"),
    "text": (LLAMA, {"hidden_size": "24"}, "hidden_size: a whole number is needed, not '24'"),
    "fraction": (LLAMA, {"hidden_size": 24.0}, "hidden_size: a whole number is needed"),
    "truth": (LLAMA, {"num_hidden_layers": True}, "num_hidden_layers: a whole number is needed, not True"),
    "number for truth": (LLAMA, {"tie_word_embeddings": 1}, "tie_word_embeddings: true or false is needed, not 1"),
    "missing": (LLAMA, {"vocab_size": None}, "vocab_size: is missing"),
    "no groups said": (QWEN2, {"num_key_value_heads": None}, "num_key_value_heads: is missing"),
    "nothing": (LLAMA, {"num_attention_heads": 0}, "num_attention_heads: 0 is out of range"),
    "negative": (LLAMA, {"rms_norm_eps": -1e-5}, "rms_norm_eps: -1e-05 is out of range"),
    "a billion layers": (LLAMA, {"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 is out of range, 1 to 10000"),
    "a billion experts": (MOE, {"num_experts": 10**9}, "num_experts: 1000000000 is out of range"),
    "groups": (LLAMA, {"num_key_value_heads": 4}, "contradicts itself: decoder: heads=6 is no multiple of kv_heads=4"),
    "heads": (LLAMA, {"hidden_size": 25}, "head_dim: is missing, and hidden_size 25 is no multiple of num_attention_heads 6"),
    "odd heads": (LLAMA, {"head_dim": 5}, "head_dim=5 is odd"),
    "architecture": (LLAMA, {"architectures": ["MistralForCausalLM"]}, "unknown architecture 'MistralForCausalLM'"),
    "two architectures": (LLAMA, {"architectures": ["LlamaForCausalLM", "X"]}, "unknown architecture"),
    "odd architecture": (LLAMA, {"architectures": [["x"]]}, "architectures: "),
    "types part": (LLAMA, {"model_type": "qwen2"}, "model_type: 'qwen2' contradicts"),
    "model type": (LLAMA, {"architectures": None, "model_type": "lama"}, "did you mean 'llama'"),
    "no class": (LLAMA, {"architectures": None, "model_type": None}, "architectures: is missing"),
    "activation": (LLAMA, {"hidden_act": "gelu"}, "hidden_act: 'gelu' is not computed"),
    "yarn": (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type: 'yarn' is not computed"),
    "scaling without factor": (LLAMA, {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: is missing"),
    "scaling upside down": (
        LLAMA,
        {"rope_scaling": SCALED | {"low_freq_factor": 9.0}},
        "rope_scaling.high_freq_factor: 4 must be more",
    ),
    "scaling twice": (
        LLAMA,
        {"rope_scaling": SCALED, "rope_parameters": {"rope_type": "default"}},
        "rope_scaling: contradicts rope_parameters",
    ),
    "two bases": (LLAMA, {"rope_parameters": {"rope_theta": 1.0}}, "rope_theta: 500 contradicts 1 in rope_parameters"),
    "scaling as a list": (LLAMA, {"rope_scaling": [8]}, "rope_scaling: an object is needed"),
    "part of a head": (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 is not computed"),
    "part of a head inside": (
        LLAMA,
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        "rope_parameters.partial_rotary_factor",
    ),
    "pairs": (LLAMA, {"rope_interleaved": True}, "rope_interleaved: True is not computed"),
    "window": (QWEN2, {"use_sliding_window": True}, "use_sliding_window: a window of 32 positions is not computed"),
    "window of a mixture": (MOE, {"use_sliding_window": True, "max_window_layers": 4}, "use_sliding_window: a window of 32"),
    "window by layer": (QWEN3, {"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types: 'sliding_attention'"),
    "few layer types": (QWEN3, {"layer_types": ["full_attention"]}, "layer_types: 1 types for 4 layers"),
    "bias": (QWEN2, {"attention_bias": True}, "attention_bias: Qwen2ForCausalLM has no such key"),
    "quantised": (LLAMA, {"quantization_config": {"bits": 4}}, "quantization_config: quantised weights are not read"),
    "code": (LLAMA, {"auto_map": {"AutoModel": "x.y"}}, "auto_map: it says that code of its own"),
    "experts": (MOE, {"num_local_experts": 4}, "num_local_experts: 4 contradicts num_experts 8"),
    "chosen": (MOE, {"num_experts_per_tok": 9}, "9 of 8 experts"),
    "dense layers": (MOE, {"mlp_only_layers": [4]}, "mlp_only_layers: numbers of layers, 0 to 3"),
    "end": (LLAMA, {"eos_token_id": 100}, "eos_token_id: 100 is not in the vocabulary of 100"),
    "end as text": (LLAMA, {"eos_token_id": "</s>"}, "eos_token_id: a token id or a list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, name: str) -> None:
    base, changes, clause = REFUSED[name]
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path, base, **changes)
    assert clause in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SCALED, "type", "x"]), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    base = data.draw(st.sampled_from([LLAMA, QWEN2, QWEN3, MOE]))
    keys = st.sampled_from([*MOE, "rope_parameters", "layer_types", "mlp_bias", "num_local_experts"])
    changes = data.draw(st.dictionaries(keys, VALUES, min_size=1, max_size=2))
    folder = tmp_path_factory.getbasetemp() / "any"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(CheckpointError):
        read(folder, base, **changes)
        event("read")
    with contextlib.suppress(CheckpointError):
        generation(folder, **data.draw(st.dictionaries(st.sampled_from(["eos_token_id", "do_sample", "top_p", "top_k"]), VALUES)))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such folder"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"config\.json does not exist; give the folder"):
        read_config(tmp_path)


def generation(tmp_path: Path, **values: Any) -> Generation:
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    return read_generation(tmp_path, (3,), 100)


def test_how_its_makers_draw(tmp_path: Path) -> None:
    assert read_generation(tmp_path, (3,), 100) == ((3,), {}, ())
    assert generation(tmp_path, transformers_version="5", bos_token_id=1) == ((3,), {"temperature": 0.0}, ())
    assert generation(tmp_path, eos_token_id=5).stop_tokens == (5,)
    drawn = generation(tmp_path, eos_token_id=[5, 6], do_sample=True, temperature=0.6, top_p=0.9)
    assert drawn == ((5, 6), {"temperature": 0.6, "top_p": 0.9}, ())
    shaped = {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    assert generation(tmp_path, do_sample=True, **shaped).defaults == {"temperature": 1.0, **shaped}
    assert generation(tmp_path, **shaped).defaults == {"temperature": 0.0, "repetition_penalty": 1.1}
    assert generation(tmp_path, do_sample=True, top_p=0.9).defaults == {"temperature": 1.0, "top_p": 0.9}
    assert generation(tmp_path, do_sample=False, temperature=0.6, top_p=0.9).defaults == {"temperature": 0.0}
    assert generation(tmp_path, num_beams=1, no_repeat_ngram_size=0, length_penalty=1.0).notes == ()
    noted = generation(tmp_path, num_beams=4, no_repeat_ngram_size=3)
    assert noted.notes == tuple(
        f"generation_config.json: {what} is not used" for what in ("num_beams=4", "no_repeat_ngram_size=3")
    )


def test_how_the_makers_of_several_parts_draw(tmp_path: Path) -> None:
    usual = {"temperature": 0.9, "top_k": 50, "max_frames": 99}
    assert read_talker(tmp_path, usual, [7]) == (usual, ())
    path = tmp_path / "generation_config.json"
    said = {"do_sample": True, "temperature": 0.7, "top_p": 0.5, "thinker_top_p": 0.8, "eos_token_id": 5}
    path.write_text(json.dumps(said | {"talker_temperature": 0.4, "talker_top_k": 7, "talker_max_new_tokens": 64}))
    parts = ("thinker", "talker")
    assert read_generation(tmp_path, (3,), 100, parts) == ((5,), {"temperature": 0.7, "top_p": 0.8}, ())
    assert read_talker(tmp_path, usual, [7]) == ({"temperature": 0.4, "top_k": 7, "max_frames": 63}, ())
    with pytest.raises(CheckpointError, match="thinker_top_p: unknown key"):
        read_generation(tmp_path, (3,), 100)
    path.write_text(json.dumps({"talker_do_sample": False, "talker_eos_token_id": [7, 9], "talker_num_beams": 2}))
    assert read_talker(tmp_path, usual, [7]) == (
        usual | {"temperature": 0.0},
        (
            "generation_config.json: talker_num_beams=2 is not used",
            "generation_config.json: talker_eos_token_id=[7, 9] is not used, config.json says [7]",
        ),
    )
    for key, value, clause in [("talker_top_p", 1.5, "talker_top_p: no request"), ("talker_topk", 1, "talker_topk: unknown key")]:
        path.write_text(json.dumps({key: value}))
        with pytest.raises(CheckpointError, match=clause):
            read_talker(tmp_path, usual, [7])


@pytest.mark.parametrize(
    ("values", "clause"),
    [
        ({"temperatur": 0.6}, "temperatur: unknown key, whatever it says would not be done; did you mean 'temperature'?"),
        ({"do_sample": True, "temperature": -3}, "temperature: -3 is out of range, 0 or more is needed"),
        ({"do_sample": True, "temperature": "0.6"}, "temperature: a number is needed, not '0.6'"),
        ({"do_sample": True, "top_p": 1.5}, "top_p: no request may ask for that"),
        ({"do_sample": True, "top_p": 0.0}, "top_p: no request may ask for that"),
        ({"do_sample": "yes"}, "do_sample: true or false is needed"),
        ({"eos_token_id": [3, "x"]}, "eos_token_id: a token id or a list"),
        ({"eos_token_id": -1}, "eos_token_id: a token id or a list"),
        ({"eos_token_id": 100}, "eos_token_id: 100 is not in the vocabulary of 100"),
    ],
)
def test_a_wrong_way_to_draw(tmp_path: Path, values: dict[str, Any], clause: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        generation(tmp_path, **values)
    assert clause in str(caught.value)
    assert "generation_config.json" in str(caught.value)
