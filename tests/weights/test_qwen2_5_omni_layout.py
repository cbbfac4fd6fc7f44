"""A Qwen2.5-Omni folder: every key is read or refused, every tensor of the published layout accounted for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from published_qwen2_5_omni import PUBLISHED_3B, PUBLISHED_7B  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from omni_runtime.errors import CheckpointError, CheckpointWarning  # noqa: E402
from omni_runtime.experts.bigvgan import BigVGAN  # noqa: E402
from omni_runtime.experts.decoder import DecoderLM  # noqa: E402
from omni_runtime.experts.qwen25_audio import AudioEncoder  # noqa: E402
from omni_runtime.experts.qwen25_flow import Flow  # noqa: E402
from omni_runtime.experts.qwen25_vision import VisionEncoder  # noqa: E402
from omni_runtime.toy import write_toy_checkpoint  # noqa: E402
from omni_runtime.weights.decoder_config import parameter_shapes  # noqa: E402
from omni_runtime.weights.folder_tokenizer import folder_tokenizer  # noqa: E402
from omni_runtime.weights.qwen2_5_omni import Qwen25Folder  # noqa: E402
from omni_runtime.weights.qwen2_5_omni_config import parse_qwen25_config, read_qwen25_config  # noqa: E402
from omni_runtime.weights.qwen2_5_omni_parts import FLOW, WAVES, Qwen25Config, parameters, tensor_shapes  # noqa: E402
from omni_runtime.weights.report import report  # noqa: E402
from omni_runtime.weights.toy_folder import write_json  # noqa: E402
from omni_runtime.weights.toy_qwen2_5_omni import token_ids, toy_qwen25_config, write_toy_qwen25  # noqa: E402

Values = dict[str, Any]
HERE = Path("config.json")


def parsed(values: Values) -> Qwen25Config:
    return parse_qwen25_config(values, HERE)


# -- The published shapes ---------------------------------------------------------------------------------------------------

SIZES = {  # millions of numbers
    "7B": {"thinker": 7616, "audio_encoder": 640, "vision_encoder": 677, "talker": 1351, "flow": 334, "bigvgan": 115},
    "3B": {"thinker": 3397, "audio_encoder": 638, "vision_encoder": 669, "talker": 385, "flow": 334, "bigvgan": 115},
}
PUBLISHED = {"7B": PUBLISHED_7B, "3B": PUBLISHED_3B}


@pytest.mark.parametrize("size", ["7B", "3B"])
def test_published_sizes(size: str) -> None:
    c = parsed(PUBLISHED[size])
    assert c.talker is not None and c.flow is not None and c.waves is not None
    assert (c.audio.chunk, c.vision.window, sorted(c.vision.full)) == (200, 4, [7, 15, 23, 31])
    assert (c.flow.width, c.flow.layers, c.flow.heads, c.flow.block, c.flow.ahead) == (1024, 22, 16, 24, {10})
    assert (c.waves.hop, c.waves.reach, c.timing.chunk) == (240, (34, 34), 50)
    counts = parameters(c)
    for part, count in counts.items():
        print(f"{size} {part}: {count:,} parameters, {2 * count / 2**30:.2f} GiB bfloat16, {4 * count / 2**30:.2f} GiB float32")
    assert {part: round(count / 1e6) for part, count in counts.items()} == SIZES[size]


class Meta(Mapping[str, torch.Tensor]):
    """Tensors without their bytes."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes, self.taken = shapes, set[str]()

    def __getitem__(self, name: str) -> torch.Tensor:
        self.taken.add(name)
        return torch.empty(self.shapes[name], device="meta")

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["7B", "3B"])
def test_published_shapes_on_the_meta_device(size: str) -> None:
    """Every expert takes all of its tensors; those of the speaker's network are read when somebody speaks."""
    c = parsed(PUBLISHED[size])
    assert c.talker is not None and c.flow is not None and c.waves is not None
    shapes = tensor_shapes(c)

    def below(prefix: str) -> Meta:
        return Meta({name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)})

    for config in (c.thinker, c.talker.decoder):
        decoder = Meta(parameter_shapes(config))
        DecoderLM(config, decoder, "meta", "plain")
        assert decoder.taken == set(decoder.shapes)
    hearing, seeing, flow, waves = below("thinker.audio_tower."), below("thinker.visual."), below(FLOW), below(WAVES)
    AudioEncoder(c.audio, hearing, "meta", "plain")
    assert set(hearing.shapes) - hearing.taken == {"audio_bos_eos_token.weight"}
    VisionEncoder(c.vision, seeing, "meta", "plain")
    assert set(seeing.shapes) == seeing.taken
    Flow(c.flow, flow, "meta", "plain")
    assert all("spk_encoder" in name for name in set(flow.shapes) - flow.taken)
    BigVGAN(c.waves, waves, "meta")
    assert set(waves.shapes) == waves.taken


