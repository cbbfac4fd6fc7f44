"""Tiny Qwen2.5-Omni folders with random weights: all that a published one has, in 3 MB, for tests, examples and benchmarks.

Weights are large enough that nobody's choice is close and nothing is silent, as in `toy_qwen3_omni`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from omni_runtime.weights.omni_parts import Shapes
from omni_runtime.weights.qwen2_5_omni_config import ARCHITECTURES, KIND, parse_qwen25_config
from omni_runtime.weights.qwen2_5_omni_parts import FLOW, WAVES, Qwen25Config, tensor_shapes
from omni_runtime.weights.speaker_names import SPEAKERS
from omni_runtime.weights.toy_folder import write_tensors
from omni_runtime.weights.toy_omni import Values, ids_of, merged, random_weights, template, vocabulary, write_small_files

SPECIAL: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>")
SPECIAL += ("<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>")
SPECIAL += ("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>")
TEMPLATE = template(
    "<|audio_bos|><|AUDIO|><|audio_eos|>", "<|vision_bos|><|IMAGE|><|vision_eos|>", "<|vision_bos|><|VIDEO|><|vision_eos|>"
)
CODES = 64  # of sound; after them stand the codec's marks


def token_ids() -> dict[str, int]:
    """Ids of the special tokens and the roles."""
    return ids_of(SPECIAL)


def toy_qwen25_config(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """config.json of a tiny model; `changes` is merged into it, object by object. A value of None removes a key."""
    ids, width, mels = token_ids(), 64, 16
    media: Values = {f"{name}_token_index": ids[f"<|{name.upper()}|>"] for name in ("audio", "image", "video")}
    media |= {f"{name}_start_token_id": ids[f"<|{name}_bos|>"] for name in ("audio", "vision")}
    media |= {f"{name}_end_token_id": ids[f"<|{name}_eos|>"] for name in ("audio", "vision")}
    media |= {"position_id_per_seconds": 25, "seconds_per_chunk": 2}
    rope = {"rope_type": "default", "type": "default", "mrope_section": [4, 2, 2]}
    decoder: Values = {"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
    decoder |= {"rope_scaling": rope, "use_sliding_window": False, "tie_word_embeddings": False}
    text: Values = {"vocab_size": vocabulary(SPECIAL), "hidden_size": width, "intermediate_size": 128, "num_hidden_layers": 3}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, **decoder}
    audio: Values = {"num_mel_bins": 128, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64, "d_model": 32}
    audio |= {"n_window": 20, "output_dim": width, "max_source_positions": 200, "activation_function": "gelu"}
    vision: Values = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 4}
    vision |= {"spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 24, "out_hidden_size": width, "in_channels": 3}
    vision |= {"fullatt_block_indexes": [1], "hidden_act": "silu"}
    talker: Values = {"vocab_size": CODES + 16, "embedding_size": width, "hidden_size": 48, "intermediate_size": 96}
    talker |= {"num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16, **decoder}
    talker |= {"tts_text_start_token_id": ids["<tts_text_bos>"], "tts_text_end_token_id": ids["<tts_text_eod>"]}
    talker |= {"tts_text_pad_token_id": ids["<tts_pad>"], "tts_codec_start_token_id": CODES + 9}
    talker |= {"tts_codec_end_token_id": CODES + 10, "tts_codec_pad_token_id": CODES + 8, "tts_codec_mask_token_id": CODES + 12}
    talker |= {"spatial_merge_size": 2, **media}
    flow: Values = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "head_dim": 16, "ff_mult": 2}
    flow |= {"emb_dim": 16, "block_size": 8, "look_ahead_layers": [1], "look_backward_layers": [0, 2], "repeats": 2}
    flow |= {"num_embeds": CODES + 15, "mel_dim": mels, "enc_emb_dim": 12, "enc_dim": 8, "enc_channels": [16, 16, 16, 16, 48]}
    flow |= {"enc_attention_channels": 8, "enc_se_channels": 8, "max_position_embeddings": 2048, "dropout": 0.0}
    waves: Values = {"mel_dim": mels, "upsample_initial_channel": 64, "upsample_rates": [5, 3, 2, 2, 2, 2]}
    waves |= {"upsample_kernel_sizes": [11, 7, 4, 4, 4, 4]}
    found: Values = {
        "architectures": [ARCHITECTURES[0]],
        "model_type": KIND,
        "enable_audio_output": True,
        "dtype": "float32",
        "thinker_config": {
            "text_config": text,
            "audio_config": audio,
            "vision_config": vision,
            "user_token_id": ids["user"],
            **media,
        },
        "talker_config": talker,
        "token2wav_config": {"dit_config": flow, "bigvgan_config": waves},
    }
    return merged(found, changes or {})


def toy_qwen25_weights(config: Qwen25Config, seed: int = 0) -> dict[str, torch.Tensor]:
    """See `random_weights`; matrices 1.2/sqrt(inputs)."""

    def gain(name: str, shape: tuple[int, ...]) -> float:
        if name.startswith(WAVES):
            # Residual units add up: with 1.2 all the way the wave would be cut at 1 nearly everywhere.
            return 0.72
        return 0.8 if name.startswith(FLOW) else 1.2

    shapes: Shapes = tensor_shapes(config)
    return random_weights(shapes, seed, gain)


def toy_speakers(config: Qwen25Config, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Two voices, as spk_dict.pt holds them."""
    flow, ids, generator = config.flow, token_ids(), torch.Generator().manual_seed(seed)
    assert flow is not None

    def voice(bos: str, frames: int) -> dict[str, Any]:
        condition, mel = (torch.randn(1, *shape, generator=generator) for shape in ((flow.condition,), (frames, flow.mels)))
        return {"bos_token": ids[bos], "cond": condition, "ref_mel": mel}

    return {"Chelsie": voice("<tts_text_bos>", 30), "Ethan": voice("<tts_text_bos_single>", 25)}


def write_toy_qwen25(
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
        changes: to `toy_qwen25_config`.
        seed: of the weights.
        shards: files of weights; with more than 1 there is an index.
        dtype: that the weights are stored in.

    Raises:
        CheckpointError: a configuration that this runtime does not read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = toy_qwen25_config(changes)
    settings["dtype"] = str(dtype).removeprefix("torch.")
    config = parse_qwen25_config(settings, folder / "config.json")
    vision = {"patch_size": config.vision.patch, "merge_size": config.vision.merge, "temporal_patch_size": config.vision.temporal}
    write_small_files(folder, settings, SPECIAL, TEMPLATE, vision, config.audio.mels)
    write_tensors(folder, {name: w.to(dtype) for name, w in toy_qwen25_weights(config, seed).items()}, shards)
    if config.flow is not None:
        torch.save(toy_speakers(config, seed), folder / SPEAKERS)
    return folder
