"""config.json of Qwen2.5-Omni-7B and -3B, without what repeats defaults.

The files themselves were not at hand. Checked against the class defaults of transformers 5.24: the 7B's thinker, both encoders
(but for the vision encoder's hidden_size), all of token2wav, all ids. From what other projects say of the published files, and
not verified here: hidden_size 1280 of the vision encoder, where the class says 3584; the 7B's talker (896 wide, 24 layers, 12
heads of 128, 4 of them for keys); the 3B's thinker (2048 wide, 36 layers, 16 heads, 2 for keys, 11008 inside, vocabulary 151936)
and talker (896 wide, 24 layers, 14 heads of 64, 2 for keys, sections [16, 16, 0]); that dit_config spells dim, depth and heads.
Guessed: the 3B's talker is 4864 inside, as Qwen2.5-0.5B is.
"""

from __future__ import annotations

from typing import Any

_DECODER: dict[str, Any] = {"hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
_DECODER |= {"use_cache": True, "use_sliding_window": False, "sliding_window": 32768, "init_std": 0.02}
_DECODER |= {"attention_dropout": 0.0, "initializer_range": 0.02}
_MEDIA = {"audio_token_index": 151646, "image_token_index": 151655, "video_token_index": 151656, "audio_start_token_id": 151647}
_MEDIA |= {"audio_end_token_id": 151648, "vision_start_token_id": 151652, "vision_end_token_id": 151653}
_MEDIA |= {"position_id_per_seconds": 25, "seconds_per_chunk": 2}
_FLOW: dict[str, Any] = {"model_type": "qwen2_5_omni_dit", "dim": 1024, "depth": 22, "heads": 16, "head_dim": 64, "ff_mult": 2}
_FLOW |= {"emb_dim": 512, "num_embeds": 8193, "mel_dim": 80, "repeats": 2, "dropout": 0.1, "enc_emb_dim": 192, "enc_dim": 128}
_FLOW |= {"enc_channels": [256, 256, 256, 256, 768], "enc_kernel_sizes": [5, 3, 3, 3, 1], "enc_dilations": [1, 2, 3, 4, 1]}
_FLOW |= {"enc_attention_channels": 64, "enc_res2net_scale": 2, "enc_se_channels": 64, "enc_lin_neurons": 192}
_FLOW |= {"enc_global_context": True}
_WAVES: dict[str, Any] = {"model_type": "qwen2_5_omni_bigvgan", "mel_dim": 80, "upsample_initial_channel": 1536}
_WAVES |= {"upsample_rates": [5, 3, 2, 2, 2, 2], "upsample_kernel_sizes": [11, 7, 4, 4, 4, 4], "use_bias_at_final": False}
_WAVES |= {"resblock_kernel_sizes": [3, 7, 11], "resblock_dilation_sizes": [[1, 3, 5]] * 3}


def _rope(*sections: int) -> dict[str, Any]:
    return {"rope_scaling": {"mrope_section": list(sections), "rope_type": "default", "type": "default"}}


def _published(text: dict[str, Any], talker: dict[str, Any]) -> dict[str, Any]:
    audio: dict[str, Any] = {"model_type": "qwen2_5_omni_audio_encoder", "num_mel_bins": 128, "encoder_layers": 32}
    audio |= {"encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "d_model": 1280, "n_window": 100, "num_hidden_layers": 32}
    audio |= {"max_source_positions": 1500, "output_dim": text["hidden_size"], "scale_embedding": False}
    audio |= {"activation_function": "gelu", "encoder_layerdrop": 0.0}
    vision: dict[str, Any] = {"model_type": "qwen2_5_omni_vision_encoder", "depth": 32, "hidden_size": 1280, "embed_dim": 1280}
    vision |= {"intermediate_size": 3420, "num_heads": 16, "hidden_act": "silu", "in_channels": 3, "in_chans": 3}
    vision |= {"patch_size": 14, "spatial_patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    vision |= {"window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 25}
    vision |= {"out_hidden_size": text["hidden_size"]}
    return {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "enable_audio_output": True,
        "enable_talker": True,
        "thinker_config": {
            "model_type": "qwen2_5_omni_thinker",
            "audio_config": audio,
            "vision_config": vision,
            "text_config": {"model_type": "qwen2_5_omni_text", **_DECODER, **_rope(16, 24, 24), **text},
            "user_token_id": 872,
            **_MEDIA,
        },
        "talker_config": {
            "model_type": "qwen2_5_omni_talker",
            "vocab_size": 8448,
            "embedding_size": text["hidden_size"],
            "tts_codec_start_token_id": 8293,
            "tts_codec_end_token_id": 8294,
            "tts_codec_pad_token_id": 8292,
            "tts_codec_mask_token_id": 8296,
            "tts_text_start_token_id": 151860,
            "tts_text_end_token_id": 151861,
            "tts_text_pad_token_id": 151859,
            **_DECODER,
            **_MEDIA,
            **talker,
        },
        "token2wav_config": {"model_type": "qwen2_5_omni_token2wav", "dit_config": _FLOW, "bigvgan_config": _WAVES},
    }


PUBLISHED_7B = _published(
    {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    | {"num_key_value_heads": 4},
    {"hidden_size": 896, "intermediate_size": 18944, "num_hidden_layers": 24, "num_attention_heads": 12, "head_dim": 128}
    | {"num_key_value_heads": 4, **_rope(16, 24, 24)},
)
PUBLISHED_3B = _published(
    {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16}
    | {"num_key_value_heads": 2},
    {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "head_dim": 64}
    | {"num_key_value_heads": 2, **_rope(16, 16, 0)},
)
