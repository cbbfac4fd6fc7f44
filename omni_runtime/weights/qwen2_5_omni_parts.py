"""The shapes of the parts of a Qwen2.5-Omni, and the tensors that a published checkpoint has for each. Loads without torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import NamedTuple

from omni_runtime.weights.decoder_config import DecoderConfig, parameter_shapes
from omni_runtime.weights.omni_parts import MediaTokens, Shapes, Timing, conv, count_by, decoder_names, dense, norm, snake

AROUND = 5  # positions on each side that an activation of BigVGAN sees: its filters 3, of which half a position is one
FLOW, WAVES = "token2wav.code2wav_dit_model.", "token2wav.code2wav_bigvgan_model."
PREFIXES = {  # of the names of each expert's tensors; the longest that fits counts
    "thinker": "thinker.",
    "audio_encoder": "thinker.audio_tower.",
    "vision_encoder": "thinker.visual.",
    "talker": "talker.",
    "flow": FLOW,
    "bigvgan": WAVES,
}


@dataclass(frozen=True)
class AudioConfig:
    """Shape of the audio encoder."""

    mels: int
    width: int
    layers: int
    heads: int
    ffn: int
    out: int
    chunk: int  # mel frames that see each other, an even number


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
    window: int  # tokens a side that see each other
    full: frozenset[int]  # layers in which all of a frame see each other

    @property
    def pixels(self) -> int:
        """Numbers of one flattened patch."""
        return self.channels * self.temporal * self.patch**2


@dataclass(frozen=True)
class TalkerConfig:
    """Shape and ids of the talker: `bos` .. `mask` are of the codec's vocabulary, the others of the thinker's."""

    decoder: DecoderConfig
    bos: int
    eos: int
    pad: int
    mask: int
    text_eos: int
    text_pad: int


@dataclass(frozen=True)
class SpeakerConfig:
    """Shape of the network that hears a speaker in a mel spectrogram: ECAPA-TDNN (Desplanques et al. 2020)."""

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention: int
    scale: int  # parts of a Res2Net block
    squeeze: int
    out: int


@dataclass(frozen=True)
class FlowConfig:
    """Shape of the transformer that makes mel frames of codes."""

    width: int
    layers: int
    heads: int
    head_dim: int
    ffn: int
    codes: int  # of its embedding
    code_width: int
    repeats: int  # mel frames of a code
    mels: int
    condition: int  # numbers that a speaker is told by, beside the mel spectrogram
    speaker: SpeakerConfig
    block: int  # mel frames that see each other
    ahead: frozenset[int]  # layers that also see the next block
    back: frozenset[int]  # layers that also see the one before
    positions: int
    rope_theta: float


class Span(NamedTuple):
    """Positions low .. high of a stage, which may be before its first or after its last."""

    low: int
    high: int

    def wider(self, by: int) -> Span:
        return Span(self.low - by, self.high + by)

    def within(self, count: int) -> Span:
        """Those that there are."""
        return Span(max(self.low, 0), min(self.high, count))


class UnitNeeds(NamedTuple):
    """Of the answers of a residual unit's convolutions: the dilated one, and the one that is added."""

    dilated: Span
    out: Span


class RateNeeds(NamedTuple):
    """At one rate: of the answer of its upsampling, and of its blocks."""

    grown: Span
    blocks: tuple[tuple[UnitNeeds, ...], ...]


class WavesNeeds(NamedTuple):
    """Of mel frames, of the first convolution, at each rate, and samples."""

    mels: Span
    first: Span
    rates: tuple[RateNeeds, ...]
    sound: Span


