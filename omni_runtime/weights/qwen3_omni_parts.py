"""The shapes of the parts of a Qwen3-Omni, and the tensors that a published checkpoint has for each. Loads without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from omni_runtime.weights.decoder_config import DecoderConfig, parameter_shapes
from omni_runtime.weights.omni_parts import MediaTokens, Shapes, Timing, conv, count_by, decoder_names, dense, norm, snake

PREFIXES = {  # of the names of each expert's tensors; the longest that fits counts
    "thinker": "thinker.",
    "audio_encoder": "thinker.audio_tower.",
    "vision_encoder": "thinker.visual.",
    "talker": "talker.",
    "predictor": "talker.code_predictor.",
    "code2wav": "code2wav.",
}
CHUNK_TOKENS = 13  # of a full chunk of 100 mel frames: three convolutions of stride 2


@dataclass(frozen=True)
class AudioConfig:
    """Shape of the audio encoder."""

    mels: int
    width: int
    layers: int
    heads: int
    ffn: int
    channels: int  # of the convolutions
    out: int
    chunk: int  # mel frames that convolutions see together
    window: int  # chunks that attention sees together


@dataclass(frozen=True)
class VisionConfig:
    """Shape of the vision encoder."""

    width: int
    layers: int
    heads: int
    ffn: int
    patch: int  # pixels
    merge: int  # patches a side that become one token
    temporal: int  # frames of a patch
    channels: int
    out: int
    grid: int  # side of the table of positions
    deepstack: tuple[int, ...]  # layers after which features are taken

    @property
    def pixels(self) -> int:
        """Numbers of one flattened patch."""
        return self.channels * self.temporal * self.patch**2


@dataclass(frozen=True)
class TalkerConfig:
    """Shape and ids of the talker. Ids of `decoder` are of the codec's vocabulary."""

    decoder: DecoderConfig
    predictor: DecoderConfig  # its ids: those of group 1, then those of group 2, and so on; each of `codebook`
    groups: int  # codes of a frame, the first from the talker, the others from the predictor
    codebook: int
    thinker_width: int
    accept: int  # the layer of the thinker whose input stands for media
    bos: int
    eos: int
    pad: int
    nothink: int
    think_bos: int
    think_eos: int
    speakers: Mapping[str, int]


@dataclass(frozen=True)
class VocoderConfig:
    """Shape of code2wav."""

    codebook: int
    groups: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    window: int  # positions that a position sees, itself included
    rope_theta: float
    eps: float
    bias: bool
    ratios: tuple[int, ...]  # of upsampling between transformer and decoder
    rates: tuple[int, ...]  # of upsampling in the decoder
    channels: int  # of the decoder at its start; halved at every rate

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return prod(self.ratios) * prod(self.rates)

    @property
    def lag(self) -> int:
        """Samples that n frames give less than n·hop: each rate's block needs the next input, so its last one is never whole."""
        return sum(prod(self.rates[i + 1 :]) * rate for i, rate in enumerate(self.rates))

    @property
    def reach(self) -> int:
        """Frames before a frame that its samples may depend on: a stream that begins so much earlier gives the same ones."""
        steps, back = 1, 0.0  # positions of a frame at this depth; frames that convolutions look back
        for ratio in self.ratios:
            steps *= ratio
            back += 6 / steps
        back += 6 / steps
        for rate in self.rates:
            back += 1 / steps
            steps *= rate
            back += 6 * (1 + 3 + 9) / steps
        return (self.window - 1) * self.layers + ceil(back + 6 / steps)


@dataclass(frozen=True)
class Tokens(MediaTokens):
    """Ids of the thinker's vocabulary that say what stands where."""

    im_start: int
    im_end: int
    system: int
    user: int
    assistant: int
    tts_pad: int
    tts_bos: int
    tts_eos: int


@dataclass(frozen=True)
class OmniConfig:
    """All parts. `talker` and `vocoder` are None where the folder has no voice (enable_audio_output)."""

    thinker: DecoderConfig
    audio: AudioConfig
    vision: VisionConfig
    talker: TalkerConfig | None
    vocoder: VocoderConfig | None
    tokens: Tokens
    positions_a_second: int

    @property
    def timing(self) -> Timing:
        """How positions run through clips."""
        return Timing(self.positions_a_second)


def tensor_shapes(config: OmniConfig) -> Shapes:
    """Name and shape of every tensor of a published checkpoint."""
    names = decoder_names(config.thinker, "thinker.", "embed_tokens", "thinker.lm_head")
    found = dict(zip(names.values(), parameter_shapes(config.thinker).values(), strict=True))
    found |= _audio(config.audio) | _vision(config.vision)
    if config.talker is not None:
        found |= _talker(config.talker)
    if config.vocoder is not None:
        found |= _vocoder(config.vocoder)
    return found


def parameters(config: OmniConfig) -> dict[str, int]:
    """How many numbers each expert has."""
    return count_by(tensor_shapes(config), PREFIXES)


