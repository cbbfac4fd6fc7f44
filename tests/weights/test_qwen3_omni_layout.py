"""A Qwen3-Omni folder: every key is read or refused, every tensor of the published layout accounted for."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from published_qwen3_omni import PUBLISHED  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from omni_runtime.errors import CheckpointError, CheckpointWarning  # noqa: E402
from omni_runtime.experts.decoder import DecoderLM  # noqa: E402
from omni_runtime.weights.decoder_config import DecoderConfig, parameter_shapes  # noqa: E402
from omni_runtime.weights.folder_tokenizer import folder_tokenizer  # noqa: E402
from omni_runtime.weights.qwen3_omni import OmniFolder  # noqa: E402
from omni_runtime.weights.qwen3_omni_config import parse_omni_config, read_omni_config  # noqa: E402
from omni_runtime.weights.qwen3_omni_parts import parameters, tensor_shapes  # noqa: E402
from omni_runtime.weights.report import report  # noqa: E402
from omni_runtime.weights.toy_folder import write_json  # noqa: E402
from omni_runtime.weights.toy_qwen3_omni import toy_omni_config, write_toy_omni  # noqa: E402

Values = dict[str, Any]
HERE = Path("config.json")


def parsed(values: Values) -> Any:
    return parse_omni_config(values, HERE)


# -- The published shape ---------------------------------------------------------------------------------------------------


def test_published_shape() -> None:
    c = parsed(PUBLISHED)
    assert c.thinker.sparse is not None and (c.thinker.layers, c.thinker.sparse.experts, c.thinker.sparse.chosen) == (48, 128, 8)
    assert c.talker is not None and c.talker.decoder.sparse is not None and c.talker.decoder.sparse.shared == 768
    assert (c.talker.groups, c.talker.codebook, c.talker.accept, c.talker.predictor.vocab) == (16, 2048, 24, 15 * 2048)
    assert c.vocoder is not None and (c.vocoder.hop, c.vocoder.lag) == (1920, 555)
    assert (c.audio.chunk, c.audio.window, c.vision.grid, c.vision.deepstack) == (100, 8, 48, (8, 16, 24))
    assert c.positions_a_second == 13


def test_published_sizes_add_up() -> None:
    """Parameters by part: 30.5 billion of them are the thinker's, as its name says."""
    counts = parameters(parsed(PUBLISHED))
    assert counts["thinker"] == 30_532_646_912
    assert {part: round(count / 1e6) for part, count in counts.items()} == SIZES
    assert len(tensor_shapes(parsed(PUBLISHED))) == 28010
    for part, count in counts.items():
        print(f"{part}: {count:,} parameters, {2 * count / 2**30:.2f} GiB bfloat16, {4 * count / 2**30:.2f} GiB float32")


SIZES = {"thinker": 30533, "audio_encoder": 648, "vision_encoder": 539, "talker": 3183, "predictor": 142, "code2wav": 216}


class Meta(Mapping[str, torch.Tensor]):
    """Tensors of a decoder without their bytes."""

    def __init__(self, config: DecoderConfig) -> None:
        self.shapes, self.taken = parameter_shapes(config), 0

    def __getitem__(self, name: str) -> torch.Tensor:
        self.taken += math.prod(self.shapes[name])
        return torch.empty(self.shapes[name], device="meta")

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


@pytest.mark.slow
def test_published_decoders_on_the_meta_device() -> None:
    c = parsed(PUBLISHED)
    assert c.talker is not None
    for config in (c.thinker, c.talker.decoder, c.talker.predictor):
        weights = Meta(config)
        DecoderLM(config, weights, "meta", "plain")
        assert weights.taken == sum(map(math.prod, weights.shapes.values()))  # each once