@dataclass(frozen=True)
class WavesConfig:
    """Shape of BigVGAN."""

    mels: int
    channels: int  # at its start; halved at every rate
    rates: tuple[int, ...]
    kernels: tuple[int, ...]  # of upsampling
    block_kernels: tuple[int, ...]
    dilations: tuple[tuple[int, ...], ...]  # of each block

    @property
    def hop(self) -> int:
        """Samples of a mel frame."""
        return prod(self.rates)

    @property
    def reach(self) -> tuple[int, int]:
        """Mel frames before and after a stretch of frames that its sound depends on."""
        mels = self.needs(0, 1).mels
        return -mels.low, mels.high - 1

    def needs(self, start: int, stop: int) -> WavesNeeds:
        """What the sound of frames start .. stop needs of every operation, in a stream without ends."""
        sound = Span(start * self.hop, stop * self.hop)
        made, rates = sound.wider(3 + AROUND), []
        for rate, kernel in list(zip(self.rates, self.kernels, strict=True))[::-1]:
            blocks, grown = [], made
            for size, dilations in zip(self.block_kernels, self.dilations, strict=True):
                units, out = [], made
                for dilation in dilations[::-1]:
                    dilated = out.wider((size - 1) // 2 + AROUND)
                    units.append(UnitNeeds(dilated, out))
                    out = dilated.wider((size - 1) // 2 * dilation + AROUND)
                blocks.append(tuple(units[::-1]))
                grown = Span(min(grown.low, out.low), max(grown.high, out.high))
            rates.append(RateNeeds(grown, tuple(blocks)))
            cut = (kernel - rate) // 2  # output n is the sum of inputs j with 0 <= n + cut - j rate < kernel
            made = Span(ceil((grown.low + cut - kernel + 1) / rate), (grown.high - 1 + cut) // rate + 1)
        return WavesNeeds(made.wider(3), made, tuple(rates[::-1]), sound)


@dataclass(frozen=True)
class Qwen25Config:
    """All parts. Those of a voice are None where the folder has none (enable_audio_output)."""

    thinker: DecoderConfig
    audio: AudioConfig
    vision: VisionConfig
    talker: TalkerConfig | None
    flow: FlowConfig | None
    waves: WavesConfig | None
    tokens: MediaTokens
    timing: Timing
    stop: tuple[int, ...] = ()  # tokens that end an answer; generation_config.json may name others


def tensor_shapes(config: Qwen25Config) -> Shapes:
    """Name and shape of every tensor of a published checkpoint."""
    found = _decoder(config.thinker, "thinker.", "thinker.lm_head") | _audio(config.audio) | _vision(config.vision)
    if config.talker is not None:
        decoder = config.talker.decoder
        found |= _decoder(decoder, "talker.", "talker.codec_head")
        found |= dense("talker.thinker_to_talker_proj", decoder.width, decoder.embedding)
    if config.flow is not None:
        found |= _flow(config.flow)
    if config.waves is not None:
        found |= _waves(config.waves)
    return found


def parameters(config: Qwen25Config) -> dict[str, int]:
    """How many numbers each expert has."""
    return count_by(tensor_shapes(config), PREFIXES)


def _decoder(c: DecoderConfig, prefix: str, head: str) -> Shapes:
    return dict(zip(decoder_names(c, prefix, "embed_tokens", head).values(), parameter_shapes(c).values(), strict=True))


def _audio(c: AudioConfig) -> Shapes:
    at = "thinker.audio_tower"
    found = conv(f"{at}.conv1", c.width, c.mels, 3) | conv(f"{at}.conv2", c.width, c.width, 3)
    found[f"{at}.audio_bos_eos_token.weight"] = (2, c.out)  # stored, and fed to nothing
    for i in range(c.layers):
        layer = f"{at}.layers.{i}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found |= dense(f"{layer}.self_attn.{part}", c.width, c.width, bias=part != "k_proj")
        found |= norm(f"{layer}.self_attn_layer_norm", c.width) | norm(f"{layer}.final_layer_norm", c.width)
        found |= dense(f"{layer}.fc1", c.ffn, c.width) | dense(f"{layer}.fc2", c.width, c.ffn)
    return found | norm(f"{at}.ln_post", c.width) | dense(f"{at}.proj", c.out, c.width)


def _vision(c: VisionConfig) -> Shapes:
    at = "thinker.visual"
    found: Shapes = {f"{at}.patch_embed.proj.weight": (c.width, c.channels, c.temporal, c.patch, c.patch)}
    for i in range(c.layers):
        block = f"{at}.blocks.{i}"
        found |= norm(f"{block}.norm1", c.width, bias=False) | norm(f"{block}.norm2", c.width, bias=False)
        for part in ("q", "k", "v", "proj"):
            found |= dense(f"{block}.attn.{part}", c.width, c.width)
        for part in ("gate_proj", "up_proj"):
            found |= dense(f"{block}.mlp.{part}", c.ffn, c.width)
        found |= dense(f"{block}.mlp.down_proj", c.width, c.ffn)
    wide = c.merge**2 * c.width
    found |= norm(f"{at}.merger.ln_q", c.width, bias=False) | dense(f"{at}.merger.mlp.0", wide, wide)
    return found | dense(f"{at}.merger.mlp.2", c.out, wide)


def _speaker(c: SpeakerConfig, mels: int, at: str) -> Shapes:
    found = conv(f"{at}.blocks.0.conv", c.channels[0], mels, c.kernels[0])
    for i in range(1, len(c.channels) - 1):
        block, out = f"{at}.blocks.{i}", c.channels[i]
        found |= conv(f"{block}.tdnn1.conv", out, c.channels[i - 1], 1) | conv(f"{block}.tdnn2.conv", out, out, 1)
        for part in range(c.scale - 1):
            found |= conv(f"{block}.res2net_block.blocks.{part}.conv", out // c.scale, out // c.scale, c.kernels[i])
        found |= conv(f"{block}.se_block.conv1", c.squeeze, out, 1) | conv(f"{block}.se_block.conv2", out, c.squeeze, 1)
    last = c.channels[-1]
    found |= conv(f"{at}.mfa.conv", last, last, c.kernels[-1]) | conv(f"{at}.asp.tdnn.conv", c.attention, 3 * last, 1)
    return found | conv(f"{at}.asp.conv", last, c.attention, 1) | conv(f"{at}.fc", c.out, 2 * last, 1)


def _flow(c: FlowConfig) -> Shapes:
    at, inner = FLOW, c.heads * c.head_dim
    found = dense(f"{at}time_embed.time_mlp.0", c.width, 256) | dense(f"{at}time_embed.time_mlp.2", c.width, c.width)
    found[f"{at}text_embed.codec_embed.weight"] = (c.codes, c.code_width)
    found |= dense(f"{at}input_embed.proj", c.width, c.mels + c.speaker.out + c.condition + c.code_width)
    found |= _speaker(c.speaker, c.mels, f"{at}input_embed.spk_encoder")
    for i in range(c.layers):
        block = f"{at}transformer_blocks.{i}"
        found |= dense(f"{block}.attn_norm.linear", 6 * c.width, c.width) | dense(f"{block}.attn.to_out.0", c.width, inner)
        for part in "qkv":
            found |= dense(f"{block}.attn.to_{part}", inner, c.width)
        found |= dense(f"{block}.ff.ff.0", c.ffn, c.width) | dense(f"{block}.ff.ff.3", c.width, c.ffn)
    return found | dense(f"{at}norm_out.linear", 2 * c.width, c.width) | dense(f"{at}proj_out", c.mels, c.width)


def _waves(c: WavesConfig) -> Shapes:
    at, wide = WAVES, c.channels
    found = conv(f"{at}conv_pre", wide, c.mels, 7)
    for i, kernel in enumerate(c.kernels):
        found |= conv(f"{at}ups.{i}.0", wide, wide // 2, kernel, out=wide // 2)
        wide //= 2
        for j, (size, dilations) in enumerate(zip(c.block_kernels, c.dilations, strict=True)):
            block = f"{at}resblocks.{i * len(c.block_kernels) + j}"
            for k in range(len(dilations)):
                found |= conv(f"{block}.convs1.{k}", wide, wide, size) | conv(f"{block}.convs2.{k}", wide, wide, size)
                found |= snake(f"{block}.activations.{2 * k}.act", wide) | snake(f"{block}.activations.{2 * k + 1}.act", wide)
    return found | snake(f"{at}activation_post.act", wide) | conv(f"{at}conv_post", 1, wide, 7, bias=False)
