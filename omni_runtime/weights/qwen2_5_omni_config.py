"""config.json of a Qwen2.5-Omni folder as the shapes of its parts. Loads without torch.

As in `folder_config`: every key is computed, or known to change nothing, or the folder is refused by that key's name. What the
published files leave out has the value that transformers gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_runtime.errors import CardError, CheckpointError
from omni_runtime.weights.decoder_config import DecoderConfig
from omni_runtime.weights.folder_config import MOST, NOTES
from omni_runtime.weights.json_file import Fields
from omni_runtime.weights.omni_fields import (
    DECODER,
    NESTED,
    architecture,
    full_attention,
    only_value,
    part,
    read_values,
    rope,
    token,
    whole,
)
from omni_runtime.weights.omni_parts import MediaTokens, Timing
from omni_runtime.weights.qwen2_5_omni_parts import (
    AudioConfig,
    FlowConfig,
    Qwen25Config,
    SpeakerConfig,
    TalkerConfig,
    VisionConfig,
    WavesConfig,
)

ARCHITECTURES = ("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel")  # the second is how the published files spell it
KIND = "qwen2_5_omni"

_NESTED = NESTED | {"init_std", "ignore_index"}
_MEDIA = {f"{name}_token_index" for name in ("audio", "image", "video")} | {"vision_start_token_id", "vision_end_token_id"}
_MEDIA |= {"audio_start_token_id", "audio_end_token_id", "vision_token_id", "position_id_per_seconds", "seconds_per_chunk"}
_MARKS = {"vision_start_token_id": 151652, "audio_start_token_id": 151647}
_CODES = {"tts_codec_start_token_id": 8293, "tts_codec_end_token_id": 8294, "tts_codec_pad_token_id": 8292}
_CODES |= {"tts_codec_mask_token_id": 8296}
_TEXT = {"tts_text_end_token_id": 151861, "tts_text_pad_token_id": 151859}


def read_qwen25_config(folder: Path) -> Qwen25Config:
    """The configuration of a folder.

    Raises:
        CheckpointError: no such folder or file, another architecture, or a key that is missing, misspelt, of the wrong kind,
            contradicted by another, or asks for what is not computed.
    """
    return parse_qwen25_config(*read_values(folder))


def parse_qwen25_config(values: Mapping[str, Any], path: Path) -> Qwen25Config:
    """The same for what stands in the file; `path` is for messages.

    Raises:
        CheckpointError: see `read_qwen25_config`.
    """
    f = Fields(path, values)
    architecture(f, ARCHITECTURES, KIND)
    parts = {"thinker_config", "talker_config", "token2wav_config"}
    f.only(NOTES | _NESTED | parts | {"enable_audio_output", "enable_talker"})
    t = part(f, "thinker_config")
    t.only(_NESTED | _MEDIA | {"text_config", "audio_config", "vision_config", "user_token_id"})
    try:
        thinker = _decoder(part(t, "text_config"), _NESTED, tied=t.flag("tie_word_embeddings", False))
        audio, vision = _audio(part(t, "audio_config")), _vision(part(t, "vision_config"))
        talker = flow = waves = None
        voiced = f.flag("enable_audio_output", True)
        if not f.flag("enable_talker", voiced) and voiced:
            raise f.wrong("enable_talker", "false contradicts enable_audio_output, by which a voice is made; set both to false")
        if voiced:
            talker = _talker(part(f, "talker_config"), thinker.vocab)
            w = part(f, "token2wav_config")
            w.only(_NESTED | {"dit_config", "bigvgan_config"})
            flow, waves = _flow(part(w, "dit_config")), _waves(part(w, "bigvgan_config"))
    except CardError as error:
        raise CheckpointError(f"{path} contradicts itself: {error}") from None
    ids = {name: token(t, f"{name}_token_index", thinker.vocab) for name in ("audio", "image", "video")}
    ids |= {key.removesuffix("_token_id"): token(t, key, thinker.vocab, usual) for key, usual in _MARKS.items()}
    timing = _timing(t)
    stop = t.ids("eos_token_id") or part(t, "text_config").ids("eos_token_id") or f.ids("eos_token_id")
    if stop and max(stop) >= thinker.vocab:
        raise t.wrong("eos_token_id", f"{max(stop)} is not in the vocabulary of {thinker.vocab}")
    found = Qwen25Config(thinker, audio, vision, talker, flow, waves, MediaTokens(**ids), timing, stop)
    _check(f, found)
    return found


def _check(f: Fields, c: Qwen25Config) -> None:
    """What parts say of each other."""
    for name, out in (("audio_config.output_dim", c.audio.out), ("vision_config.out_hidden_size", c.vision.out)):
        if out != c.thinker.width:
            raise f.wrong(f"thinker_config.{name}", f"{out} is not the thinker's hidden_size, {c.thinker.width}")
    if c.talker is None or c.flow is None or c.waves is None:
        return
    if c.talker.decoder.embedding != c.thinker.width:
        width = c.talker.decoder.embedding
        raise f.wrong("talker_config.embedding_size", f"{width} is not the thinker's hidden_size, {c.thinker.width}")
    talking = _timing(part(f, "talker_config"))
    if talking != c.timing:
        mine, others = (f"{one.a_second} a second, {one.chunk} a chunk" for one in (talking, c.timing))
        raise f.wrong("talker_config: position_id_per_seconds, seconds_per_chunk", f"{mine}; the thinker's are {others}")
    if c.flow.mels != c.waves.mels:
        raise f.wrong("token2wav_config.bigvgan_config.mel_dim", f"{c.waves.mels}, dit_config gives {c.flow.mels}")


def _timing(f: Fields) -> Timing:
    a_second, seconds = f.count("position_id_per_seconds", 25), f.number("seconds_per_chunk", 2)
    return Timing(a_second, whole=True, chunk=int(a_second * seconds), marks=1)


def _decoder(f: Fields, more: set[str], tied: bool = False, embedding: int = 0) -> DecoderConfig:
    """The text decoders: those of Qwen2, with positions of three numbers."""
    f.only(DECODER | more)
    only_value(f, "hidden_act", "silu")
    full_attention(f)
    heads, width = f.count("num_attention_heads"), f.count("hidden_size")
    theta, sections = rope(f, interleaved=False)
    if sections is None:
        raise f.wrong("rope_scaling", "mrope_section is missing, three numbers are needed")
    return DecoderConfig(
        vocab=f.count("vocab_size"),
        width=width,
        layers=f.count("num_hidden_layers", most=MOST),
        heads=heads,
        kv_heads=f.count("num_key_value_heads"),
        head_dim=f.count("head_dim", width // heads),
        ffn=f.count("intermediate_size"),
        positions=f.count("max_position_embeddings"),
        rope_theta=theta,
        eps=f.number("rms_norm_eps", 1e-6),
        tied=tied,
        qkv_bias=True,
        rope_sections=sections,
        rope_interleaved=False,
        embedding=embedding,
    )


def _audio(f: Fields) -> AudioConfig:
    f.only(
        _NESTED | {"num_mel_bins", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "d_model", "scale_embedding"}
        | {"max_source_positions", "activation_function", "n_window", "output_dim", "num_hidden_layers", "encoder_layerdrop"}
    )  # fmt: skip
    only_value(f, "activation_function", "gelu")
    only_value(f, "scale_embedding", False)
    only_value(f, "num_hidden_layers", f.count("encoder_layers", most=MOST))  # the same by another name
    half, width, heads = f.count("n_window", 100), f.count("d_model"), f.count("encoder_attention_heads")
    if f.count("max_source_positions", 1500) < half:
        raise f.wrong("max_source_positions", f"a chunk has {half} positions")
    if width % heads or width % 2:
        raise f.wrong("d_model", f"{width} is odd, or no multiple of encoder_attention_heads {heads}")
    layers, ffn = f.count("encoder_layers", most=MOST), f.count("encoder_ffn_dim")
    return AudioConfig(f.count("num_mel_bins"), width, layers, heads, ffn, f.count("output_dim"), 2 * half)


def _vision(f: Fields) -> VisionConfig:
    f.only(
        _NESTED | {"depth", "hidden_size", "hidden_act", "intermediate_size", "num_heads", "in_channels", "in_chans", "embed_dim"}
        | {"patch_size", "spatial_merge_size", "temporal_patch_size", "out_hidden_size", "window_size", "fullatt_block_indexes"}
        | {"rope_parameters", "spatial_patch_size", "tokens_per_second"}
    )  # fmt: skip
    only_value(f, "hidden_act", "silu")
    if (told := f.inner("rope_parameters")) is not None:
        only_value(told, "rope_theta", 10000.0)
        only_value(told, "rope_type", "axial")
    layers, width, heads = f.count("depth", most=MOST), f.count("hidden_size"), f.count("num_heads")
    only_value(f, "embed_dim", width)  # the same by another name
    if width % (4 * heads):
        why = f"{width} is no multiple of four times num_heads {heads}: a head turns by rows and by columns"
        raise f.wrong("hidden_size", why)
    patch, merge, size = f.count("patch_size"), f.count("spatial_merge_size"), f.count("window_size")
    if size < merge * patch:
        raise f.wrong("window_size", f"{size} pixels, a vector is {merge * patch} of them")
    full = whole(f, "fullatt_block_indexes", least=0)
    if full and max(full) >= layers:
        raise f.wrong("fullatt_block_indexes", f"{max(full)}: there are {layers} layers")
    return VisionConfig(
        width=width,
        layers=layers,
        heads=heads,
        ffn=f.count("intermediate_size"),
        patch=patch,
        merge=merge,
        temporal=f.count("temporal_patch_size"),
        channels=f.count("in_channels", 3),
        out=f.count("out_hidden_size"),
        window=size // merge // patch,
        full=frozenset(full),
    )


def _talker(f: Fields, vocab: int) -> TalkerConfig:
    more = _NESTED | _MEDIA | set(_CODES) | set(_TEXT) | {"tts_text_start_token_id", "embedding_size", "spatial_merge_size"}
    decoder = _decoder(f, more, embedding=f.count("embedding_size"))
    bos, eos, pad, mask = (token(f, key, decoder.vocab, usual) for key, usual in _CODES.items())
    text_eos, text_pad = (token(f, key, vocab, usual) for key, usual in _TEXT.items())
    return TalkerConfig(decoder, bos, eos, pad, mask, text_eos, text_pad)


def _flow(f: Fields) -> FlowConfig:
    older = {"dim": "hidden_size", "depth": "num_hidden_layers", "heads": "num_attention_heads"}  # in the published files
    values = dict(f.values)
    for old, new in older.items():
        if old in values and values.setdefault(new, values[old]) != values[old]:
            raise f.wrong(old, f"{values[old]!r} contradicts {new} {values[new]!r}; keep one of them")
    f = Fields(f.path, values, "token2wav_config.dit_config.")
    f.only(
        _NESTED | set(older) | set(older.values()) | {"ff_mult", "emb_dim", "head_dim", "block_size", "look_ahead_layers"}
        | {"look_backward_layers", "repeats", "num_embeds", "mel_dim", "max_position_embeddings", "rope_parameters", "rope_theta"}
        | {"enc_emb_dim", "enc_dim", "enc_channels", "enc_kernel_sizes", "enc_dilations", "enc_attention_channels"}
        | {"enc_res2net_scale", "enc_se_channels", "enc_lin_neurons", "enc_global_context", "long_skip_connection"}
    )  # fmt: skip
    only_value(f, "enc_global_context", True)
    only_value(f, "long_skip_connection", False)
    layers, width = f.count("num_hidden_layers", most=MOST), f.count("hidden_size")
    looks = [whole(f, key, usual, least=0) for key, usual in (("look_ahead_layers", [10]), ("look_backward_layers", [0, 20]))]
    theta, _ = rope(f)
    block, repeats = f.count("block_size", 24), f.count("repeats", 2)
    if block % repeats:
        raise f.wrong("block_size", f"{block} mel frames are no whole number of codes of {repeats}")
    return FlowConfig(
        width=width,
        layers=layers,
        heads=f.count("num_attention_heads"),
        head_dim=f.count("head_dim", 64),
        ffn=width * f.count("ff_mult", 2),
        codes=f.count("num_embeds", 8193) + 1,
        code_width=f.count("emb_dim", 512),
        repeats=repeats,
        mels=f.count("mel_dim", 80),
        condition=f.count("enc_emb_dim", 192),
        speaker=_speaker(f),
        block=block,
        ahead=frozenset(looks[0]),
        back=frozenset(looks[1]),
        positions=f.count("max_position_embeddings", 32768),
        rope_theta=theta,
    )


def _speaker(f: Fields) -> SpeakerConfig:
    channels = whole(f, "enc_channels", [256, 256, 256, 256, 768])
    kernels, dilations = whole(f, "enc_kernel_sizes", [5, 3, 3, 3, 1]), whole(f, "enc_dilations", [1, 2, 3, 4, 1])
    if not len(channels) == len(kernels) == len(dilations) > 2:
        raise f.wrong("enc_channels", f"{len(channels)} of them, {len(kernels)} kernels and {len(dilations)} dilations")
    scale = f.count("enc_res2net_scale", 2)
    inner = channels[:-1]
    if len(set(inner)) > 1 or inner[0] % scale or channels[-1] != sum(inner[1:]):
        why = f"{list(channels)}: all but the last equal, multiples of {scale}, and the last the sum of those after the first"
        raise f.wrong("enc_channels", why)
    attention, squeeze = f.count("enc_attention_channels", 64), f.count("enc_se_channels", 64)
    return SpeakerConfig(channels, kernels, dilations, attention, scale, squeeze, f.count("enc_dim", 128))


def _waves(f: Fields) -> WavesConfig:
    f.only(
        _NESTED | {"mel_dim", "upsample_initial_channel", "resblock_kernel_sizes", "resblock_dilation_sizes", "upsample_rates"}
        | {"upsample_kernel_sizes", "use_bias_at_final"}
    )  # fmt: skip
    only_value(f, "use_bias_at_final", False)
    rates, kernels = whole(f, "upsample_rates", [5, 3, 2, 2, 2, 2]), whole(f, "upsample_kernel_sizes", [11, 7, 4, 4, 4, 4])
    blocks, channels = whole(f, "resblock_kernel_sizes", [3, 7, 11]), f.count("upsample_initial_channel", 1536)
    dilations = f.items("resblock_dilation_sizes", [[1, 3, 5]] * len(blocks))
    if not all(isinstance(each, list) and len(each) == 3 and all(type(n) is int and n > 0 for n in each) for each in dilations):
        raise f.wrong("resblock_dilation_sizes", f"lists of three positive numbers are needed, not {dilations!r:.80}")
    if len(dilations) != len(blocks) or not all(size % 2 for size in blocks):
        raise f.wrong("resblock_kernel_sizes", f"odd numbers, as many as resblock_dilation_sizes has lists, not {list(blocks)}")
    if len(rates) != len(kernels) or any(k < r or (k - r) % 2 for r, k in zip(rates, kernels, strict=False)):
        raise f.wrong("upsample_kernel_sizes", f"{list(kernels)}: one a rate of {list(rates)}, larger by an even number")
    if channels % 2 ** len(rates):
        raise f.wrong("upsample_initial_channel", f"{channels} cannot be halved at each of the rates {list(rates)}")
    return WavesConfig(f.count("mel_dim", 80), channels, rates, kernels, blocks, tuple(tuple(each) for each in dilations))