@pytest.mark.oracle
@pytest.mark.parametrize("size", ["7B", "3B"])
def test_published_shape_is_that_of_transformers(size: str) -> None:
    """The same names and shapes; fewer layers, since constructing all takes seconds and shows nothing more."""
    transformers = pytest.importorskip("transformers")
    values = copy.deepcopy(PUBLISHED[size])
    values["thinker_config"]["text_config"]["num_hidden_layers"] = values["talker_config"]["num_hidden_layers"] = 2
    transformers.utils.logging.set_verbosity_error()
    with torch.device("meta"):
        model = transformers.Qwen2_5OmniForConditionalGeneration(transformers.Qwen2_5OmniConfig(**values))
    found: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.state_dict().items():
        name = name.replace("thinker.model.language_model.", "thinker.model.")
        for part in ("audio_tower.", "visual."):
            name = name.replace(f"thinker.model.{part}", f"thinker.{part}")
        found[name] = tuple(tensor.shape)
    assert found == tensor_shapes(parsed(values))


# -- Folders ----------------------------------------------------------------------------------------------------------------


@pytest.mark.oracle
def test_what_transformers_saves_is_read(tmp_path: Path) -> None:
    """Its configuration, in the layout of transformers 5, and all tensors by name and shape."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    written = write_toy_qwen25(tmp_path / "ours", seed=1)
    model = transformers.Qwen2_5OmniForConditionalGeneration.from_pretrained(written, dtype=torch.float32)
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = Qwen25Folder(written), Qwen25Folder(tmp_path / "theirs")
    assert ours.config == theirs.config
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    assert {name: tuple(w.shape) for name, w in stored.items()} == tensor_shapes(ours.config)
    assert all(torch.equal(ours.tensor(name), stored[name]) for name in stored)


@pytest.mark.parametrize("shards", [1, 3])
def test_parts_by_our_names(tmp_path: Path, shards: int) -> None:
    folder = Qwen25Folder(write_toy_qwen25(tmp_path, shards=shards))
    assert len(list(tmp_path.glob("*.safetensors"))) == shards
    c = folder.config
    assert c.talker is not None
    for weights, config in ((folder.thinker(), c.thinker), (folder.talker(), c.talker.decoder)):
        assert {name: tuple(weights[name].shape) for name in weights} == parameter_shapes(config)
    assert sum(prod(shape) for shape in tensor_shapes(c).values()) == sum(parameters(c).values())


def test_tables_that_older_files_store(tmp_path: Path) -> None:
    folder = write_toy_qwen25(tmp_path, shards=1)
    weights = load_file(folder / "model.safetensors")
    for name in ("rotary_embed.inv_freq", "x.upsample.filter"):
        weights[FLOW + name] = torch.ones(3)
    save_file(weights, folder / "model.safetensors")
    assert len(Qwen25Folder(folder)) == len(weights) - 2


def test_a_folder_without_a_voice(tmp_path: Path) -> None:
    silent = {"enable_audio_output": False, "talker_config": None, "token2wav_config": None}
    folder = write_toy_qwen25(tmp_path, silent)
    assert Qwen25Folder(folder).config.talker is None
    assert report(folder)[-1] == "no voice: only text can be asked of it"
    write_toy_qwen25(tmp_path, {"enable_audio_output": True})
    settings = toy_qwen25_config() | {"enable_audio_output": False}
    write_json(folder / "config.json", settings)
    with pytest.warns(CheckpointWarning, match=r"'talker.codec_head.weight' and \d+ others are not used"):
        Qwen25Folder(folder)


def test_a_tied_head(tmp_path: Path) -> None:
    folder = Qwen25Folder(write_toy_qwen25(tmp_path, {"thinker_config": {"tie_word_embeddings": True}}))
    assert "lm_head.weight" not in folder.thinker()
    DecoderLM(folder.config.thinker, folder.thinker())


def test_report_and_toy(tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    assert "a tiny random qwen2_5_omni" in write_toy_checkpoint("qwen2_5-omni", folder)
    lines = report(folder)
    assert lines[0] == "Qwen2_5OmniForConditionalGeneration: 687 tensors; 14 special tokens"
    counts = parameters(read_qwen25_config(folder))
    assert f"flow: {counts['flow']:,} parameters, {2 * counts['flow']:,} bytes in bfloat16" in "\n".join(lines)
    assert lines[-1] == "speakers Chelsie, Ethan; 480 samples a code"


def test_the_tokenizer_knows_the_ids_of_the_configuration(tmp_path: Path) -> None:
    folder = write_toy_qwen25(tmp_path)
    c, ids = read_qwen25_config(folder), token_ids()
    tokenizer, t = folder_tokenizer(folder, c.thinker.vocab), c.tokens
    turns = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    assert turns[:3] == [ids["<|im_start|>"], ids["user"], 10]
    spelt = {"<|audio_bos|>": t.audio_start, "<|AUDIO|>": t.audio, "<|IMAGE|>": t.image, "<|VIDEO|>": t.video}
    spelt |= {"<|vision_bos|>": t.vision_start}
    assert tokenizer.encode("".join(spelt), control=True) == list(spelt.values())


# -- Speakers ---------------------------------------------------------------------------------------------------------------


def test_speakers(tmp_path: Path) -> None:
    found = Qwen25Folder(write_toy_qwen25(tmp_path)).speakers()
    ids = token_ids()
    assert {name: speaker.bos for name, speaker in found.items()} == {
        "Chelsie": ids["<tts_text_bos>"],
        "Ethan": ids["<tts_text_bos_single>"],
    }
    assert (found["Ethan"].condition_K.shape, found["Ethan"].mel_TM.shape) == ((12,), (25, 16))


GOOD = {"bos_token": 3, "cond": torch.zeros(1, 12), "ref_mel": torch.zeros(1, 30, 16)}


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([1], "speakers by name are needed, not list"),
        ({}, "holds no speaker"),
        ({"Ann": 3}, "Ann: bos_token, cond and ref_mel are needed"),
        ({"Ann": GOOD | {"bos_token": 99999}}, "Ann: bos_token: 99999 is no token"),
        ({"Ann": GOOD | {"bos_token": 0.5}}, "Ann: bos_token: 0.5 is no token"),
        ({"Ann": GOOD | {"cond": torch.zeros(1, 13)}}, r"Ann: cond: shape \(1, 13\), config.json asks for \(1, 12\)"),
        ({"Ann": GOOD | {"ref_mel": torch.zeros(1, 30, 15)}}, r"Ann: ref_mel: shape \(1, 30, 15\)"),
        ({"Ann": GOOD | {"ref_mel": torch.zeros(1, 3, 16)}}, r"Ann: ref_mel: shape \(1, 3, 16\).*more than 4"),
        ({"Ann": GOOD | {"cond": torch.full((1, 12), torch.nan)}}, "Ann: cond: holds what is no finite number"),
    ],
)
def test_speakers_that_are_none(tmp_path: Path, held: Any, message: str) -> None:
    folder = write_toy_qwen25(tmp_path)
    torch.save(held, folder / "spk_dict.pt")
    with pytest.raises(CheckpointError, match=message):
        Qwen25Folder(folder).speakers()


class Harmful:
    """What a pickle can do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("code from a checkpoint ran",)


