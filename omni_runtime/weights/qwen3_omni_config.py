"""config.json of a Qwen3-Omni folder as the shapes of its parts. Loads without torch.

As in `folder_config`: every key is computed, or known to change nothing, or the folder is refused by that key's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt, prod
from pathlib import Path
from typing import Any

from omni_runtime.errors import CardError, CheckpointError
from omni_runtime.weights.decoder_config import DecoderConfig, Sparse
from omni_runtime.weights.folder_config import MOST, NOTES
from omni_runtime.weights.json_file import Fields
from omni_runtime.weights.omni_fields import (
    DECODER,
    NESTED,
    ROPE,
    architecture,
    full_attention,
    only_value,
    part,
    read_values,
    rope,
    token,
)
from omni_runtime.weights.qwen3_omni_parts import (
    CHUNK_TOKENS,
    AudioConfig,
    OmniConfig,
    TalkerConfig,
    Tokens,
    VisionConfig,
    VocoderConfig,
)

ARCHITECTURE = "Qwen3OmniMoeForConditionalGeneration"
KIND = "qwen3_omni_moe"

_SPARSE = {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "use_qk_norm"}
_SPARSE |= {"decoder_sparse_step", "mlp_only_layers", "shared_expert_intermediate_size"}


def read_omni_config(folder: Path) -> OmniConfig:
    """The configuration of a folder.

    Raises:
        CheckpointError: no such folder or file, another architecture, or a key that is missing, misspelt, of the wrong kind,
            contradicted by another, or asks for what is not computed.
    """
    return parse_omni_config(*read_values(folder))


def parse_omni_config(values: Mapping[str, Any], path: Path) -> OmniConfig:
    """The same for what stands in the file; `path` is for messages.

    Raises:
        CheckpointError: see `read_omni_config`.
    """
    f = Fields(path, values)
    architecture(f, (ARCHITECTURE,), KIND)
    outer = ("im_start", "im_end", "system", "user", "assistant", "tts_pad", "tts_bos", "tts_eos")
    f.only(
        NOTES | {f"{name}_token_id" for name in outer} | {"architectures", "model_type", "enable_audio_output", "thinker_config"}
        | {"talker_config", "code2wav_config", "tie_word_embeddings"}
    )  # fmt: skip
    t = part(f, "thinker_config")
    media = ("audio", "image", "video", "audio_start", "vision_start")
    t.only(
        NESTED | {f"{name}_token_id" for name in media} | {"text_config", "audio_config", "vision_config", "user_token_id"}
        | {"position_id_per_seconds", "audio_end_token_id", "vision_end_token_id"}
    )  # fmt: skip
    try:
        thinker = _decoder(part(t, "text_config"), shared=False)
        audio, vision = _audio(part(t, "audio_config")), _vision(part(t, "vision_config"))
        talker = vocoder = None
        if f.flag("enable_audio_output", True):
            talker = _talker(part(f, "talker_config"))
            vocoder = _vocoder(part(f, "code2wav_config"))
    except CardError as error:
        raise CheckpointError(f"{path} contradicts itself: {error}") from None
    ids = {name: token(f, f"{name}_token_id", thinker.vocab) for name in outer}
    ids |= {name: token(t, f"{name}_token_id", thinker.vocab) for name in media}
    found = OmniConfig(thinker, audio, vision, talker, vocoder, Tokens(**ids), t.count("position_id_per_seconds"))
    _check(f, found)
    return found


def _check(f: Fields, c: OmniConfig) -> None:
    """What parts say of each other."""
    for name, out in (("audio_config.output_dim", c.audio.out), ("vision_config.out_hidden_size", c.vision.out)):
        if out != c.thinker.width:
            raise f.wrong(f"thinker_config.{name}", f"{out} is not the thinker's hidden_size, {c.thinker.width}")
    if c.talker is None or c.vocoder is None:
        return
    if c.talker.thinker_width != c.thinker.width:
        raise f.wrong("talker_config.thinker_hidden_size", f"{c.talker.thinker_width} is not the thinker's, {c.thinker.width}")
    if not 0 <= c.talker.accept < c.thinker.layers:
        raise f.wrong("talker_config.accept_hidden_layer", f"{c.talker.accept}: the thinker has {c.thinker.layers} layers")
    if (c.vocoder.groups, c.vocoder.codebook) != (c.talker.groups, c.talker.codebook):
        ours, theirs = f"{c.vocoder.groups} groups of {c.vocoder.codebook}", f"{c.talker.groups} of {c.talker.codebook}"
        raise f.wrong("code2wav_config", f"takes {ours} codes, the talker gives {theirs}")


def _decoder(f: Fields, shared: bool, sparse: bool = True, head: bool = True, copies: int = 1) -> DecoderConfig:
    """The text decoders. `copies`: embeddings of the predictor, one after the other."""
    f.only(DECODER | NESTED | {"attention_bias"} | (_SPARSE if sparse else {"num_code_groups"}))
    only_value(f, "hidden_act", "silu")
    only_value(f, "attention_bias", False)
    only_value(f, "use_qk_norm", True)
    full_attention(f)
    layers, heads, width = f.count("num_hidden_layers", most=MOST), f.count("num_attention_heads"), f.count("hidden_size")
    theta, sections = rope(f)
    if sparse and sections is None:
        raise f.wrong("rope_scaling", "mrope_section is missing, three positive numbers are needed")
    return DecoderConfig(
        vocab=copies * f.count("vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=f.count("num_key_value_heads"),
        head_dim=f.count("head_dim", width // heads),
        ffn=f.count("intermediate_size"),
        positions=f.count("max_position_embeddings"),
        rope_theta=theta,
        eps=f.number("rms_norm_eps", 1e-6),
        tied=False,
        qk_norm=True,
        sparse=_sparse(f, layers, shared) if sparse else None,
        rope_sections=sections,
        head=head,
    )


def _sparse(f: Fields, layers: int, shared: bool) -> Sparse:
    local = f.count("num_local_experts", None, most=MOST)
    experts = f.count("num_experts", local if local is not None else f.count("num_experts", most=MOST), most=MOST)
    if local is not None and experts != local:
        raise f.wrong("num_local_experts", f"{local} contradicts num_experts {experts}; keep one of them")
    if f.items("mlp_only_layers", []) or f.count("decoder_sparse_step", 1) != 1:
        raise f.wrong("mlp_only_layers", "dense layers between sparse ones are not computed here")
    inner = f.count("shared_expert_intermediate_size") if shared else f.count("shared_expert_intermediate_size", 0, least=0)
    if inner and not shared:
        raise f.wrong("shared_expert_intermediate_size", f"{inner}: the thinker has no shared expert")
    chosen, ffn = f.count("num_experts_per_tok"), f.count("moe_intermediate_size")
    return Sparse(experts, chosen, ffn, f.flag("norm_topk_prob"), frozenset(range(layers)), inner)


def _audio(f: Fields) -> AudioConfig:
    f.only(
        NESTED | {"num_mel_bins", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "d_model", "scale_embedding"}
        | {"max_source_positions", "activation_function", "n_window", "n_window_infer", "conv_chunksize", "output_dim"}
        | {"downsample_hidden_size", "num_hidden_layers"}
    )  # fmt: skip
    only_value(f, "activation_function", "gelu")
    only_value(f, "scale_embedding", False)
    only_value(f, "num_hidden_layers", f.count("encoder_layers", most=MOST))  # the same by another name
    only_value(f, "n_window", 50)  # `CHUNK_TOKENS` of a chunk: what the makers' code counts with, whatever is written here
    chunk = 2 * f.count("n_window")
    infer = f.count("n_window_infer")
    if infer % chunk:
        raise f.wrong("n_window_infer", f"{infer} is no multiple of a chunk of {chunk}")
    if f.count("max_source_positions") < CHUNK_TOKENS:
        raise f.wrong("max_source_positions", f"a chunk has {CHUNK_TOKENS} positions")
    width, heads = f.count("d_model"), f.count("encoder_attention_heads")
    if width % heads or width % 2:
        raise f.wrong("d_model", f"{width} is odd, or no multiple of encoder_attention_heads {heads}")
    return AudioConfig(
        mels=f.count("num_mel_bins"),
        width=width,
        layers=f.count("encoder_layers", most=MOST),
        heads=heads,
        ffn=f.count("encoder_ffn_dim"),
        channels=f.count("downsample_hidden_size"),
        out=f.count("output_dim"),
        chunk=chunk,
        window=infer // chunk,
    )


def _vision(f: Fields) -> VisionConfig:
    f.only(
        NESTED | {"depth", "hidden_size", "hidden_act", "intermediate_size", "num_heads", "in_channels", "in_chans"}
        | {"patch_size", "spatial_merge_size", "temporal_patch_size", "out_hidden_size", "num_position_embeddings"}
        | {"deepstack_visual_indexes", "rope_parameters", "apply_vit_abs_pos_embed", "image_size"}
        | {"spatial_patch_size", "tokens_per_second"}
    )  # fmt: skip
    only_value(f, "hidden_act", "gelu_pytorch_tanh")
    only_value(f, "apply_vit_abs_pos_embed", True)
    if (rope := f.inner("rope_parameters")) is not None:
        only_value(rope, "rope_theta", 10000.0)
        only_value(rope, "rope_type", "axial")
    table = f.count("num_position_embeddings")
    if isqrt(table) ** 2 != table:
        raise f.wrong("num_position_embeddings", f"{table} is no square")
    layers, width, heads = f.count("depth", most=MOST), f.count("hidden_size"), f.count("num_heads")
    if width % (4 * heads):
        raise f.wrong(
            "hidden_size", f"{width} is no multiple of four times num_heads {heads}: a head turns by rows and by columns"
        )
    deep = f.items("deepstack_visual_indexes")
    if not all(type(i) is int and 0 <= i < layers for i in deep) or sorted(set(deep)) != deep:
        raise f.wrong("deepstack_visual_indexes", f"rising numbers of layers, 0 to {layers - 1}, are needed, not {deep!r:.80}")
    return VisionConfig(
        width=width,
        layers=layers,
        heads=heads,
        ffn=f.count("intermediate_size"),
        patch=f.count("patch_size"),
        merge=f.count("spatial_merge_size"),
        temporal=f.count("temporal_patch_size"),
        channels=f.count("in_channels", 3),
        out=f.count("out_hidden_size"),
        grid=isqrt(table),
        deepstack=tuple(deep),
    )


def _talker(f: Fields) -> TalkerConfig:
    names = {"bos": "codec_bos_id", "eos": "codec_eos_token_id", "pad": "codec_pad_id", "nothink": "codec_nothink_id"}
    names |= {"think_bos": "codec_think_bos_id", "think_eos": "codec_think_eos_id"}
    f.only(
        NESTED | set(names.values()) | {"text_config", "code_predictor_config", "num_code_groups", "thinker_hidden_size"}
        | {"accept_hidden_layer", "speaker_id", "spatial_merge_size", "position_id_per_seconds", "audio_token_id"}
        | {"image_token_id", "video_token_id", "audio_start_token_id", "audio_end_token_id", "vision_start_token_id"}
    )  # fmt: skip
    groups = f.count("num_code_groups", least=2)
    text, codes = part(f, "text_config"), part(f, "code_predictor_config")
    decoder = _decoder(text, shared=True)
    predictor = _decoder(codes, shared=False, sparse=False, head=False, copies=groups - 1)
    if codes.count("num_code_groups") != groups:
        raise codes.wrong("num_code_groups", f"{codes.count('num_code_groups')}, the talker says {groups}")
    if predictor.width != decoder.width:
        raise codes.wrong("hidden_size", f"{predictor.width} is not the talker's {decoder.width}, whose state it goes on from")
    ids = {ours: f.count(theirs, least=0, most=decoder.vocab - 1) for ours, theirs in names.items()}
    speakers = f.inner("speaker_id")
    named = {} if speakers is None else {
        name.lower(): speakers.count(name, least=0, most=decoder.vocab - 1) for name in speakers.values
    }  # fmt: skip
    if not named:
        remedy = "fetch config.json again, or set enable_audio_output to false to load it without a voice"
        raise f.wrong("speaker_id", f"an object of at least one speaker and its token id is needed; {remedy}")
    return TalkerConfig(
        decoder=decoder,
        predictor=predictor,
        groups=groups,
        codebook=predictor.vocab // (groups - 1),
        thinker_width=f.count("thinker_hidden_size"),
        accept=f.count("accept_hidden_layer", least=0),
        speakers=named,
        **ids,
    )


def _vocoder(f: Fields) -> VocoderConfig:
    f.only(
        NESTED | ROPE | {"codebook_size", "hidden_size", "num_attention_heads", "num_key_value_heads"}
        | {"attention_bias", "sliding_window", "intermediate_size", "hidden_act", "layer_scale_initial_scale", "rms_norm_eps"}
        | {"num_hidden_layers", "num_quantizers", "upsample_rates", "upsampling_ratios", "decoder_dim", "head_dim"}
        | {"max_position_embeddings", "codebook_dim", "num_semantic_quantizers", "semantic_codebook_size"}
        | {"vector_quantization_hidden_dimension"}
    )  # fmt: skip
    only_value(f, "hidden_act", "silu")
    theta, sections = rope(f)
    if sections is not None:
        raise f.wrong("rope_parameters", "mrope_section: frames have positions of one number")
    lists: dict[str, tuple[int, ...]] = {}
    for key in ("upsample_rates", "upsampling_ratios"):
        lists[key] = tuple(f.items(key))
        if not lists[key] or not all(type(n) is int and n > 0 for n in lists[key]):
            raise f.wrong(key, f"positive numbers are needed, not {f.values[key]!r:.80}")
    if prod(lists["upsampling_ratios"]) < 2:
        raise f.wrong("upsampling_ratios", "a first frame alone would give nothing that the decoder can begin with")
    heads, width, channels = f.count("num_attention_heads"), f.count("hidden_size"), f.count("decoder_dim")
    if channels % 2 ** len(lists["upsample_rates"]):
        raise f.wrong("decoder_dim", f"{channels} cannot be halved at each of the rates {list(lists['upsample_rates'])}")
    kv_heads, head_dim = f.count("num_key_value_heads"), f.count("head_dim", width // heads)
    if heads % kv_heads or head_dim % 2:
        raise f.wrong("num_attention_heads", f"{heads} is no multiple of {kv_heads}, or a head of {head_dim} is odd")
    return VocoderConfig(
        codebook=f.count("codebook_size"),
        groups=f.count("num_quantizers"),
        width=width,
        layers=f.count("num_hidden_layers", most=MOST),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=f.count("intermediate_size"),
        window=f.count("sliding_window", least=2),
        rope_theta=theta,
        eps=f.number("rms_norm_eps", 1e-5),
        bias=f.flag("attention_bias", False),
        ratios=lists["upsampling_ratios"],
        rates=lists["upsample_rates"],
        channels=channels,
    )