def _audio(c: AudioConfig) -> Shapes:
    at, rows = "thinker.audio_tower", c.mels
    found: Shapes = {}
    for i, channels in enumerate((1, c.channels, c.channels), 1):
        found |= conv(f"{at}.conv2d{i}", c.channels, channels, 3, 3)
        rows = (rows + 1) // 2
    found |= dense(f"{at}.conv_out", c.width, c.channels * rows, bias=False)
    for i in range(c.layers):
        layer = f"{at}.layers.{i}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found |= dense(f"{layer}.self_attn.{part}", c.width, c.width)
        found |= norm(f"{layer}.self_attn_layer_norm", c.width) | norm(f"{layer}.final_layer_norm", c.width)
        found |= dense(f"{layer}.fc1", c.ffn, c.width) | dense(f"{layer}.fc2", c.width, c.ffn)
    return found | norm(f"{at}.ln_post", c.width) | dense(f"{at}.proj1", c.width, c.width) | dense(f"{at}.proj2", c.out, c.width)


def _vision(c: VisionConfig) -> Shapes:
    at = "thinker.visual"
    found = conv(f"{at}.patch_embed.proj", c.width, c.channels, c.temporal, c.patch, c.patch)
    found[f"{at}.pos_embed.weight"] = (c.grid**2, c.width)
    for i in range(c.layers):
        block = f"{at}.blocks.{i}"
        found |= norm(f"{block}.norm1", c.width) | norm(f"{block}.norm2", c.width)
        found |= dense(f"{block}.attn.qkv", 3 * c.width, c.width) | dense(f"{block}.attn.proj", c.width, c.width)
        found |= dense(f"{block}.mlp.linear_fc1", c.ffn, c.width) | dense(f"{block}.mlp.linear_fc2", c.width, c.ffn)
    wide = c.merge**2 * c.width
    for i in range(-1, len(c.deepstack)):
        merger = f"{at}.merger" if i < 0 else f"{at}.merger_list.{i}"
        found |= norm(f"{merger}.ln_q", c.width if i < 0 else wide)
        found |= dense(f"{merger}.mlp.0", wide, wide) | dense(f"{merger}.mlp.2", c.out, wide)
    return found


def _talker(c: TalkerConfig) -> Shapes:
    names = decoder_names(c.decoder, "talker.", "codec_embedding", "talker.codec_head")
    found = dict(zip(names.values(), parameter_shapes(c.decoder).values(), strict=True))
    for projection in ("text_projection", "hidden_projection"):
        found |= dense(f"talker.{projection}.linear_fc1", c.decoder.ffn, c.thinker_width)
        found |= dense(f"talker.{projection}.linear_fc2", c.decoder.width, c.decoder.ffn)
    at = "talker.code_predictor"
    for name, shape in parameter_shapes(c.predictor).items():
        if name != "model.embed_tokens.weight":
            found[f"{at}.{name}"] = shape
    for i in range(c.groups - 1):
        found[f"{at}.model.codec_embedding.{i}.weight"] = (c.codebook, c.predictor.width)
        found[f"{at}.lm_head.{i}.weight"] = (c.codebook, c.predictor.width)
    return found


def _vocoder(c: VocoderConfig) -> Shapes:
    found: Shapes = {"code2wav.code_embedding.weight": (c.codebook * c.groups, c.width)}
    queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
    for i in range(c.layers):
        at = f"code2wav.pre_transformer.layers.{i}"
        for part, out, into in (("q", queries, c.width), ("k", keys, c.width), ("v", keys, c.width), ("o", c.width, queries)):
            found |= dense(f"{at}.self_attn.{part}_proj", out, into, c.bias)
        for part, out, into in (("gate", c.ffn, c.width), ("up", c.ffn, c.width), ("down", c.width, c.ffn)):
            found |= dense(f"{at}.mlp.{part}_proj", out, into, bias=False)
        found |= norm(f"{at}.input_layernorm", c.width, False) | norm(f"{at}.post_attention_layernorm", c.width, False)
        found |= {f"{at}.{part}_layer_scale.scale": (c.width,) for part in ("self_attn", "mlp")}
    found["code2wav.pre_transformer.norm.weight"] = (c.width,)
    for i, ratio in enumerate(c.ratios):
        at = f"code2wav.upsample.{i}"
        found |= conv(f"{at}.0.conv", c.width, c.width, ratio) | conv(f"{at}.1.dwconv.conv", c.width, 1, 7)
        found |= norm(f"{at}.1.norm", c.width) | {f"{at}.1.gamma": (c.width,)}
        found |= dense(f"{at}.1.pwconv1", 4 * c.width, c.width) | dense(f"{at}.1.pwconv2", c.width, 4 * c.width)
    found |= conv("code2wav.decoder.0.conv", c.channels, c.width, 7)
    wide = c.channels
    for i, rate in enumerate(c.rates):
        at = f"code2wav.decoder.{i + 1}.block"
        found |= snake(f"{at}.0", wide) | conv(f"{at}.1.conv", wide, wide // 2, 2 * rate, out=wide // 2)
        wide //= 2
        for j in range(2, 5):
            found |= snake(f"{at}.{j}.act1", wide) | conv(f"{at}.{j}.conv1.conv", wide, wide, 7)
            found |= snake(f"{at}.{j}.act2", wide) | conv(f"{at}.{j}.conv2.conv", wide, wide, 1)
    last = len(c.rates) + 1
    return found | snake(f"code2wav.decoder.{last}", wide) | conv(f"code2wav.decoder.{last + 1}.conv", 1, wide, 7)