def test_a_speaker_file_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_toy_qwen25(tmp_path)
    torch.save({"Ann": Harmful()}, folder / "spk_dict.pt")
    with pytest.raises(CheckpointError, match="damaged, or asks to run code"):
        Qwen25Folder(folder).speakers()
    assert "ran" not in capsys.readouterr().out
    (folder / "spk_dict.pt").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="is damaged, or"):
        Qwen25Folder(folder).speakers()
    (folder / "spk_dict.pt").unlink()
    with pytest.raises(CheckpointError, match="does not exist, and without it nobody can speak"):
        Qwen25Folder(folder).speakers()


# -- What is refused --------------------------------------------------------------------------------------------------------


def flow(**changes: Any) -> Values:
    return {"token2wav_config": {"dit_config": changes}}


def waves(**changes: Any) -> Values:
    return {"token2wav_config": {"bigvgan_config": changes}}


def text(**changes: Any) -> Values:
    return {"thinker_config": {"text_config": changes}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen3OmniMoeForConditionalGeneration"]}, r"architectures: unknown architecture 'Qwen3Omni"),
        ({"model_type": "qwen2"}, r"model_type: 'qwen2' contradicts"),
        ({"talker_confg": {}}, r"talker_confg: unknown key.*did you mean"),
        ({"token2wav_config": None}, r"token2wav_config: is missing"),
        ({"thinker_config": {"audio_token_index": 9999}}, r"audio_token_index: 9999 is not in the vocabulary of"),
        (text(hidden_act="gelu"), r"text_config.hidden_act: 'gelu' is not computed"),
        (text(use_sliding_window=True), r"layer_types: a sliding window is not computed"),
        (text(rope_scaling={"mrope_section": [4, 4]}), r"mrope_section: three numbers are needed"),
        (text(rope_scaling={"mrope_section": [4, 4, 4]}), r"rope_sections=\(4, 4, 4\)"),
        (text(rope_scaling={"interleaved": True}), r"interleaved: True is not computed here, only False is"),
        (text(rope_scaling={"rope_type": "yarn"}), r"rope_type: 'yarn' is not computed"),
        (
            {"thinker_config": {"audio_config": {"output_dim": 60}}},
            r"audio_config.output_dim: 60 is not the thinker's hidden_size",
        ),
        ({"thinker_config": {"audio_config": {"max_source_positions": 19}}}, r"max_source_positions: a chunk has 20"),
        ({"thinker_config": {"audio_config": {"d_model": 34}}}, r"d_model: 34 is odd, or no multiple"),
        ({"thinker_config": {"vision_config": {"window_size": 7}}}, r"window_size: 7 pixels, a vector is 8"),
        ({"thinker_config": {"vision_config": {"fullatt_block_indexes": [2]}}}, r"fullatt_block_indexes: 2: there are 2 layers"),
        ({"thinker_config": {"vision_config": {"embed_dim": 40}}}, r"embed_dim: 40 is not computed here, only 32 is"),
        ({"talker_config": {"embedding_size": 60}}, r"embedding_size: 60 is not the thinker's hidden_size, 64"),
        ({"talker_config": {"tts_codec_mask_token_id": 80}}, r"tts_codec_mask_token_id: 80 is not in the vocabulary of 80"),
        (
            {"talker_config": {"seconds_per_chunk": 3}},
            r"seconds_per_chunk: 25 a second, 75 a chunk; the thinker",
        ),
        (flow(depth=4), r"depth: 4 contradicts num_hidden_layers 3"),
        (flow(block_size=7), r"block_size: 7 mel frames are no whole number of codes of 2"),
        (flow(enc_channels=[16, 16, 48]), r"enc_channels: 3 of them, 5 kernels and 5 dilations"),
        (flow(enc_channels=[16, 16, 16, 16, 40]), r"enc_channels: \[16, 16, 16, 16, 40\]: all but the last equal"),
        (flow(enc_global_context=False), r"enc_global_context: False is not computed"),
        (flow(look_ahead_layers=[-1]), r"look_ahead_layers: whole numbers from 0 on"),
        (flow(mel_dim=20), r"bigvgan_config.mel_dim: 16, dit_config gives 20"),
        (waves(use_bias_at_final=True), r"use_bias_at_final: True is not computed"),
        (waves(upsample_kernel_sizes=[11, 7, 4, 4, 4, 5]), r"upsample_kernel_sizes: .*larger by an even number"),
        (waves(resblock_dilation_sizes=[[1, 3]] * 3), r"resblock_dilation_sizes: lists of three positive numbers"),
        (
            waves(resblock_kernel_sizes=[3, 7], resblock_dilation_sizes=[[1, 3, 5]] * 3),
            r"resblock_kernel_sizes: odd numbers, as many as",
        ),
        (waves(upsample_initial_channel=60), r"upsample_initial_channel: 60 cannot be halved"),
    ],
)
def test_refused_by_name(changes: Values, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parsed(toy_qwen25_config(changes))


Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.pop("talker.codec_head.weight"), r"tensor 'talker.codec_head.weight' is missing, and 0 others"),
        (lambda w: w.update({"thinker.visual.odd": torch.ones(1)}), r"tensor 'thinker.visual.odd' and 0 others are no part"),
        (lambda w: w.update({f"{WAVES}conv_pre.bias": torch.ones(3)}), r"shape \(3,\), config.json asks for \(64,\)"),
    ],
)
def test_tensors_are_accounted_for(tmp_path: Path, edit: Callable[[Tensors], object], message: str) -> None:
    folder = write_toy_qwen25(tmp_path, shards=1)
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        Qwen25Folder(folder)
