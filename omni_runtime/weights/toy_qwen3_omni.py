"""Tiny Qwen3-Omni folders with random weights: all that a published one has, in 2 MB, for tests, examples and benchmarks.

Weights are large enough that nobody's choice is close and nothing is silent: with the usual initialisation (0.02) logits are flat
and a wave is 1e-9, so a comparison would prove nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from omni_runtime.weights.qwen3_omni_config import ARCHITECTURE, parse_omni_config
from omni_runtime.weights.qwen3_omni_parts import OmniConfig, tensor_shapes
from omni_runtime.weights.toy_folder import write_tensors
from omni_runtime.weights.toy_omni import ROLES, Values, ids_of, merged, random_weights, template, vocabulary, write_small_files

SPECIAL: tuple[str, ...] = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    "<|vision_start|>",
)
SPECIAL += ("<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
TEMPLATE = template(
    "<|audio_start|><|audio_pad|><|audio_end|>",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|vision_start|><|video_pad|><|vision_end|>",
)
CODEBOOK, GROUPS = 64, 4


def token_ids() -> dict[str, int]:
    """Ids of the special tokens and the roles."""
    return ids_of(SPECIAL)


def toy_omni_config(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """config.json of a tiny model; `changes` is merged into it, object by object. A value of None removes a key."""
    ids = token_ids()
    vocab = vocabulary(SPECIAL)
    width, talk = 64, 48
    rope = {"rope_type": "default", "mrope_section": [4, 2, 2], "interleaved": True, "mrope_interleaved": True}
    media = {f"{name}_token_id": ids[f"<|{name}_pad|>"] for name in ("audio", "image", "video")}
    media |= {f"{name}_start_token_id": ids[f"<|{name}_start|>"] for name in ("audio", "vision")}
    decoder: Values = {
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "head_dim": 16,
        "attention_bias": False,
    }
    sparse: Values = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rope_theta": 1e6,
    }
    sparse |= {"rope_scaling": rope, **decoder}
    text: Values = {
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    text |= {"num_key_value_heads": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
    audio: Values = {"num_mel_bins": 128, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64, "d_model": 32}
    audio |= {"n_window": 50, "n_window_infer": 200, "output_dim": width, "max_source_positions": 200}
    audio |= {"downsample_hidden_size": 8, "conv_chunksize": 100, "activation_function": "gelu", "scale_embedding": False}
    vision: Values = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "patch_size": 4,
        "spatial_merge_size": 2,
    }
    vision |= {"temporal_patch_size": 2, "out_hidden_size": width, "num_position_embeddings": 64, "in_channels": 3}
    vision |= {"deepstack_visual_indexes": [0, 1], "hidden_act": "gelu_pytorch_tanh"}
    # Ids from 1024 below the end on are never drawn, except the one that ends: the codes must stand before.
    codec = {name: CODEBOOK + i for i, name in enumerate(("pad", "bos", "eos", "nothink", "think_bos", "think_eos"))}
    talker_text: Values = {"vocab_size": CODEBOOK + 1024, "hidden_size": talk, "intermediate_size": 80, "num_hidden_layers": 2}
    talker_text |= {"num_attention_heads": 3, "num_key_value_heads": 1, "moe_intermediate_size": 32, "norm_topk_prob": True}
    talker_text |= {"shared_expert_intermediate_size": 40}
    predictor: Values = {"vocab_size": CODEBOOK, "hidden_size": talk, "intermediate_size": 96, "num_hidden_layers": 2}
    predictor |= {"num_attention_heads": 3, "num_key_value_heads": 1, "num_code_groups": GROUPS, "rope_theta": 1e6, **decoder}
    found: Values = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3_omni_moe",
        "enable_audio_output": True,
        "dtype": "float32",
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        **{f"{role}_token_id": ids[role] for role in ROLES},
        "thinker_config": {
            "text_config": text | sparse,
            "audio_config": audio,
            "vision_config": vision,
            "position_id_per_seconds": 13,
            "user_token_id": ids["user"],
            **media,
        },
        "talker_config": {
            "text_config": talker_text | sparse,
            "code_predictor_config": predictor,
            "num_code_groups": GROUPS,
            "thinker_hidden_size": width,
            "accept_hidden_layer": 3,
            "codec_pad_id": codec["pad"],
            "codec_bos_id": codec["bos"],
            "codec_eos_token_id": codec["eos"],
            "codec_nothink_id": codec["nothink"],
            "codec_think_bos_id": codec["think_bos"],
            "codec_think_eos_id": codec["think_eos"],
            "speaker_id": {"chelsie": CODEBOOK + 6, "ethan": CODEBOOK + 7},
            "spatial_merge_size": 2,
            "position_id_per_seconds": 13,
            **media,
        },
        "code2wav_config": {
            "codebook_size": CODEBOOK,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "sliding_window": 8,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_quantizers": GROUPS,
            "upsample_rates": [4, 3],
            "upsampling_ratios": [2, 2],
            "decoder_dim": 32,
            "max_position_embeddings": 8000,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
        },
    }
    return merged(found, changes or {})


def toy_omni_weights(config: OmniConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """See `random_weights`; matrices 1.2/sqrt(inputs)."""

    def gain(name: str, shape: tuple[int, ...]) -> float:
        # Residual units add up: with 1.2 all the way the wave would be cut at 1 nearly everywhere.
        return (0.6 if name.startswith("code2wav.decoder.") else 1.2) * (0.8 if shape[0] == 1 else 1.0)

    return random_weights(tensor_shapes(config), seed, gain, ("scale", "gamma"))


def write_toy_omni(
    folder: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    shards: int = 2,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Writes a folder and returns it.

    Args:
        folder: made if it is not there; files in it are replaced.
        changes: to `toy_omni_config`.
        seed: of the weights.
        shards: files of weights; with more than 1 there is an index.
        dtype: that the weights are stored in.

    Raises:
        CheckpointError: a configuration that this runtime does not read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = toy_omni_config(changes)
    settings["dtype"] = str(dtype).removeprefix("torch.")
    config = parse_omni_config(settings, folder / "config.json")
    vision = {"patch_size": config.vision.patch, "merge_size": config.vision.merge, "temporal_patch_size": config.vision.temporal}
    write_small_files(folder, settings, SPECIAL, TEMPLATE, vision, config.audio.mels)
    write_tensors(folder, {name: w.to(dtype) for name, w in toy_omni_weights(config, seed).items()}, shards)
    return folder