@pytest.mark.oracle
def test_published_shape_is_that_of_transformers() -> None:
    """The same names once the reference's fused experts are told apart, and the same number of parameters."""
    transformers = pytest.importorskip("transformers")
    values = copy.deepcopy(PUBLISHED)
    values["thinker_config"]["text_config"]["num_hidden_layers"] = 2  # constructing 48 takes seconds and shows nothing more
    values["talker_config"]["accept_hidden_layer"] = 1
    transformers.utils.logging.set_verbosity_error()
    with torch.device("meta"):
        model = transformers.Qwen3OmniMoeForConditionalGeneration(transformers.Qwen3OmniMoeConfig(**values))
    found: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.state_dict().items():
        name = name.replace("thinker.model.language_model.", "thinker.model.").replace("thinker.model.audio_t", "thinker.audio_t")
        name, shape = name.replace("thinker.model.visual", "thinker.visual"), tuple(tensor.shape)
        at = name.rpartition(".")[0]
        if name.endswith("experts.gate_up_proj"):
            for expert in range(shape[0]):
                found |= {f"{at}.{expert}.{part}_proj.weight": (shape[1] // 2, shape[2]) for part in ("gate", "up")}
        elif name.endswith("experts.down_proj"):
            found |= {f"{at}.{expert}.down_proj.weight": shape[1:] for expert in range(shape[0])}
        else:
            found[name] = shape
    assert found == tensor_shapes(parsed(values))


# -- Folders ----------------------------------------------------------------------------------------------------------------


@pytest.mark.oracle
def test_what_transformers_saves_is_read(tmp_path: Path) -> None:
    """Its configuration, in the layout of transformers 5, and all tensors by name and shape."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    written = write_toy_omni(tmp_path / "ours", seed=1)
    model = transformers.Qwen3OmniMoeForConditionalGeneration.from_pretrained(written, dtype=torch.float32)
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = OmniFolder(written), OmniFolder(tmp_path / "theirs")
    assert ours.config == theirs.config
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    assert {name: tuple(w.shape) for name, w in stored.items()} == tensor_shapes(ours.config)
    assert all(torch.equal(ours.tensor(name), stored[name]) for name in stored)


@pytest.mark.parametrize("shards", [1, 3])
def test_parts_by_our_names(tmp_path: Path, shards: int) -> None:
    folder = OmniFolder(write_toy_omni(tmp_path, shards=shards))
    assert len(list(tmp_path.glob("*.safetensors"))) == shards
    c = folder.config
    assert c.talker is not None
    for weights, config in (
        (folder.thinker(), c.thinker),
        (folder.talker(), c.talker.decoder),
        (folder.predictor(), c.talker.predictor),
    ):
        assert {name: tuple(weights[name].shape) for name in weights} == parameter_shapes(config)
    table = folder.predictor()["model.embed_tokens.weight"]
    assert torch.equal(table[64:128], folder.tensor("talker.code_predictor.model.codec_embedding.1.weight"))
    assert set(folder.named("code2wav.decoder.0.")) == {"conv.weight", "conv.bias"}


def test_a_folder_without_a_voice(tmp_path: Path) -> None:
    folder = write_toy_omni(tmp_path, {"enable_audio_output": False, "talker_config": None, "code2wav_config": None})
    assert OmniFolder(folder).config.talker is None
    assert not any(name.startswith(("talker", "code2wav")) for name in tensor_shapes(OmniFolder(folder).config))
    write_toy_omni(tmp_path)
    values = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", values | {"enable_audio_output": False})
    with pytest.warns(CheckpointWarning, match="'code2wav.code_embedding.weight' and 197 others are not used"):
        OmniFolder(folder)


def test_report(tmp_path: Path) -> None:
    lines = report(write_toy_omni(tmp_path))
    assert lines[0] == "Qwen3OmniMoeForConditionalGeneration: 387 tensors; 13 special tokens"
    counts = parameters(read_omni_config(tmp_path))
    assert f"code2wav: {counts['code2wav']:,} parameters, {2 * counts['code2wav']:,} bytes in bfloat16" in "\n".join(lines)
    assert lines[-2:] == [
        "pictures of 64 to 16,384 pixels, a vector for 8 x 8",
        "speakers chelsie, ethan; 48 samples a frame of 4 codes",
    ]
    write_toy_omni(tmp_path, {"enable_audio_output": False, "talker_config": None, "code2wav_config": None})
    assert report(tmp_path)[-1] == "no voice: only text can be asked of it"


def test_the_tokenizer_knows_the_ids_of_the_configuration(tmp_path: Path) -> None:
    folder = write_toy_omni(tmp_path)
    c = read_omni_config(folder)
    tokenizer, t = folder_tokenizer(folder, c.thinker.vocab), c.tokens
    ids = tokenizer.encode_chat([{"role": "system", "content": "a"}, {"role": "user", "content": "hi"}])
    turns = [t.im_start, t.system, 10, 97, t.im_end, 10, t.im_start, t.user, 10, 104, 105, t.im_end, 10]
    assert ids == [*turns, t.im_start, t.assistant, 10]
    spelt = {"<|audio_start|>": t.audio_start, "<|audio_pad|>": t.audio, "<|image_pad|>": t.image, "<|video_pad|>": t.video}
    spelt |= {"<tts_pad>": t.tts_pad, "<tts_text_bos>": t.tts_bos, "<tts_text_eod>": t.tts_eos}
    assert tokenizer.encode("".join(spelt), control=True) == list(spelt.values())


# -- What is refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen2_5OmniModel"]}, r"architectures: unknown architecture 'Qwen2_5OmniModel'"),
        ({"model_type": "qwen2"}, r"model_type: 'qwen2' contradicts"),
        ({"tts_pad_token": 3}, r"tts_pad_token: unknown key.*did you mean"),
        ({"tts_pad_token_id": 288}, r"tts_pad_token_id: 288 is not in the vocabulary of 288"),
        ({"user_token_id": None}, r"user_token_id: is missing"),
        ({"code2wav_config": None}, r"code2wav_config: is missing"),
        ({"thinker_config": {"text_config": {"num_experts": 0}}}, r"thinker_config.text_config.num_experts: 0 is out of range"),
        ({"thinker_config": {"text_config": {"hidden_act": "gelu"}}}, r"text_config.hidden_act: 'gelu' is not computed"),
        ({"thinker_config": {"text_config": {"attention_bias": True}}}, r"text_config.attention_bias: True is not computed"),
        ({"thinker_config": {"text_config": {"mlp_only_layers": [1]}}}, r"text_config.mlp_only_layers: dense layers"),
        ({"thinker_config": {"text_config": {"shared_expert_intermediate_size": 8}}}, r"the thinker has no shared expert"),
        (
            {"thinker_config": {"text_config": {"hidden_size": 60}}},
            r"audio_config.output_dim: 64 is not the thinker's hidden_size",
        ),
        ({"thinker_config": {"text_config": {"rope_scaling": {"mrope_section": [4, 4]}}}}, r"mrope_section: three positive"),
        ({"thinker_config": {"text_config": {"rope_scaling": {"mrope_section": [4, 4, 4]}}}}, r"rope_sections=\(4, 4, 4\)"),
        ({"thinker_config": {"text_config": {"rope_scaling": {"rope_type": "yarn"}}}}, r"rope_type: 'yarn' is not computed"),
        ({"thinker_config": {"text_config": {"rope_scaling": {"interleaved": False}}}}, r"interleaved: False is not computed"),
        ({"thinker_config": {"audio_config": {"n_window": 8}}}, r"audio_config.n_window: 8 is not computed here, only 50 is"),
        ({"thinker_config": {"audio_config": {"n_window_infer": 150}}}, r"n_window_infer: 150 is no multiple"),
        ({"thinker_config": {"vision_config": {"num_position_embeddings": 63}}}, r"num_position_embeddings: 63 is no square"),
        ({"thinker_config": {"vision_config": {"deepstack_visual_indexes": [1, 5]}}}, r"rising numbers of layers, 0 to 2"),
        ({"thinker_config": {"vision_config": {"hidden_size": 36}}}, r"vision_config.hidden_size: 36 is no multiple of four"),
        ({"talker_config": {"accept_hidden_layer": 4}}, r"accept_hidden_layer: 4: the thinker has 4 layers"),
        ({"talker_config": {"thinker_hidden_size": 32}}, r"thinker_hidden_size: 32 is not the thinker's, 64"),
        ({"talker_config": {"num_code_groups": 5}}, r"code_predictor_config.num_code_groups: 4, the talker says 5"),
        ({"talker_config": {"speaker_id": {"ethan": 4000}}}, r"speaker_id.ethan: 4000 is out of range, 0 to 1087"),
        (
            {"talker_config": {"speaker_id": None}},
            r"config.json: talker_config.speaker_id: .* needed; fetch config.json again",
        ),
        ({"talker_config": {"code_predictor_config": {"hidden_size": 32}}}, r"32 is not the talker's 48"),
        ({"code2wav_config": {"num_quantizers": 5}}, r"code2wav_config: takes 5 groups of 64 codes, the talker gives 4 of 64"),
        ({"code2wav_config": {"decoder_dim": 30}}, r"decoder_dim: 30 cannot be halved at each of the rates \[4, 3\]"),
        ({"code2wav_config": {"upsampling_ratios": [1]}}, r"upsampling_ratios: a first frame alone"),
        ({"code2wav_config": {"upsample_rates": [2, -1]}}, r"upsample_rates: positive numbers"),
    ],
)
def test_refused_by_name(changes: Values, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parsed(toy_omni_config(changes))


def test_nobody_to_speak_is_refused_by_name() -> None:
    values = toy_omni_config()
    values["talker_config"]["speaker_id"] = {}
    with pytest.raises(CheckpointError, match=r"config.json: talker_config.speaker_id: .*enable_audio_output"):
        parsed(values)


Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop("talker.codec_head.weight"), r"tensor 'talker.codec_head.weight' is missing, and 0 others"),
        (lambda w: w.update({"thinker.visual.odd": torch.ones(1)}), r"tensor 'thinker.visual.odd' and 0 others are no part"),
        (lambda w: w.update({"code2wav.decoder.0.conv.bias": torch.ones(3)}), r"shape \(3,\), config.json asks for \(32,\)"),
        (lambda w: w.update({"thinker.lm_head.weight": torch.ones(288, 64, dtype=torch.int8)}), r"is of type I8"),
    ],
)
def test_tensors_are_accounted_for(tmp_path: Path, edit: Callable[[Tensors], object], message: str) -> None:
    folder = write_toy_omni(tmp_path, shards=1)
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        OmniFolder(folder)


def test_a_lost_shard(tmp_path: Path) -> None:
    folder = write_toy_omni(tmp_path, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"shard 'model-00002-of-00003\.safetensors', which holds tensor"):
        OmniFolder(folder)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such folder"):
        read_omni_config(tmp_path / "nowhere")
